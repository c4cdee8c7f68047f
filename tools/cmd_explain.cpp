// gdnsim explain: why a recording differs from its replay.
#include <algorithm>

#include "cli.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/explain.hpp"
#include "gdnsim/inner.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  RecordingOptions recording;
  double seconds = 120;
  SliceOptions slice;
  BackendChoice backend;
  OutputOptions output;
};

/// The smallest slice that shows the first divergence, under the contract that the provider is held to.
std::string repro_command(const Options& options, const Input& input, const Explanation& found) {
  std::string command = "gdnsim explain" + options.recording.words(input, found.replay.contract.contracts);
  if (const auto& first = found.replay.first()) command += " --layers " + std::to_string(first->layer);
  return command + options.slice.row_words();
}

std::string next_command(const Options& options, const Explanation& found) {
  if (found.replay.verdict != Verdict::diverged) return "";
  const std::string file = shell_word(options.recording.file);
  if (!found.complete) return "gdnsim replay " + file + " --mode local --html report.html";
  const bool rounding = std::ranges::any_of(found.mechanisms, [](const Mechanism& m) {
    return m.scope.from_step < 0 && m.scope.row < 0 && m.scope.block < 0 && m.proof == Proof::rerun;
  });
  if (rounding) return "gdnsim fit " + file + " -o my.contract";
  return "gdnsim replay " + file + " --html report.html";
}

Report report_of_explanation(const Options& options, Input& input, Backend& backend, const std::string& reason,
                             const Explanation& found) {
  Report report = report_of(found.replay);
  report.command = "explain";
  report.files = {options.recording.file};
  report.subject = subject_of(input, input.stream(), found.replay.slice);
  report.backend = reason + "; " + backend.description();
  report.searched = true;
  report.mechanisms = found.mechanisms;
  report.tried = found.tried;
  report.inner = inner_values(input.stream(), input.recording(), backend, found.replay);
  if (report.first()) report.writer = last_writer(input.stream(), *report.first());
  report.repro = repro_command(options, input, found);
  report.next = next_command(options, found);
  return report;
}

int run(const Options& options) {
  options.output.check_target({options.recording.file, options.recording.contract, options.recording.trace});
  ExplainOptions explain_options;
  explain_options.slice = options.slice.parsed();
  explain_options.seconds = options.seconds;
  Input input = options.recording.open();
  const NamedContracts named = named_contracts(options.recording.contract, input);
  explain_options.contracts = named.contracts;
  explain_options.contracts_from = named.from;
  const ChosenBackend chosen = options.backend.choose();
  Progress progress("explain", options.output);
  explain_options.progress = [&](const std::string& stage) { progress.stage(stage); };
  const Explanation found = explain(input.stream(), input.recording(), *chosen.backend, explain_options);
  options.output.put(report_of_explanation(options, input, *chosen.backend, chosen.reason, found));
  return exit_code(found.replay.verdict);
}

}  // namespace

void add_explain(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  options->backend.name = "golden";
  options->backend.options.threads = 1;  // slices are small: threads would mostly wait for each other
  CLI::App* command = root.add_subcommand(
      "explain", "name the mechanism behind a divergence: re-run hypotheses until one gives the recorded bits");
  command->footer("Example: gdnsim explain traces/h200_k64_3layers.h5 --contract golden");
  options->recording.add_to(*command, "what the provider is held to: auto, a preset's name or a contract file");
  command->add_option("--seconds", options->seconds, "the longest the search may take, in processor time")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  options->slice.add_to(*command);
  options->backend.add_to(*command);
  options->output.add_to(*command);
  options->output.add_html_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
