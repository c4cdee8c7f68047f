// gdnsim diff: two logs or traces, nothing recomputed.
#include "cli.hpp"
#include "gdnsim/diff.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  std::string a, b;
  SliceOptions slice;
  OutputOptions output;
};

std::string repro_command(const Options& options, const Report& report) {
  SliceOptions slice = options.slice;
  if (const auto& first = report.first()) {
    slice.layers = std::to_string(first->layer);
    slice.steps = std::to_string(first->step) + ":" + std::to_string(first->step + 1);
  }
  return "gdnsim diff " + shell_word(options.a) + " " + shell_word(options.b) + slice.words();
}

int run(const Options& options) {
  options.output.check_target({options.a, options.b});
  Input a = open_input(options.a), b = open_input(options.b);
  Progress progress("diff", options.output);
  const DiffResult result = diff(a.recording(), b.recording(), options.slice.parsed(),
                                 [&](std::int64_t done, std::int64_t total) { progress.update(done, total); });
  Report report = report_of(result);
  report.files = {options.a, options.b};
  report.subject = "layers " + layers_text(result.slice.layers) + ", steps " + std::to_string(result.slice.first_step) +
                   ":" + std::to_string(result.slice.last_step) + pick_text(result.slice.pick) + "; " +
                   describe(a.recording().model());
  report.repro = repro_command(options, report);
  if (report.verdict == Verdict::diverged)
    report.next = "gdnsim replay " + shell_word(options.a) + options.slice.words();
  options.output.put(report);
  return exit_code(report.verdict);
}

}  // namespace

void add_diff(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      root.add_subcommand("diff", "compare two logs or traces without recomputing; A's words are wanted, B's are got");
  command->footer("Example: gdnsim diff rollout.log.h5 trainer.log.h5");
  command->add_option("A", options->a, "a trace or log")->required();
  command->add_option("B", options->b, "a trace or log")->required();
  options->slice.add_to(*command);
  options->output.add_to(*command);
  options->output.add_html_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
