// gdnsim explain: why a recording differs from its replay.
#include <iostream>

#include "cli.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/explain.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  std::string file, contract = "auto", trace;
  double seconds = 120;
  SliceOptions slice;
  BackendChoice backend;
  OutputOptions output;
};

int run(const Options& options) {
  options.output.check_target({options.file, options.contract, options.trace});
  ExplainOptions explain_options;
  explain_options.slice = options.slice.parsed();
  explain_options.seconds = options.seconds;
  Input input = open_input(options.file);
  Recording& recording = input.recording();
  if (input.log) open_source(input, options.trace);
  if (options.contract != "auto") {
    explain_options.contracts = load_contracts(options.contract);
    explain_options.contracts_from = "given by --contract " + options.contract;
  } else if (input.log) {
    explain_options.contracts = input.log->header().contracts;
    explain_options.contracts_from = "the log says so";
  }
  const ChosenBackend chosen = options.backend.choose();
  const Explanation found = explain(input.stream(), recording, *chosen.backend, explain_options);
  Report report = report_of(found.replay);
  report.command = "explain";
  report.files = {options.file};
  report.subject = "trace";
  report.backend = chosen.reason + "; " + chosen.backend->description();
  report.searched = true;
  report.mechanisms = found.mechanisms;
  report.tried = found.tried;
  if (options.output.json_on_stdout())
    say(options.output, verdict_line(report));
  else
    print_text(std::cout, report);
  options.output.write_json(to_json(report));
  return exit_code(report.verdict);
}

}  // namespace

void add_explain(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  options->backend.name = "golden";
  options->backend.options.threads = 1;  // slices are small: threads would mostly wait for each other
  CLI::App* command = root.add_subcommand(
      "explain", "name the mechanism behind a divergence: re-run hypotheses until one gives the recorded bits");
  command->footer("Example: gdnsim explain traces/h200_k64_3layers.h5 --contract golden");
  command->add_option("FILE", options->file, "a trace with recorded outputs, or a log")->required();
  command
      ->add_option("--contract", options->contract,
                   "what the provider is held to: auto, a preset's name or a contract file")
      ->capture_default_str();
  command->add_option("--seconds", options->seconds, "the longest the search may take")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  command->add_option("--trace", options->trace, "the trace a log was made from (default: where the log says)")
      ->check(not_empty());
  options->slice.add_to(*command);
  options->backend.add_to(*command);
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
