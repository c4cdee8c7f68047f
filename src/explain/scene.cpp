// Looking around a divergence: since when the block's state is vouched for, the pool before that, the states around it.
#include <algorithm>

#include "explain/kinds.hpp"
#include "gdnsim/lifecycle.hpp"

namespace gdnsim::explaining {
namespace {

constexpr std::int64_t kBack = 16, kAhead = 4;         // steps of history before and after the window
constexpr std::int64_t kWindow = 64;                   // steps of a window at most
constexpr std::size_t kMemory = std::size_t{1} << 30;  // for the states of the history

bool here(const Event& event, int layer) { return event.layer == -1 || event.layer == layer; }

/// The blocks whose state became one block's, from a step back: through copies and through rows that moved.
class Lineage {
 public:
  Lineage(const Stream& stream, int layer, const std::vector<StepPlan>& plans, const Unit& at)
      : events_(stream.events()), layer_(layer), plans_(plans), step_(at.step), block_(at.block) {
    const auto later = [](std::int64_t step, const Event& event) { return step < event.step; };
    next_ = std::upper_bound(events_.begin(), events_.end(), step_, later) - events_.begin();
    if (at.event < 0) return;
    after_rows_ = false;
    next_ = static_cast<std::ptrdiff_t>((at.event + 1) / 2);  // the event itself is behind what was found before it
  }
  std::int64_t step() const { return step_; }
  std::int32_t block() const { return block_; }  // after the rows of step()
  /// The row of step() that wrote it, or -1.
  int row() const {
    if (!after_rows_) return -1;
    const StepPlan& plan = plans_[static_cast<std::size_t>(step_)];
    const auto found = std::ranges::find(plan.block, block_);
    return block_ < 0 || found == plan.block.end() ? -1 : static_cast<int>(found - plan.block.begin());
  }
  /// To the end of the step before. `use`: each event on the way that changed the block; true: the way ends there.
  template <class Use>
  bool back(const Use& use) {
    if (const int at = row(); at >= 0)
      block_ = plans_[static_cast<std::size_t>(step_)].start(static_cast<std::size_t>(at));
    for (; next_ > 0 && events_[static_cast<std::size_t>(next_ - 1)].step == step_; --next_) {
      const Event& event = events_[static_cast<std::size_t>(next_ - 1)];
      if (event.block != block_ || !changes_contents(event.kind) || !here(event, layer_)) continue;
      if (use(event, next_ - 1)) return true;
      if (event.kind == EventKind::copy) block_ = event.source;
    }
    --step_;
    after_rows_ = true;
    return false;
  }

 private:
  const std::span<const Event> events_;
  const int layer_;
  const std::vector<StepPlan>& plans_;
  std::int64_t step_;
  std::int32_t block_;
  std::ptrdiff_t next_ = 0;
  bool after_rows_ = true;  // else what is asked about is before the rows of step()
};

/// (step, block) of the layer's recorded snapshots that come out.
std::set<std::pair<std::int64_t, std::int32_t>> equal_snapshots(const Bench& bench, const Outcome& found,
                                                                std::int64_t before) {
  std::set<std::pair<std::int64_t, std::int32_t>> equal;
  for (const Snapshot& snapshot : bench.recording.snapshots())
    if (snapshot.layer == bench.layer && snapshot.step < before && snapshot.step >= bench.first_step)
      equal.insert({snapshot.step, snapshot.block});
  for (const WrongUnit& w : found.wrong)
    if (w.unit.tap == Tap::state || w.unit.tap == Tap::conv_state) equal.erase({w.unit.step, w.unit.block});
  return equal;
}

/// The last step before which an event set the block's state, or after which an equal snapshot of it was recorded; never within
/// a launch, of which the pool does not hold everything.
std::int64_t anchor_of(const Scene& scene) {
  const Bench& bench = scene.bench;
  const Unit& at = scene.at;
  const std::int64_t earliest = std::max<std::int64_t>(0, at.step - kWindow);
  const auto equal = equal_snapshots(bench, scene.found, at.step);
  Lineage lineage(bench.stream, bench.layer, scene.plans, at);
  const auto sets = [](const Event& event, std::ptrdiff_t) { return event.kind != EventKind::copy; };
  while (at.block >= 0 && lineage.step() > earliest && !equal.contains({lineage.step(), lineage.block()}))
    if (lineage.back(sets)) return lineage.step();
  const std::int64_t anchor = at.block < 0                                        ? earliest
                              : equal.contains({lineage.step(), lineage.block()}) ? lineage.step() + 1
                                                                                  : earliest;
  return std::max<std::int64_t>(0, anchor - scene.plan(anchor).draft);
}

void note_blocks(const Scene& scene, std::set<std::int32_t>& blocks) {
  for (std::int64_t step = 0; step <= scene.at.step; ++step)
    for (std::int32_t block : scene.plan(step).block)
      if (block >= 0) blocks.insert(block);
  for (const Event& event : scene.bench.stream.events())
    if (event.step <= scene.at.step) blocks.insert(event.block);
  for (const WrongUnit& w : scene.found.wrong)  // nobody need have named it: something was written there all the same
    if (w.unit.block >= 0) blocks.insert(w.unit.block);
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
  Scene scene{bench, trials, std::move(found), at, 0, {}, {}, {}, {}};
  for (std::int64_t step = 0; step < bench.last_step; ++step) scene.plans.push_back(bench.stream.plan(step));
  scene.anchor = anchor_of(scene);
  scene.from = trials.checkpoint(scene.anchor);
  note_blocks(scene, scene.blocks);
  const std::int64_t room = steps_of_history(scene.model(), bench.stream.rows());
  const std::int64_t last = std::min(at.step + kAhead, bench.last_step);
  const std::int64_t first = std::max({std::int64_t{0}, scene.anchor - kBack, last - room});
  scene.history = trials.history(first, last);
  return scene;
}

std::vector<RowStep> rows_of_state(const Scene& scene, std::int64_t first) {
  std::vector<RowStep> rows;
  Lineage lineage(scene.bench.stream, scene.bench.layer, scene.plans, scene.at);
  while (scene.at.block >= 0 && lineage.step() >= first) {
    const int row = scene.plan(lineage.step()).path == Path::opaque ? -1 : lineage.row();
    if (row >= 0) rows.push_back({lineage.step(), row});
    (void)lineage.back([](const Event&, std::ptrdiff_t) { return false; });
  }
  return rows;
}

std::vector<std::int64_t> events_of_state(const Scene& scene) {
  std::vector<std::int64_t> events;
  Lineage lineage(scene.bench.stream, scene.bench.layer, scene.plans, scene.at);
  while (scene.at.block >= 0 && lineage.step() >= scene.anchor)
    (void)lineage.back([&](const Event&, std::ptrdiff_t at) { return events.push_back(at), false; });
  return events;
}

std::map<std::pair<std::int64_t, std::int32_t>, std::int64_t> tokens_of_states(const Scene& scene) {
  std::map<std::pair<std::int64_t, std::int32_t>, std::int64_t> tokens;
  std::map<std::int32_t, std::int64_t> now;
  const auto events = scene.bench.stream.events();
  std::size_t next = 0;
  for (const StepPlan& plan : scene.plans) {
    for (; next < events.size() && events[next].step <= plan.step; ++next) {
      const Event& event = events[next];
      if (changes_contents(event.kind) && here(event, scene.bench.layer))
        now[event.block] = event.kind == EventKind::copy ? now[event.source] : 0;
    }
    const auto before = now;
    for (std::size_t row = 0; row < plan.block.size(); ++row) {
      if (plan.block[row] < 0) continue;
      const auto start = before.find(plan.start(row));
      tokens[{plan.step, plan.block[row]}] = now[plan.block[row]] = (start == before.end() ? 0 : start->second) + 1;
    }
  }
  return tokens;
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

std::string last_writer_of(const Scene& scene, std::int32_t block, std::int64_t step, bool after) {
  Lifecycle life(scene.bench.stream, "", scene.bench.layer);
  after ? life.go_to(step + 1) : life.go_into(step);
  return "; the last writer of block " + std::to_string(block) + " was " + life.last_writer(block);
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
