// gdnsim verify: is a file whole and uncorrupted?
#include <algorithm>
#include <iostream>

#include "cli.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  std::string file;
  SliceOptions slice;
  OutputOptions output;
};

/// What was looked at, and the fault if there was one.
struct Finding {
  std::string text;
  LogFault fault;
  bool complete = true;
};

/// ", data of layers 0-3, steps 5:9 alone" unless it is all.
std::string slice_text(const Slice& asked, const Recording& recording) {
  if (asked.whole()) return "";
  const Slice slice = resolved(asked, whole_of(recording), recording.path());
  return "; data of layers " + layers_text(slice.layers) + ", steps " + std::to_string(slice.first_step) + ":" +
         std::to_string(slice.last_step) + " alone";
}

Finding verify_log(Log& log, const Slice& slice) {
  Finding finding;
  finding.fault = log.verify(slice);
  finding.complete = log.steps() == log.declared_steps() || slice.last_step >= 0;
  finding.text = "log, " + std::to_string(log.steps()) + " of " + std::to_string(log.declared_steps()) +
                 " steps complete" + slice_text(slice, log);
  return finding;
}

/// Reads the inputs, recorded taps and snapshots of a slice of a trace once; damage that HDF5 can see throws.
void read_slice(Trace& trace, const Slice& slice, Progress& progress) {
  Bytes first, second;
  StepInputs inputs;
  for (std::int64_t step = slice.first_step; step < slice.last_step; ++step) {
    for (int layer : slice.layers) {
      trace.inputs(step, layer, inputs);
      for (std::size_t i = 0; i < kTaps; ++i)
        if (trace.taps(layer).has(static_cast<Tap>(i))) trace.read_tap(static_cast<Tap>(i), step, layer, first);
    }
    progress.update(step + 1 - slice.first_step, slice.last_step - slice.first_step);
  }
  for (const Snapshot& snapshot : trace.snapshots())
    if (snapshot.step >= slice.first_step && snapshot.step < slice.last_step &&
        std::ranges::find(slice.layers, snapshot.layer) != slice.layers.end())
      trace.read_snapshot(snapshot, first, second);
}

Finding verify_trace(Trace& trace, const Slice& asked, const OutputOptions& output) {
  const Slice slice = resolved(asked, whole_of(static_cast<const Stream&>(trace)), trace.path());
  Progress progress("verify", output);
  read_slice(trace, slice, progress);
  const std::string none = " (a trace holds no digest of its own to compare with)";
  if (asked.whole()) return {"trace, every dataset readable; input digest " + trace.content_digest() + none, {}, true};
  return {"trace, readable" + slice_text(asked, trace) + none, {}, true};
}

Finding look(Input& input, const Slice& slice, const OutputOptions& output) {
  if (input.log) return verify_log(*input.log, slice);
  if (input.trace) return verify_trace(*input.trace, slice, output);
  if (!slice.whole())
    throw error(input.path, ": a recipe is valid or not as a whole: --layers and --steps select nothing");
  return {"recipe, valid", {}, true};
}

/// --contract of the run, as far as the log says it: a preset's name, or the file that was given.
std::string contract_words(const LogHeader& header) {
  const std::string name = contract_name(header.contracts), given = "given by --contract ";
  const auto is_preset = [&](const Contract& contract) {
    return std::ranges::any_of(contract_presets(), [&](const Contract& preset) { return preset == contract; });
  };
  if (is_preset(header.contracts.decode) && is_preset(header.contracts.mixed)) return " --contract " + shell_word(name);
  const std::string from = provenance_of(header, "contract_chosen_by");
  return " --contract " + (from.starts_with(given) ? shell_word(from.substr(given.size())) : std::string("FILE"));
}

std::string state_words(const LogHeader& header) {
  if (header.state.kind == StatePolicy::Kind::full) return "";
  if (header.state.kind == StatePolicy::Kind::digest) return " --state digest";
  return " --state every:" + std::to_string(header.state.n);
}

std::string tap_words(TapSet taps) {
  if (taps == TapSet{Tap::conv_out, Tap::core_out, Tap::norm_out}) return "";
  std::string names;
  for (std::size_t i = 0; i < kTaps; ++i)
    if (const Tap tap = static_cast<Tap>(i); taps.has(tap))
      names += (names.empty() ? " --taps " : ",") + std::string(name_of(tap));
  return names;
}

/// The run that goes on with an interrupted log, with the options that made it. SOURCE and FILE where the log does not say them.
std::string resume_command(const std::string& path, const LogHeader& header) {
  if (!provenance_of(header, "faults").empty()) return "";  // run --act-faults starts anew
  std::string source = provenance_of(header, header.source.starts_with("{") ? "recipe" : "trace"), slice;
  if (header.layers.size() < header.model.layer_ids.size()) slice += " --layers " + layers_text(header.layers);
  slice += " --steps " + std::to_string(header.first_step) + ":" + std::to_string(header.first_step + header.steps);
  const std::string points =
      header.checkpoint_every > 0 ? " --checkpoint every:" + std::to_string(header.checkpoint_every) : "";
  return "gdnsim run " + (source.empty() ? "SOURCE" : shell_word(source)) + " -o " + shell_word(path) +
         contract_words(header) + state_words(header) + points + tap_words(header.taps) + slice + " --resume";
}

int run(const Options& options) {
  options.output.check_target({options.file});
  Input input = open_input(options.file);
  const Finding finding = look(input, options.slice.parsed(), options.output);
  const bool whole = finding.fault.dataset.empty();
  const std::string next =
      whole && !finding.complete ? resume_command(options.file, input.log->header()) : std::string();
  nlohmann::ordered_json j{{"schema", "gdnsim.verify/1"},
                           {"file", options.file},
                           {"whole", whole},
                           {"complete", finding.complete},
                           {"text", finding.text}};
  if (!whole)
    j["fault"] = {{"dataset", finding.fault.dataset}, {"step", finding.fault.step}, {"what", finding.fault.what}};
  if (!next.empty()) j["next"] = next;
  if (!options.output.json_on_stdout()) {
    std::cout << printable(options.file) << ": " << finding.text << "\n";
    if (!whole)
      std::cout << "first fault: " << finding.fault.dataset << ", step " << finding.fault.step << ": "
                << finding.fault.what << "\n";
    if (!next.empty()) std::cout << "next      " << next << "\n";
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
  CLI::App* command = root.add_subcommand("verify",
                                          "recompute a log's digests, read a trace or a recipe whole: exit 0 "
                                          "whole, 1 corrupted, 2 unreadable or incomplete");
  command->footer("Example: gdnsim verify run.log.h5");
  command->add_option("FILE", options->file, "a log, a trace or a recipe")->required();
  options->slice.add_to(*command, false);  // the digest of an output is of all rows of a step
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
