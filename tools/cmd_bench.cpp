// gdnsim bench: how fast each variant of a backend runs here, beside what the machine could do at most.
#include <cstdio>
#include <iostream>
#include <set>

#include "cli.hpp"
#include "gdnsim/bench.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/version.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  BackendChoice backend;
  std::vector<std::string> states{"f32"};
  BenchOptions bench;
  OutputOptions output;
};

struct Measured {
  std::string backend, on;
  std::vector<Measure> measures;
};

std::string on_what(const std::string& backend, const BackendOptions& options) {
  return (backend == "golden" ? make_golden(options) : make_cuda(options))->description();
}

/// `auto`: all that can run here; what cannot is said on stderr.
std::vector<Measured> measure(const Options& options) {
  const std::string& name = options.backend.name;
  std::vector<Measured> all;
  if (name != "auto" && name != "golden" && name != "cuda")
    throw error("backend: expected auto, golden or cuda, found '", name, "'");
  if (name != "cuda") all.push_back({"golden", on_what("golden", options.bench.backend), bench_golden(options.bench)});
  if (name == "golden") return all;
  try {
    all.push_back({"cuda", on_what("cuda", options.bench.backend), bench_cuda(options.bench)});
  } catch (const Error& reason) {
    if (name == "cuda") throw;
    say(options.output, reason.what());
  }
  return all;
}

/// Seconds of the variant called "plain" in the same stage, or 0.
double plain_of(const Measured& measured, const Measure& m) {
  for (const Measure& other : measured.measures)
    if (other.variant == "plain" && other.stage == m.stage && other.contract == m.contract && other.shape == m.shape)
      return other.seconds;
  return 0;
}

std::string time_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 1e-5 ? "%.2f us" : "%.1f us", seconds * 1e6);
  return text;
}

std::string number_text(double value, const char* form) {
  char text[32];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

void print_row(const std::string& stage, const std::string& variant, const std::string& contract,
               const std::string& shape, const std::string& time, const std::string& best, const std::string& plain,
               const std::string& floor) {
  std::printf("%-11s %-8s %-18s %-30s %12s %12s %8s %6s\n", stage.c_str(), variant.c_str(), contract.c_str(),
              shape.c_str(), time.c_str(), best.c_str(), plain.c_str(), floor.c_str());
}

void print(const Measured& measured) {
  std::cout << measured.backend << ": " << measured.on << "\n" << std::flush;
  print_row("stage", "variant", "contract", "shape", "median", "best", "x plain", "floor");
  for (const Measure& m : measured.measures) {
    if (!m.skipped.empty()) continue;
    const double plain = plain_of(measured, m);
    print_row(m.stage, m.variant, m.contract, m.shape, time_text(m.seconds), time_text(m.best),
              plain > 0 ? number_text(plain / m.seconds, "%.2f") : "-",
              m.floor > 0 ? number_text(100 * m.floor / m.seconds, "%.0f%%") : "-");
  }
  std::fflush(stdout);
}

/// What is below the table: the floors in words, and what was not measured.
void print_notes(const Measured& measured) {
  std::set<std::string> floors, skipped;
  for (const Measure& m : measured.measures) {
    if (!m.floor_is.empty()) floors.insert(m.floor_is);
    if (!m.skipped.empty()) skipped.insert(m.variant + " " + m.stage + ": " + m.skipped);
  }
  for (const std::string& words : floors) std::cout << "floor: " << words << "\n";
  for (const std::string& words : skipped) std::cout << "not measured: " << words << "\n";
}

nlohmann::ordered_json to_json(const Measured& measured) {
  const auto number = [](double value) { return value > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json(); };
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Measure& m : measured.measures)
    list.push_back({{"backend", measured.backend},
                    {"stage", m.stage},
                    {"variant", m.variant},
                    {"contract", m.contract},
                    {"shape", m.shape},
                    {"seconds", number(m.seconds)},
                    {"best", number(m.best)},
                    {"plain", number(plain_of(measured, m))},
                    {"floor", number(m.floor)},
                    {"floor_is", m.floor_is},
                    {"skipped", m.skipped}});
  return list;
}

void require_some(const std::vector<Measured>& all) {
  for (const Measured& measured : all)
    if (!measured.measures.empty()) return;
  throw error("bench: nothing to measure: no backend that was asked has these stages and variants together; ",
              "`gdnsim bench` without --stage and --variant shows what there is");
}

int run(Options& options) {
  options.output.check_target({});
  options.bench.backend = options.backend.options;
  options.bench.states.clear();
  for (const std::string& state : options.states) options.bench.states.push_back(*dtype_from(state));
  nlohmann::ordered_json j{{"schema", "gdnsim.bench/1"},
                           {"version", version()},
                           {"backends", nlohmann::ordered_json::array()},
                           {"measures", nlohmann::ordered_json::array()}};
  const std::vector<Measured> all = measure(options);
  require_some(all);
  for (const Measured& measured : all) {
    if (!options.output.json_on_stdout()) print(measured), print_notes(measured);
    j["backends"].push_back({{"name", measured.backend}, {"detail", measured.on}});
    for (auto& m : to_json(measured)) j["measures"].push_back(std::move(m));
  }
  options.output.write_json(j);
  return kMatch;
}

}  // namespace

void add_bench(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  CLI::App* command = root.add_subcommand("bench", "how fast each variant of a backend runs on this machine");
  command->footer(
      "Times are medians of one step of one layer at Qwen3-Next's TP1 shapes, in the stages\n"
      "  recurrence     golden: the recurrence alone, one thread, all heads\n"
      "  step, window   a whole step, conv update to gated norm, by itself or as one of many that run at once\n"
      "  kernels, cold  cuda: conv update to recurrence on the device alone, same blocks or others each time\n"
      "  norm           cuda: one call of the gated norm by itself, variants plain and fast\n"
      "and cuda's variant resident is a step of a window. \"floor\" is the least that the machine's own measured peak\n"
      "allows, as a share of the time. Run it on an idle machine.\n"
      "Example: gdnsim bench --backend golden --rows 1,16 --state f32,bf16\n"
      "         gdnsim bench --backend cuda --variant streamed,resident --stage kernels --rows 64");
  options->backend.add_to(*command);
  const auto names = [&](const char* flag, std::vector<std::string>& to, const char* what) {
    return command->add_option(flag, to, what)->type_name("LIST")->delimiter(',');
  };
  names("--stage", options->bench.stages, "nothing but these stages")
      ->check(CLI::IsMember(std::vector<std::string>(kBenchStages.begin(), kBenchStages.end())));
  names("--variant", options->bench.variants, "nothing but these variants");
  names("--contract", options->bench.contracts, "nothing but these contracts")
      ->check(CLI::IsMember(std::vector<std::string>(kBenchContracts.begin(), kBenchContracts.end())));
  command->add_option("--rows", options->bench.rows, "batch sizes, like 1,16,64")
      ->type_name("LIST")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  command->add_option("--state", options->states, "types of the state, like f32,bf16")
      ->type_name("LIST")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16"}));
  command->add_option("--seconds", options->bench.seconds, "time for each measure, about")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 60.0));
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
