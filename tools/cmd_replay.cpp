// gdnsim replay: run a recording again and localise the first divergence.
#include <algorithm>

#include "cli.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/explain.hpp"
#include "mpi_ranks.hpp"
#include "pool_checks.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  RecordingOptions recording;
  std::string mode = "both";
  SliceOptions slice;
  PoolChecks checks;
  BackendChoice backend;
  OutputOptions output;
};

Mode mode_from(const std::string& text) {
  if (text == "local") return Mode::local;
  if (text == "carried") return Mode::carried;
  if (text == "both") return Mode::both;
  throw error("--mode: expected local, carried or both, found '", text, "'");
}

/// The smallest slice that shows the first divergence: its layer, and its step, or its launch up to that.
std::string repro_command(const Options& options, Input& input, const Report& report) {
  std::string command = "gdnsim replay" + options.recording.words(input, report.contract.contracts);
  command += " --backend golden";
  if (options.mode != "both") command += " --mode " + options.mode;
  if (const auto& first = report.first())
    command += " --layers " + std::to_string(first->layer) + " --steps " +
               std::to_string(launch_of(input.stream(), first->step).first) + ":" + std::to_string(first->step + 1) +
               options.slice.row_words();
  else
    command += options.slice.words();
  return command;
}

/// Did the chosen contract reproduce the first steps of every path? Then what differs later is hardly another rounding rule.
bool probe_was_clean(const ContractChoice& choice) {
  return !choice.tried.empty() && std::ranges::all_of(choice.tried, [&](const Candidate& candidate) {
    return candidate.differing == 0 || candidate.name != choice.contracts.of(candidate.path).name;
  });
}

std::string next_command(const Options& options, const Input& input, const Report& report) {
  if (report.verdict == Verdict::match) return "";
  if (report.verdict == Verdict::inconclusive) return input.look_again();
  const std::string& contract = options.recording.contract;
  return "gdnsim explain " + shell_word(options.recording.file) +
         (contract == "auto" ? "" : " --contract " + shell_word(contract)) + options.recording.trace_words() +
         options.slice.words();
}

/// --poison and --audit look at a run of their own, under the contracts given or the first that `replay` would take.
bool pool_is_bad(const Options& options, Input& input, Backend& backend, const ReplayOptions& replay_options) {
  Recording& recording = input.recording();
  const Slice slice = resolved(replay_options.slice, whole_of(recording), recording.path());
  const ContractSet contracts = replay_options.contracts
                                    ? *replay_options.contracts
                                    : choose_contract(input.stream(), recording, backend, slice).contracts;
  const Simulation simulation{input.stream(), backend, contracts, slice.layers, slice.last_step};
  return reports_any(options.checks, simulation, options.recording.file, options.output);
}

/// Ranks share the layers; the first one says what came of it.
std::unique_ptr<Spread> joined(Options& options) {
  if (launched().ranks > 1 && options.checks.any())
    throw error("--poison and --audit look at the whole pool: expected one process, found ", launched().ranks);
  if (launched().rank > 0) options.output.quiet = options.output.no_progress = true;
  share_machine(options.backend);
  return join_ranks();
}

int run(Options options) {
  options.output.check_target({options.recording.file, options.recording.contract, options.recording.trace});
  ReplayOptions replay_options;
  replay_options.mode = mode_from(options.mode);
  replay_options.slice = options.slice.parsed();
  Input input = options.recording.open();
  Recording& recording = input.recording();
  const NamedContracts named = named_contracts(options.recording.contract, input);
  replay_options.contracts = named.contracts;
  replay_options.contracts_from = named.from;
  const std::unique_ptr<Spread> spread = joined(options);
  replay_options.spread = spread.get();
  const bool first = spread == nullptr || spread->rank() == 0;
  const ChosenBackend chosen = options.backend.choose();
  Progress progress("replay", options.output);
  replay_options.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };

  if (options.checks.any() && pool_is_bad(options, input, *chosen.backend, replay_options)) return kDiverged;
  const ReplayResult result = replay(input.stream(), recording, *chosen.backend, replay_options);
  if (!first) return exit_code(result.verdict);
  Report report = report_of(result);
  if (report.verdict == Verdict::diverged)
    if (auto noise = not_repeatable(input.stream(), recording, result.slice, false))
      report.mechanisms.push_back(std::move(*noise));
  if (input.trace)
    for (std::string& line : trace_warnings(*input.trace)) report.notes.push_back(std::move(line));
  report.files = {options.recording.file};
  report.subject = subject_of(input, input.stream(), result.slice);
  report.inner = inner_values(input.stream(), recording, *chosen.backend, result);
  report.backend = chosen.reason + "; " + chosen.backend->description();
  report.repro = repro_command(options, input, report);
  report.next = next_command(options, input, report);
  if (report.verdict == Verdict::diverged && options.recording.contract == "auto" && probe_was_clean(report.contract))
    report.notes.push_back(
        "the contract reproduces the first steps to the bit, so look for something that happened rather than a "
        "rounding rule: a block, a row, a step");
  options.output.put(report);
  return exit_code(report.verdict);
}

}  // namespace

void add_replay(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      root.add_subcommand("replay", "run a trace with recorded outputs, or a log, again and find the first divergence");
  command->footer("Example: gdnsim replay traces/h200_k64_3layers.h5 --contract golden");
  options->recording.add_to(*command, "auto, a preset's name or a contract file");
  command->add_option("--mode", options->mode, "local, carried or both")->capture_default_str();
  options->slice.add_to(*command);
  options->checks.add_to(*command);
  options->backend.add_to(*command);
  options->output.add_to(*command);
  options->output.add_html_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
