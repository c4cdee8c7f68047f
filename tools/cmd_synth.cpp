// gdnsim synth: a synthetic trace from a recipe; with --record also what a contract makes of it.
#include <iostream>

#include "cli.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/simulator.hpp"

namespace gdnsim::tools {
namespace {

struct Options {
  std::string recipe, trace, contract = "golden";
  std::int64_t seed = -1, snapshots = 0;
  bool record = false;
  BackendChoice backend;
  OutputOptions output;
};

bool snapshot_after(std::int64_t step, std::int64_t every, std::int64_t steps) {
  return (step + 1) % every == 0 || step + 1 == steps;
}

/// Writes taps and, after the steps that want one, a snapshot of every block.
class TraceRecorder final : public Observer {
 public:
  TraceRecorder(TraceWriter& writer, const TraceHeader& header, std::int64_t every, Progress& progress)
      : writer_(writer), header_(header), every_(every), progress_(progress), recurrent_(header.model.state_bytes()), conv_(header.model.conv_bytes()) {}

  void after(const StepView& view) override {
    for (std::size_t i = 0; i < kTaps; ++i)
      if (const Tap tap = static_cast<Tap>(i); header_.taps.has(tap)) writer_.write_tap(tap, view.step, view.layer, view.outputs[tap]);
    if (!snapshot_after(view.step, every_, header_.steps)) return;
    for (std::int32_t block = 0; block < header_.model.num_blocks; ++block) {
      view.pool.read(view.layer, block, recurrent_, conv_);
      writer_.write_snapshot(next_++, recurrent_, conv_);
    }
  }
  void step_done(std::int64_t step) override { progress_.update(step + 1, header_.steps); }

 private:
  TraceWriter& writer_;
  const TraceHeader& header_;
  const std::int64_t every_;
  Progress& progress_;
  std::int64_t next_ = 0;
  Bytes recurrent_, conv_;
};

void declare_recording(TraceHeader& header, Stream& stream, std::int64_t every) {
  header.taps = {Tap::conv_out, Tap::core_out};
  if (has_norm(stream, 0)) header.taps.add(Tap::norm_out);
  for (std::int64_t step = 0; step < header.steps; ++step) {
    if (!snapshot_after(step, every, header.steps)) continue;
    for (int layer = 0; layer < header.model.layers(); ++layer)
      for (std::int32_t block = 0; block < header.model.num_blocks; ++block)
        header.snapshots.push_back({step, layer, block, static_cast<std::int64_t>(header.snapshots.size())});
  }
}

void record(const Options& options, Stream& stream, Progress& progress) {
  TraceHeader header = trace_header_of(stream);
  const std::int64_t every = options.snapshots > 0 ? options.snapshots : header.steps;
  declare_recording(header, stream, every);
  const ContractSet contracts = load_contracts(options.contract);
  header.provenance = {{"engine", "gdnsim synth"}, {"contract", contracts.decode.name}};
  const ChosenBackend chosen = options.backend.choose();
  const auto pool = chosen.backend->make_pool(header.model, whole_of(stream).layers);
  require_defined(contracts.decode, header.model);
  const auto writer = create_trace(options.trace, header, options.output.force);
  copy_stream(stream, *writer);
  TraceRecorder recorder(*writer, header, every, progress);
  simulate({stream, *chosen.backend, contracts, whole_of(stream).layers, header.steps, header.taps}, *pool, recorder);
  writer->finish();
}

int run(const Options& options) {
  options.output.check_target();
  if (kind_of_file(options.recipe) != FileKind::recipe) throw error(options.recipe, ": expected a recipe (JSON, gdnsim.recipe/1)");
  Recipe recipe = load_recipe(options.recipe);
  if (options.seed >= 0) recipe.seed = static_cast<std::uint64_t>(options.seed);
  const auto stream = make_recipe_stream(recipe);
  {
    Progress progress("synth", options.output);
    if (options.record) record(options, *stream, progress);
    else write_trace(*stream, options.trace, options.output.force, {}, [&](std::int64_t done) { progress.update(done, stream->steps()); });
  }
  const std::string digest = open_trace(options.trace)->source();
  if (!options.output.json_on_stdout())
    std::cout << options.trace << ": " << stream->steps() << " steps, " << stream->rows() << " rows, " << stream->model().layers() << " layers, " << digest << "\n";
  options.output.write_json({{"schema", "gdnsim.synth/1"}, {"trace", options.trace}, {"seed", recipe.seed}, {"steps", stream->steps()}, {"source", digest}});
  return kMatch;
}

}  // namespace

void add_synth(CLI::App& root, Job& job) {
  auto options = std::make_shared<Options>();
  CLI::App* command = root.add_subcommand("synth", "write a synthetic trace from a recipe: the same bytes on every machine");
  command->footer("Example: gdnsim synth traces/recipes/tiny.json -o tiny.h5 --seed 7 --record --contract golden");
  command->add_option("RECIPE", options->recipe, "a recipe (JSON)")->required();
  command->add_option("-o,--output", options->trace, "the trace to write")->required()->type_name("TRACE");
  command->add_option("--seed", options->seed, "in place of the recipe's seed")->check(CLI::NonNegativeNumber);
  command->add_flag("--record", options->record, "also run it and record outputs and states, so that it can be replayed");
  command->add_option("--contract", options->contract, "contract to record under")->capture_default_str();
  command->add_option("--snapshots", options->snapshots, "record all blocks every N steps (default: after the last)")->check(CLI::PositiveNumber)->type_name("N");
  options->backend.add_to(*command);
  options->output.add_to(*command);
  command->callback([options, &job] { job = [options] { return run(*options); }; });
}

}  // namespace gdnsim::tools
