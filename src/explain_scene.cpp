// Looking around a divergence: since when the block's state is vouched for, the pool before that, the states around it.
#include <algorithm>

#include "explain_kinds.hpp"

namespace gdnsim::explaining {
namespace {

constexpr std::int64_t kBack = 16, kAhead = 4;         // steps of history before and after the window
constexpr std::int64_t kWindow = 64;                   // steps of a window at most
constexpr std::size_t kMemory = std::size_t{1} << 30;  // for the states of the history

/// The last step before which an event set the block, or after which an equal snapshot of it was recorded.
std::int64_t anchor_of(const Bench& bench, const Outcome& found, const Unit& at) {
  std::int64_t anchor = 0;
  for (const Event& event : bench.stream.events()) {
    const bool sets = event.kind == EventKind::load || event.kind == EventKind::zero;
    if (sets && event.block == at.block && event.step <= at.step && (event.layer == -1 || event.layer == bench.layer))
      anchor = event.step;
  }
  for (const Snapshot& snapshot : bench.recording.snapshots()) {
    if (snapshot.layer != bench.layer || snapshot.block != at.block || snapshot.step >= at.step) continue;
    const auto wrong = [&](const WrongUnit& w) {
      return w.unit.step == snapshot.step && w.unit.block == at.block &&
             (w.unit.tap == Tap::state || w.unit.tap == Tap::conv_state);
    };
    if (std::ranges::none_of(found.wrong, wrong) && snapshot.step >= bench.first_step)
      anchor = std::max(anchor, snapshot.step + 1);
  }
  return std::max(anchor, at.step - kWindow);
}

void note_blocks(const Scene& scene, std::set<std::int32_t>& blocks) {
  for (std::int64_t step = 0; step <= scene.at.step; ++step)
    for (std::int32_t block : scene.plan(step).block)
      if (block >= 0) blocks.insert(block);
  for (const Event& event : scene.bench.stream.events())
    if (event.step <= scene.at.step) blocks.insert(event.block);
  if (scene.at.block >= 0) blocks.insert(scene.at.block);
  blocks.insert(0);
}

std::int64_t steps_of_history(const Model& model, int rows) {
  const std::size_t step = static_cast<std::size_t>(std::max(rows, 1)) * (model.state_bytes() + model.conv_bytes());
  return std::max<std::int64_t>(2, static_cast<std::int64_t>(kMemory / step));
}

}  // namespace

std::vector<Part> Scene::parts() const {
  const bool conv_seen = bench.recording.taps(bench.layer).has(Tap::conv_out);
  if (in_conv()) return {Part::conv, Part::both};
  if (at.tap == Tap::state || conv_seen) return {Part::recurrent};
  return {Part::recurrent, Part::conv, Part::both};
}

Scene make_scene(Trials& trials, Outcome found) {
  const Bench& bench = trials.bench();
  const Unit at = found.wrong.front().unit;
  const std::int64_t anchor = anchor_of(bench, found, at);
  Scene scene{bench, trials, std::move(found), at, anchor, trials.checkpoint(anchor), {}, {}, {}};
  for (std::int64_t step = 0; step < bench.last_step; ++step) scene.plans.push_back(bench.stream.plan(step));
  note_blocks(scene, scene.blocks);
  const std::int64_t room = steps_of_history(scene.model(), bench.stream.rows());
  const std::int64_t last = std::min(at.step + kAhead, bench.last_step);
  const std::int64_t first = std::max({std::int64_t{0}, anchor - kBack, last - room});
  scene.history = trials.history(first, last);
  return scene;
}

std::vector<RowStep> rows_of_block(const Scene& scene, std::int32_t block, std::int64_t first, std::int64_t last) {
  std::vector<RowStep> rows;
  for (std::int64_t step = last; step >= first; --step) {
    const StepPlan& plan = scene.plan(step);
    if (plan.path == Path::opaque) continue;
    for (int row = 0; row < plan.rows(); ++row)
      if (block >= 0 && plan.block[static_cast<std::size_t>(row)] == block) rows.push_back({step, row});
  }
  return rows;
}

bool widespread(const Bench& bench, const Outcome& outcome) {
  std::set<std::int32_t> named, wrong;
  for (std::int64_t step = bench.first_step; step < bench.last_step; ++step) {
    const StepPlan plan = bench.stream.plan(step);
    for (int row : bench.pick.rows_of(plan))
      if (plan.block[static_cast<std::size_t>(row)] >= 0) named.insert(plan.block[static_cast<std::size_t>(row)]);
  }
  for (const WrongUnit& w : outcome.wrong)
    if (named.contains(w.unit.block)) wrong.insert(w.unit.block);
  return wrong.size() * 2 >= named.size();
}

std::string place_words(const Scope& scope) {
  std::string text;
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : ", ") + word; };
  if (scope.from_step >= 0 && scope.from_step == scope.to_step)
    add("step " + std::to_string(scope.from_step));
  else if (scope.from_step >= 0 && scope.to_step >= 0)
    add("steps " + std::to_string(scope.from_step) + " to " + std::to_string(scope.to_step));
  else if (scope.from_step >= 0)
    add("from step " + std::to_string(scope.from_step) + " on");
  if (scope.layer >= 0) add("layer " + std::to_string(scope.layer));
  if (scope.row >= 0) add("row " + std::to_string(scope.row));
  return text.empty() ? "all steps, layers and rows" : text;
}

}  // namespace gdnsim::explaining
