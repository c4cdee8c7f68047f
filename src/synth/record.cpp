#include "gdnsim/record.hpp"

#include "gdnsim/recipe.hpp"
#include "gdnsim/replay.hpp"
#include "gdnsim/trace.hpp"

namespace gdnsim {
namespace {

bool snapshot_after(std::int64_t step, std::int64_t every, std::int64_t steps) {
  return step + 1 == steps || (every > 0 && (step + 1) % every == 0);
}

/// Writes taps and, after the steps that want one, a snapshot of every block.
class TraceRecorder final : public Observer {
 public:
  TraceRecorder(TraceWriter& writer, const TraceHeader& header, const RecordOptions& options)
      : writer_(writer),
        header_(header),
        options_(options),
        recurrent_(header.model.state_bytes()),
        conv_(header.model.conv_bytes()) {}

  bool looks_at(const ComingStep& coming, std::vector<Look>& looks) override {
    if (snapshot_after(coming.step, options_.snapshot_every, header_.steps))
      for (std::int32_t block = 0; block < header_.model.num_blocks; ++block) looks.push_back({block, true});
    return true;
  }
  void after(const StepView& view) override {
    for (std::size_t i = 0; view.executed && i < kTaps; ++i)
      if (const Tap tap = static_cast<Tap>(i); header_.taps.has(tap))
        writer_.write_tap(tap, view.step, view.layer, view.outputs[tap]);
    if (!snapshot_after(view.step, options_.snapshot_every, header_.steps)) return;
    for (std::int32_t block = 0; block < header_.model.num_blocks; ++block) {
      view.pool.read(view.layer, block, recurrent_, conv_);
      writer_.write_snapshot(next_++, recurrent_, conv_);
    }
  }
  void step_done(std::int64_t step) override {
    if (options_.progress) options_.progress(step + 1, header_.steps);
  }

 private:
  TraceWriter& writer_;
  const TraceHeader& header_;
  const RecordOptions& options_;
  std::int64_t next_ = 0;  // snapshots come in the order in which the header lists them: step, layer, block
  Bytes recurrent_, conv_;
};

TraceHeader header_with_recording(Stream& stream, const RecordOptions& options) {
  TraceHeader header = trace_header_of(stream);
  header.taps = options.taps;
  header.provenance = options.provenance;
  for (int layer = 0; layer < header.model.layers(); ++layer)
    if (!has_norm(stream, layer)) header.taps.remove(Tap::rstd), header.taps.remove(Tap::norm_out);
  for (std::int64_t step = 0; step < header.steps; ++step) {
    if (!snapshot_after(step, options.snapshot_every, header.steps)) continue;
    for (int layer = 0; layer < header.model.layers(); ++layer)
      for (std::int32_t block = 0; block < header.model.num_blocks; ++block)
        header.snapshots.push_back({step, layer, block, static_cast<std::int64_t>(header.snapshots.size())});
  }
  return header;
}

}  // namespace

void record_trace(Stream& stream, Backend& backend, const ContractSet& contracts, const std::string& path,
                  const RecordOptions& options) {
  const TraceHeader header = header_with_recording(stream, options);
  require_defined(contracts.decode, header.model);
  require_defined(contracts.mixed, header.model);
  const std::vector<int> layers = whole_of(stream).layers;
  const auto pool = backend.make_pool(header.model, layers);
  const auto writer = create_trace(path, header, options.force);
  copy_stream(stream, *writer);
  TraceRecorder recorder(*writer, header, options);
  const Simulation simulation{stream, backend, contracts, layers, header.steps, header.taps};
  if (options.faults.empty())
    simulate(simulation, *pool, recorder);
  else
    simulate_with_faults(simulation, options.faults, *pool, recorder);
  writer->finish();
}

}  // namespace gdnsim
