// gdnsim pack: one self-contained file of the smallest slice that shows a finding.
#include <filesystem>
#include <iostream>

#include "cli.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/pack.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  RecordingOptions recording;
  std::string bundle;
  SliceOptions slice;
  BackendChoice backend;
  OutputOptions output;
};

/// What the slice is packed under, and the slice itself: as asked for, or around the first divergence.
ReplayResult look(const Options& options, Input& input, Backend& backend) {
  ReplayOptions replay_options;
  replay_options.slice = options.slice.parsed();
  replay_options.contracts = named_contracts(options.recording.contract, input).contracts;
  return replay(input.stream(), input.recording(), backend, replay_options);
}

Slice slice_for(const Options& options, const Stream& stream, const ReplayResult& seen) {
  if (!options.slice.layers.empty() || !options.slice.steps.empty()) return seen.slice;
  if (!seen.first())
    throw error(options.recording.file,
                ": every recorded bit comes out, so there is no finding to pack; --layers and --steps pack a slice all "
                "the same");
  Slice slice = slice_of(*seen.first());
  slice.first_step = launch_of(stream, slice.first_step).first;
  slice.pick = seen.slice.pick;
  return slice;
}

int run(const Options& options) {
  options.output.check_target(
      {options.recording.file, options.bundle, options.recording.contract, options.recording.trace});
  require_apart(options.bundle, options.recording.file);
  if (!options.output.force && std::filesystem::exists(options.bundle))
    throw error(options.bundle, ": exists already; --force replaces it");
  Input input = options.recording.open();
  const ChosenBackend chosen = options.backend.choose();
  const ReplayResult seen = look(options, input, *chosen.backend);
  PackOptions pack_options;
  pack_options.slice = slice_for(options, input.stream(), seen);
  pack_options.contracts = seen.contract.contracts;
  pack_options.force = options.output.force;
  const Slice& slice = pack_options.slice;
  const std::string steps = std::to_string(slice.first_step) + ":" + std::to_string(slice.last_step);
  pack_options.provenance = {
      {"note", "layers " + layers_text(slice.layers) + ", steps " + steps + pick_text(slice.pick) + " of " +
                   std::filesystem::path(options.recording.file).filename().string()},
      {kBundleContract, to_text(pack_options.contracts)}};
  pack(input.stream(), input.recording(), *chosen.backend, options.bundle, pack_options);
  const std::uint64_t bytes = std::filesystem::file_size(options.bundle);
  if (!options.output.json_on_stdout()) {
    std::cout << options.bundle << ": layers " << layers_text(slice.layers) << ", steps " << steps
              << pick_text(slice.pick) << " of " << options.recording.file << ", " << bytes_text(bytes) << "\n";
    std::cout << "next      gdnsim replay " << shell_word(options.bundle) << "\n";
  }
  options.output.write_json({{"schema", "gdnsim.pack/1"},
                             {"bundle", options.bundle},
                             {"layers", slice.layers},
                             {"steps", {slice.first_step, slice.last_step}},
                             {"contract", contract_name(pack_options.contracts)},
                             {"bytes", bytes}});
  return kMatch;
}

}  // namespace

void add_pack(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  options->backend.name = "golden";
  CLI::App* command =
      root.add_subcommand("pack", "write the smallest slice that shows a finding as one file that replays anywhere");
  command->footer("Example: gdnsim pack rollout.h5 -o finding.h5");
  options->recording.add_to(*command, "auto, a preset's name or a contract file");
  command->add_option("-o,--output", options->bundle, "the bundle to write: a trace")
      ->required()
      ->type_name("BUNDLE")
      ->check(not_empty());
  options->slice.add_to(*command);
  options->backend.add_to(*command);
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
