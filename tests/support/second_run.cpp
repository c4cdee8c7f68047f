#include "support/second_run.hpp"

namespace gdnsim::test {

void SecondRun::apply_events(Stream& stream, int layer, std::int64_t step, Blocks& blocks) const {
  const Model& model = stream.model();
  for (const Event& event : stream.events()) {
    if (event.step != step || (event.layer >= 0 && event.layer != layer)) continue;
    second::Block& block = blocks.at(event.block);
    if (event.kind == EventKind::zero) block = {Bytes(model.state_bytes()), Bytes(model.conv_bytes())};
    if (event.kind == EventKind::copy) block = blocks.at(event.source);
    if (event.kind == EventKind::load) stream.load_row(event.source, block.recurrent, block.conv);
  }
}

/// Runs one step and returns what differs from the recording, sorted.
std::vector<Change> SecondRun::step(Stream& stream, int layer, std::int64_t step, Blocks& blocks) {
  const Model& model = stream.model();
  const StepPlan plan = stream.plan(step);
  StepInputs inputs;
  apply_events(stream, layer, step, blocks);
  for (std::size_t row = 0; row < plan.source.size(); ++row)
    if (plan.block[row] >= 0 && plan.source[row] >= 0) blocks.at(plan.block[row]) = blocks.at(plan.source[row]);
  stream.inputs(step, layer, inputs);
  const second::Taps taps = second::step(model, stream.params(layer), plan.path == Path::mixed ? mixed_ : decode_, plan,
                                         inputs, blocks.all, second::Mistake::none, &blocks.held);
  std::vector<Change> changes;
  for (std::size_t t = 0; t < kTaps; ++t)
    if (const Tap tap = static_cast<Tap>(t); recording_.all_taps.has(tap))
      add_tap_changes(changes, model, plan, layer, tap, taps[tap], recording_.at(tap, step, layer));
  for (const Snapshot& snapshot : recording_.all_snapshots) {
    if (snapshot.step != step || snapshot.layer != layer) continue;
    const second::Block& ours = blocks.at(snapshot.block);
    add_block_changes(changes, model, plan, layer, snapshot.block, {ours.recurrent, ours.conv},
                      recording_.blocks[static_cast<std::size_t>(snapshot.at)]);
  }
  sort_in_execution_order(changes);
  return changes;
}

/// The blocks before a step of the unmutated stream, worked out once; counts what differs on the way.
const SecondRun::Blocks& SecondRun::before(int layer, std::int64_t step) {
  const auto found = before_.find({layer, step});
  if (found != before_.end()) return found->second;
  Blocks blocks;
  if (step == 0) {
    blocks.all.assign(static_cast<std::size_t>(stream_.model().num_blocks),
                      {Bytes(stream_.model().state_bytes()), Bytes(stream_.model().conv_bytes())});
  } else {
    blocks = before(layer, step - 1);
    differing_ += this->step(stream_, layer, step - 1, blocks).size();
  }
  return before_[{layer, step}] = std::move(blocks);
}

std::optional<Change> SecondRun::first_difference(MutatedStream& stream, int layer, std::int64_t from) {
  Blocks blocks = before(layer, from);
  for (std::int64_t step = from; step < stream.steps(); ++step) {
    const std::vector<Change> changes = this->step(stream, layer, step, blocks);
    if (!changes.empty()) return changes.front();
  }
  return std::nullopt;
}

std::uint64_t SecondRun::differing() {
  for (int layer = 0; layer < stream_.model().layers(); ++layer) before(layer, stream_.steps());
  return differing_;
}

}  // namespace gdnsim::test
