// gdnsim verify: is a file whole and uncorrupted?
#include <iostream>

#include "cli.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  std::string file;
  OutputOptions output;
};

/// What was looked at, and the fault if there was one.
struct Finding {
  std::string text;
  LogFault fault;
  bool complete = true;
};

Finding verify_log(Log& log) {
  Finding finding;
  finding.fault = log.verify();
  finding.complete = log.steps() == log.declared_steps();
  finding.text =
      "log, " + std::to_string(log.steps()) + " of " + std::to_string(log.declared_steps()) + " steps complete";
  return finding;
}

/// Reads every recorded tap and snapshot of a trace once (`content_digest` reads the inputs); damage that HDF5 can see throws.
Finding verify_trace(Trace& trace, const OutputOptions& output) {
  Finding finding;
  const std::string digest = trace.content_digest();
  Progress progress("verify", output);
  Bytes first, second;
  for (std::int64_t step = 0; step < trace.steps(); ++step) {
    for (int layer = 0; layer < trace.model().layers(); ++layer)
      for (std::size_t i = 0; i < kTaps; ++i)
        if (trace.taps(layer).has(static_cast<Tap>(i))) trace.read_tap(static_cast<Tap>(i), step, layer, first);
    progress.update(step + 1, trace.steps());
  }
  for (const Snapshot& snapshot : trace.snapshots()) trace.read_snapshot(snapshot, first, second);
  finding.text =
      "trace, every dataset readable; input digest " + digest + " (a trace holds no digest of its own to compare with)";
  return finding;
}

Finding look(Input& input, const OutputOptions& output) {
  if (input.log) return verify_log(*input.log);
  if (input.trace) return verify_trace(*input.trace, output);
  return {"recipe, valid", {}, true};
}

int run(const Options& options) {
  options.output.check_target({options.file});
  Input input = open_input(options.file);
  const Finding finding = look(input, options.output);
  const bool whole = finding.fault.dataset.empty();
  nlohmann::ordered_json j{{"schema", "gdnsim.verify/1"},
                           {"file", options.file},
                           {"whole", whole},
                           {"complete", finding.complete},
                           {"text", finding.text}};
  if (!whole)
    j["fault"] = {{"dataset", finding.fault.dataset}, {"step", finding.fault.step}, {"what", finding.fault.what}};
  if (!options.output.json_on_stdout()) {
    std::cout << options.file << ": " << finding.text << "\n";
    if (!whole)
      std::cout << "first fault: " << finding.fault.dataset << ", step " << finding.fault.step << ": "
                << finding.fault.what << "\n";
    std::cout << "verdict: "
              << (!whole             ? "diverged, corrupted"
                  : finding.complete ? "match, whole"
                                     : "inconclusive, incomplete")
              << "\n";
  }
  options.output.write_json(j);
  return !whole ? kDiverged : finding.complete ? kMatch : kFailed;
}

}  // namespace

void add_verify(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  CLI::App* command = root.add_subcommand(
      "verify",
      "recompute a log's digests, or read a trace whole: exit 0 whole, 1 corrupted, 2 unreadable or incomplete");
  command->footer("Example: gdnsim verify run.log.h5");
  command->add_option("FILE", options->file, "a log or a trace")->required();
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
