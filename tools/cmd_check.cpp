// gdnsim check: does a backend keep its promises (L0, L1, L2, accuracy), and does a recording?
#include <algorithm>
#include <iostream>

#include "cli.hpp"
#include "gdnsim/check.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  BackendChoice backend;
  std::string file, trace, contract = "golden", shape = "tp1", state = "f32", mutate, kernel = "all";
  std::vector<std::string> stages, batteries;
  bool reduced = false;
  SliceOptions slice;
  OutputOptions output;
};

/// The values with these names; all where none are named.
template <class Value, std::size_t n>
std::vector<Value> named(const Value (&all)[n], const std::vector<std::string>& names) {
  std::vector<Value> chosen;
  for (const Value value : all)
    if (names.empty() || std::ranges::find(names, name_of(value)) != names.end()) chosen.push_back(value);
  return chosen;
}

template <class Value, std::size_t n>
CLI::IsMember among(const Value (&all)[n]) {
  std::vector<std::string> names;
  for (const Value value : all) names.emplace_back(name_of(value));
  return CLI::IsMember(names);
}

/// Refuses `name` together with options that would have no say then.
void exclude(CLI::App& command, const std::string& name, std::initializer_list<const char*> others) {
  for (const char* other : others) command.get_option(name)->excludes(command.get_option(other));
}

void print(const Options& options, const std::string& text, const nlohmann::ordered_json& json) {
  if (!options.output.json_on_stdout()) std::cout << text << std::flush;
  options.output.write_json(json);
}

int check_file(const Options& options) {
  options.output.check_target({options.file, options.trace});
  Input input = open_input(options.file);
  Recording& recording = input.recording();
  require_trace_of_log(input, options.trace);
  if (input.log) open_source(input, options.trace);
  const TraceCheck check = check_trace(input.stream(), recording, options.slice.parsed());
  print(options, check_text(check, options.file), to_json(check, options.file));
  return check.exit_code();
}

CheckOptions to_check(const Options& options, Progress& progress) {
  CheckOptions check;
  check.backend = options.backend.name, check.on = options.backend.options;
  check.contract = load_contracts(options.contract).decode;
  check.stages = named(kCheckStages, options.stages), check.batteries = named(kBatteries, options.batteries);
  check.shape = options.shape, check.state = *dtype_from(options.state);
  check.reduced = options.reduced, check.kernel = options.kernel;
  check.progress = [&progress](const std::string& what) { progress.stage(what); };
  return check;
}

int run(const Options& options) {
  if (!options.file.empty()) return check_file(options);
  if (!options.trace.empty() || options.slice.any()) throw error("check: --trace, --layers and the like need a FILE");
  if (!options.backend.options.cpu_level.empty() && options.kernel != "all" && options.kernel != "own")
    throw error("--cpu-level ", options.backend.options.cpu_level, " with --kernel ", options.kernel,
                ": both name what golden runs; expected one of them");
  options.output.check_target({options.contract});
  Progress progress("check", options.output);
  const CheckOptions check = to_check(options, progress);
  if (options.mutate.empty()) {
    const CheckReport report = run_check(check);
    print(options, check_text(report), to_json(report));
    return report.exit_code();
  }
  const std::vector<MutationResult> results = run_mutations(check, options.mutate);
  print(options, check_text(results), to_json(results));
  return exit_code(results);
}

}  // namespace

void add_check(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  CLI::App* command = root.add_subcommand(
      "check", "does a backend keep its promises: repeatable, whatever the batch, golden's bits, and how exact");
  command->footer(
      "With a FILE: what a trace or log can answer of that - the same rows again, in the same launch or in another.\n"
      "Example: gdnsim check --backend golden --shape small --reduced\n"
      "Example: gdnsim check my-engine.h5");
  command
      ->add_option("FILE", options->file, "a trace with recorded outputs, or a log; without it, a backend is checked")
      ->check(not_empty());
  options->backend.add_to(*command);
  command->add_option("--contract", options->contract, "a preset's name or a contract file")->capture_default_str();
  command->add_option("--stage", options->stages, "stages, like conv,rmsnorm; default: all")
      ->type_name("LIST")
      ->delimiter(',')
      ->check(among(kCheckStages));
  command->add_option("--battery", options->batteries, "batteries, like L0,L1; default: all")
      ->type_name("LIST")
      ->delimiter(',')
      ->check(among(kBatteries));
  command->add_option("--shape", options->shape, "tp1, tp4 (Qwen3-Next on one and on four GPUs) or small")
      ->capture_default_str()
      ->check(CLI::IsMember({"tp1", "tp4", "small"}));
  command->add_option("--state", options->state, "type of the state")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16"}));
  command->add_flag("--reduced", options->reduced, "smaller batches and fewer rows, for a CPU");
  command
      ->add_option(
          "--kernel", options->kernel,
          "hold the backend to one row of its table, like avx2 or fused; own: what it takes by itself; all: that, "
          "then the step of every row in smaller batches")
      ->capture_default_str();
  command
      ->add_option("--mutate", options->mutate,
                   "plant a fault into the backend and see whether the gate named for it finds it: a name, or all")
      ->check(not_empty());
  add_trace_option(*command, options->trace);
  options->slice.add_to(*command, false);
  options->output.add_to(*command);
  exclude(*command, "FILE",
          {"--contract", "--stage", "--battery", "--shape", "--state", "--reduced", "--kernel", "--mutate", "--backend",
           "--device", "--threads", "--cpu-level"});  // a recording is compared with itself
  exclude(*command, "--mutate", {"--stage", "--battery"});
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
