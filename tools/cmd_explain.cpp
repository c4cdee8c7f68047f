// gdnsim explain: why a recording differs from its replay.
#include <algorithm>
#include <set>

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

/// The smallest slice that shows the same: of what was asked for, the layer of the first divergence, under the contract that the
/// provider is held to.
std::string repro_command(const Options& options, const Input& input, const Explanation& found) {
  SliceOptions slice = options.slice;
  if (const auto& first = found.replay.first()) slice.layers = std::to_string(first->layer);
  return "gdnsim explain" + options.recording.words(input, found.replay.contract.contracts) + slice.words();
}

bool names(const Explanation& found, const std::string& id) {
  return std::ranges::find(found.mechanisms, id, &Mechanism::id) != found.mechanisms.end();
}

/// A choice of the contract that holds throughout: then the contract is the thing to correct.
bool of_contract(const Mechanism& m) {
  static const std::set<std::string> ids{
      "conv-product", "conv-taps",       "bias-order",      "exp",         "div",      "sqrt",
      "softplus",     "beta-bf16",       "params-bf16",     "gate-domain", "qk-eps",   "qk-norm-missing",
      "scale-order",  "dot-fma",         "dot-order",       "update-fma",  "head-map", "state-store-bf16",
      "decay-lost",   "norm-gate-order", "norm-cast-order", "kernel-path"};
  const bool throughout = m.scope.from_step < 0 && m.scope.row < 0 && m.scope.block < 0;
  return throughout && m.proof == Proof::rerun && ids.contains(m.id);
}

/// The first divergence reads a block that nothing had written, and nothing explains it.
bool never_loaded(const Explanation& found, const Report& report) {
  return !found.complete && report.writer && report.writer->step < 0 && !report.first()->event;
}

std::string next_command(const Options& options, const Input& input, const Explanation& found, const Report& report) {
  const RecordingOptions& recording = options.recording;
  const std::string file = shell_word(recording.file), slice = options.slice.words();
  const std::string replay = "gdnsim replay" + recording.words(input, found.replay.contract.contracts) + slice;
  if (found.replay.verdict == Verdict::match) return "";
  if (found.replay.verdict == Verdict::inconclusive) return input.look_again();
  if (names(found, "not-repeatable") || (found.complete && names(found, "memory-corruption")))
    return input.log ? input.look_again() : "gdnsim diff " + file + " again.h5" + slice;
  if (never_loaded(found, report)) return replay + " --poison";
  if (names(found, "model-field")) return "gdnsim info " + file;
  if (!found.complete) return replay + (found.replay.local.done ? " --mode local" : "") + " --html report.html";
  if (std::ranges::any_of(found.mechanisms, of_contract))
    return "gdnsim fit " + file + recording.trace_words() + slice + " -o my.contract";
  return replay + " --html report.html";
}

/// What a reader should do, or ask, where no command can.
void add_notes(const Explanation& found, const Input& input, Report& report) {
  if (never_loaded(found, report))
    report.notes.push_back("block " + std::to_string(report.writer->block) +
                           " was never loaded: did the capture miss its starting state?");
  if (!input.log && (names(found, "memory-corruption") || names(found, "not-repeatable")))
    report.notes.push_back(
        "record the same batch again, as again.h5: the same word wrong again is software, another or none is memory");
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
  report.next = next_command(options, input, found, report);
  add_notes(found, input, report);
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
