#include "support/memory_run.hpp"

#include <algorithm>
#include <numeric>

#include <gdnsim/simulator.hpp>

namespace gdnsim::test {

MemoryStream::MemoryStream(Stream& from) : model_(from.model()), with_z(from.has_z(0)) {
  for (int layer = 0; layer < model_.layers(); ++layer) all_params.push_back(from.params(layer));
  for (std::int64_t step = 0; step < from.steps(); ++step) {
    plans.push_back(from.plan(step));
    all_inputs.emplace_back(static_cast<std::size_t>(model_.layers()));
    for (int layer = 0; layer < model_.layers(); ++layer) from.inputs(step, layer, at(step, layer));
  }
  all_events.assign(from.events().begin(), from.events().end());
  for (const Event& event : all_events)
    if (event.kind == EventKind::load) {
      BlockBytes& row = load_rows[event.source];
      if (row.first.empty()) from.load_row(event.source, row.first, row.second);
    }
}

StepInputs& MemoryStream::at(std::int64_t step, int layer) {
  return all_inputs.at(static_cast<std::size_t>(step)).at(static_cast<std::size_t>(layer));
}

void MemoryStream::inputs(std::int64_t step, int layer, StepInputs& out) {
  ++inputs_read;
  out = at(step, layer);
}

void MemoryStream::load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) {
  const BlockBytes& row = load_rows.at(source);
  recurrent = row.first;
  conv = row.second;
}

MemoryRecording::MemoryRecording(Recording& from) : model_(from.model()), all_taps(from.taps(0)) {
  for (std::int64_t step = 0; step < from.steps(); ++step) {
    plans.push_back(from.plan(step));
    for (int layer = 0; layer < model_.layers(); ++layer)
      for (std::size_t t = 0; t < kTaps; ++t)
        if (const Tap tap = static_cast<Tap>(t); all_taps.has(tap))
          from.read_tap(tap, step, layer, words[{tap, step, layer}]);
  }
  all_snapshots.assign(from.snapshots().begin(), from.snapshots().end());
  for (Snapshot& snapshot : all_snapshots) {
    blocks.emplace_back();
    from.read_snapshot(snapshot, blocks.back().first, blocks.back().second);
    snapshot.at = static_cast<std::int64_t>(blocks.size()) - 1;
  }
}

void MemoryRecording::read_tap(Tap tap, std::int64_t step, int layer, Bytes& out) { out = at(tap, step, layer); }

void MemoryRecording::read_snapshot(const Snapshot& snapshot, Bytes& recurrent, Bytes& conv) {
  const BlockBytes& block = blocks.at(static_cast<std::size_t>(snapshot.at));
  recurrent = block.first;
  conv = block.second;
}

namespace {

class Keeper final : public Observer {
 public:
  Keeper(MemoryRecording& to, const std::vector<std::int64_t>& snapshot_after)
      : to_(to), snapshot_after_(snapshot_after) {}
  void after(const StepView& view) override {
    for (std::size_t t = 0; t < kTaps; ++t)
      if (const Tap tap = static_cast<Tap>(t); to_.all_taps.has(tap)) {
        Bytes& words = to_.words[{tap, view.step, view.layer}];
        if (view.executed) words = view.outputs[tap];
        words.resize(shape_of(tap, to_.model_).bytes() * view.plan.block.size());
      }
    if (std::find(snapshot_after_.begin(), snapshot_after_.end(), view.step) == snapshot_after_.end()) return;
    for (std::int32_t block = 0; block < to_.model_.num_blocks; ++block) {
      to_.all_snapshots.push_back({view.step, view.layer, block, static_cast<std::int64_t>(to_.blocks.size())});
      to_.blocks.emplace_back(Bytes(to_.model_.state_bytes()), Bytes(to_.model_.conv_bytes()));
      view.pool.read(view.layer, block, to_.blocks.back().first, to_.blocks.back().second);
    }
  }

 private:
  MemoryRecording& to_;
  const std::vector<std::int64_t>& snapshot_after_;
};

}  // namespace

MemoryRecording record_in_memory(Stream& stream, Backend& backend, const ContractSet& contracts, const TapSet& taps,
                                 const std::vector<std::int64_t>& snapshot_after) {
  MemoryRecording recording;
  recording.model_ = stream.model();
  recording.all_taps = taps;
  for (std::int64_t step = 0; step < stream.steps(); ++step) recording.plans.push_back(stream.plan(step));
  std::vector<int> layers(static_cast<std::size_t>(stream.model().layers()));
  std::iota(layers.begin(), layers.end(), 0);
  const auto pool = backend.make_pool(stream.model(), layers);
  Keeper keeper(recording, snapshot_after);
  simulate({stream, backend, contracts, layers, stream.steps(), taps}, *pool, keeper);
  return recording;
}

}  // namespace gdnsim::test
