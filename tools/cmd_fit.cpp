// gdnsim fit: find the contract of an unknown provider from a recording alone.
#include <iostream>
#include <optional>

#include "cli.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/fit.hpp"

namespace gdnsim::tools {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string file, contract, trace;
  bool partial = false;
  double seconds = 45;
  SliceOptions slice;
  BackendChoice backend;
  OutputOptions output;
};

enum class Outcome { match, diverged, inconclusive };

/// Exact when the whole slice is reproduced; a part when at least one recorded stage is.
Outcome outcome_of(const FitResult& result) {
  if (result.proof.verdict == Verdict::match) return Outcome::match;
  for (const FitPath& path : result.paths)
    for (const FitStage& stage : path.stages)
      if (stage.compared > 0 && stage.differing == 0) return Outcome::diverged;
  return Outcome::inconclusive;
}

std::string verdict_of(const FitResult& result) {
  const Comparison& counted = result.proof.carried.done ? result.proof.carried : result.proof.local;
  constexpr const char* words[] = {"match", "diverged", "inconclusive"};
  std::ostringstream text;
  text << "verdict: " << words[static_cast<int>(outcome_of(result))] << ", compared " << counted.compared()
       << ", differing " << counted.differing();
  return text.str();
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string summary_of(const FitPath& path) {
  if (path.contract.name != "fitted") return "equals preset " + path.contract.name;
  return "preset " + path.nearest + " with " + joined(path.changes);
}

void print_path(const FitPath& path) {
  std::cout << "path      " << name_of(path.path) << ": " << summary_of(path) << "\n";
  if (path.presets.size() > 1)
    std::cout << "          presets that the probes do not tell apart: " << joined(path.presets) << "\n";
  for (const FitStage& stage : path.stages) {
    std::cout << "  " << std::left << std::setw(10) << stage.name;
    if (!stage.recorded)
      std::cout << "nothing recorded to fit it by\n";
    else
      std::cout << stage.compared - stage.differing << " of " << stage.compared << " elements match to the bit; "
                << stage.probe << "; " << stage.trials << " contracts tried\n";
  }
  for (const FitRow& row : path.except)
    std::cout << "except    step " << row.step << ", row " << row.row << " of layer " << path.layer << ": " << row.stage
              << " differs there and matches elsewhere: not arithmetic\n";
  for (const Undecided& field : path.undecided)
    std::cout << "undecided " << field.field << ": " << field.chosen << " could be " << joined(field.others)
              << (field.because.empty() ? "" : " (" + field.because + ")") << "\n";
}

void print_proof(const FitResult& result) {
  const Comparison& counted = result.proof.carried.done ? result.proof.carried : result.proof.local;
  std::cout << "proof     the whole slice (layers " << layers_text(result.proof.slice.layers) << ", steps "
            << result.proof.slice.first_step << ":" << result.proof.slice.last_step
            << pick_text(result.proof.slice.pick) << ") under this contract\n";
  for (std::size_t i = 0; i < kTaps; ++i)
    if (counted.counts[i].compared > 0)
      std::cout << "  " << std::left << std::setw(11) << name_of(static_cast<Tap>(i))
                << counted.counts[i].compared - counted.counts[i].differing << " of " << counted.counts[i].compared
                << " elements match to the bit\n";
  for (const FitLayer& layer : result.layers)
    std::cout << "layer     " << layer.found.layer << ", " << name_of(layer.found.path) << ": "
              << summary_of(layer.found) << (layer.match ? "" : " on its probe, but not on all of the layer") << "\n";
  if (!result.holds.empty()) std::cout << "holds     on all of layers " << layers_text(result.holds) << "\n";
  if (const auto& first = result.proof.first())
    std::cout << "first     divergence: step " << first->step << ", layer " << first->layer << ", "
              << name_of(first->tap) << ", row " << first->row << "\n";
  if (!result.proof.inconclusive_because.empty())
    std::cout << "because   " << result.proof.inconclusive_because << "\n";
}

Json path_json(const FitPath& path) {
  Json j{{"path", name_of(path.path)},
         {"layer", path.layer},
         {"contract", path.contract.name},
         {"nearest_preset", path.nearest}};
  j["changes"] = path.changes;
  j["presets"] = path.presets;
  for (const auto& [field, value] : contract_fields(path.contract)) j["fields"][field] = value;
  j["stages"] = Json::array();
  for (const FitStage& stage : path.stages)
    j["stages"].push_back({{"name", stage.name},
                           {"recorded", stage.recorded},
                           {"probe", stage.probe},
                           {"contracts_tried", stage.trials},
                           {"compared", stage.compared},
                           {"differing", stage.differing}});
  j["except"] = Json::array();
  for (const FitRow& row : path.except)
    j["except"].push_back({{"stage", row.stage}, {"step", row.step}, {"row", row.row}});
  j["undecided"] = Json::array();
  for (const Undecided& field : path.undecided)
    j["undecided"].push_back(
        {{"field", field.field}, {"chosen", field.chosen}, {"others", field.others}, {"because", field.because}});
  return j;
}

Json to_json(const FitResult& result, const Options& options) {
  constexpr const char* words[] = {"match", "diverged", "inconclusive"};
  const Comparison& counted = result.proof.carried.done ? result.proof.carried : result.proof.local;
  Json j{{"schema", "gdnsim.fit/1"},
         {"file", options.file},
         {"verdict", words[static_cast<int>(outcome_of(result))]},
         {"contract_text", to_text(result.contracts)},
         {"paths", Json::array()}};
  for (const FitPath& path : result.paths) j["paths"].push_back(path_json(path));
  j["holds"] = result.holds;
  j["layers"] = Json::array();
  for (const FitLayer& layer : result.layers) {
    j["layers"].push_back(path_json(layer.found));
    j["layers"].back()["match"] = layer.match;
  }
  Json taps = Json::object();
  for (std::size_t i = 0; i < kTaps; ++i)
    if (counted.counts[i].compared > 0)
      taps[std::string(name_of(static_cast<Tap>(i)))] = {{"compared", counted.counts[i].compared},
                                                         {"differing", counted.counts[i].differing}};
  j["proof"] = {{"layers", result.proof.slice.layers},
                {"steps", {result.proof.slice.first_step, result.proof.slice.last_step}},
                {"compared", counted.compared()},
                {"differing", counted.differing()},
                {"taps", taps}};
  j["search_seconds"] = result.search_seconds;
  j["out_of_time"] = result.out_of_time;
  return j;
}

/// A contract that is not exact is written when it was asked for all the same.
bool writes(const FitResult& result, const Options& options) {
  return !options.contract.empty() && (options.partial || outcome_of(result) == Outcome::match);
}

/// What was found by a long search is shown also when it cannot be written: the error waits.
std::optional<Error> try_to_write(const FitResult& result, const Options& options) {
  try {
    if (writes(result, options)) write_output(options.contract, to_text(result.contracts));
  } catch (const Error& problem) {
    return problem;
  }
  return std::nullopt;
}

/// Says before the work that a file would be in the way.
void check_contract_target(const Options& options) {
  if (options.contract.empty()) return;
  require_apart(options.contract, options.file);
  options.output.check_file("-o", options.contract, {});
}

/// `kept`: the contract is in the file that was asked for.
void print_result(const FitResult& result, const Options& options, const std::string& backend, bool kept) {
  std::cout << "fit " << printable(options.file) << "\nbackend   " << backend << "\n";
  for (const FitPath& path : result.paths) print_path(path);
  print_proof(result);
  std::cout << "time      " << std::fixed << std::setprecision(1) << result.search_seconds << " s of search (wall time)"
            << (result.out_of_time ? ", which its limit of processor time ended (--seconds)" : "") << "\n";
  if (!writes(result, options) && !options.contract.empty())
    std::cout
        << "contract  not written: it does not reproduce every recorded element (--partial writes it all the same)\n";
  else if (!kept)
    std::cout << "\n" << to_text(result.contracts) << "\n";
  else
    std::cout << "contract  " << options.contract << "\n"
              << "next      gdnsim replay " << shell_word(options.file) << " --contract "
              << shell_word(options.contract) << "\n";
  std::cout << verdict_of(result) << "\n";
}

int run(const Options& options) {
  options.output.check_target({options.file, options.contract, options.trace});
  check_contract_target(options);
  Input input = open_input(options.file);
  Recording& recording = input.recording();
  require_trace_of_log(input, options.trace);
  if (input.log) open_source(input, options.trace);
  const ChosenBackend chosen = options.backend.choose();
  FitOptions fit_options;
  fit_options.slice = options.slice.parsed();
  fit_options.seconds = options.seconds;
  const FitResult result = fit(input.stream(), recording, *chosen.backend, fit_options);
  const std::optional<Error> failed = try_to_write(result, options);
  if (options.output.json_on_stdout())
    say(options.output, verdict_of(result));
  else
    print_result(result, options, chosen.reason + "; " + chosen.backend->description(),
                 !options.contract.empty() && !failed);
  options.output.write_json(to_json(result, options));
  if (failed) throw *failed;
  return static_cast<int>(outcome_of(result));
}

}  // namespace

void add_fit(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  options->backend.name = "golden";
  options->backend.options.threads = 1;  // probes are small: threads would mostly wait for each other
  CLI::App* command = root.add_subcommand("fit", "find the contract of an unknown provider from a recording alone");
  command->footer("Example: gdnsim fit traces/h200_k64_3layers.h5 -o my.contract");
  command->add_option("FILE", options->file, "a trace with recorded outputs, or a log")->required();
  command->add_option("-o,--output", options->contract, "write the contract to FILE, for --contract")
      ->type_name("FILE")
      ->check(not_empty());
  command->add_flag("--partial", options->partial, "write it even when it does not reproduce every recorded element");
  command->add_option("--seconds", options->seconds, "the longest the search may take, in processor time")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  add_trace_option(*command, options->trace);
  options->slice.add_to(*command);
  options->backend.add_to(*command);
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
