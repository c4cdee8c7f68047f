// Which steps of a path start from known states: the window that fit's probes are cut from.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "fit/probe.hpp"

namespace gdnsim::fitting {
namespace {

/// What is known of the layer's blocks, step by step. A block's state is concrete (bytes that were recorded, or that
/// the other path's known contract gives), live (the probe itself computes it), or unknown.
class Follower {
 public:
  Follower(const Source& source, Backend& backend) : source_(source), backend_(backend) {}

  void events_of(std::int64_t step) {
    const auto events = source_.stream.events();
    for (; next_event_ < events.size() && events[next_event_].step <= step; ++next_event_)
      if (events[next_event_].layer == -1 || events[next_event_].layer == source_.layer) apply(events[next_event_]);
  }

  /// Rows that move take their state along. A later draft of a launch whose stores round goes on from what nobody recorded
  /// (rule A9). What remains in the plan is an ordinary step.
  void enter(StepPlan& plan) {
    const bool held = plan.draft > 0 && source_.stream.model().state_dtype != DType::f32;
    for (std::size_t row = 0; row < plan.block.size(); ++row) {
      const std::int32_t block = plan.block[row], from = plan.start(row);
      if (block < 0 || (from == block && !held)) continue;
      std::optional<BlockState> state;
      if (!held && !live_.contains(from)) state = concrete(from);
      if (state) state->block = block;
      lose(block);
      states_[block] = std::move(state);
    }
    plan.source.clear(), plan.accepted.clear();
    plan.draft = 0, plan.last_draft = true;
  }

  /// The recorded states after a step, which then stand in for what was computed.
  std::vector<BlockState> snapshots_of(std::int64_t step) {
    std::vector<BlockState> found;
    for (const Snapshot& snapshot : source_.recording.snapshots()) {
      if (snapshot.step != step || snapshot.layer != source_.layer) continue;
      BlockState state{snapshot.block, {}, {}};
      source_.recording.read_snapshot(snapshot, state.recurrent, state.conv);
      states_[snapshot.block] = state;
      live_.erase(snapshot.block);
      found.push_back(std::move(state));
    }
    return found;
  }

  /// A row is about to run: true when its block's state is known; then what must be put in place first goes to
  /// `before`.
  bool start(std::int32_t block, std::vector<BlockState>& before) {
    if (live_.contains(block)) return true;
    std::optional<BlockState> state = concrete(block);
    if (!state) return false;
    before.push_back(std::move(*state));
    live_.insert(block);
    states_[block] = std::nullopt;
    return true;
  }

  void lose(std::int32_t block) {
    live_.erase(block);
    states_[block] = std::nullopt;
  }

  /// A step of the other path: blocks of concrete state go on under its contract. What remains in `plan` are live
  /// blocks.
  void run_other(StepPlan& plan) {
    StepPlan now = plan;
    bool any = false;
    for (std::size_t row = 0; row < plan.block.size(); ++row) {
      const std::int32_t block = plan.block[row];
      const bool live = live_.contains(block), runs = block >= 0 && !live && concrete(block);
      if (!runs) now.block[row] = -1;
      if (!live) plan.block[row] = -1;
      any |= runs;
    }
    if (any) run(now);
  }

 private:
  BlockState zeros(std::int32_t block) const {
    const Model& model = source_.stream.model();
    return {block, Bytes(model.state_bytes()), Bytes(model.conv_bytes())};
  }

  std::optional<BlockState> concrete(std::int32_t block) const {
    const auto found = states_.find(block);
    return found == states_.end() ? zeros(block) : found->second;
  }

  void run(const StepPlan& plan) {
    if (!pool_) {
      backend_.prepare(source_.stream, {source_.layer});
      pool_ = backend_.make_pool(source_.stream.model(), {source_.layer});
    }
    StepInputs inputs;
    StepOutputs outputs;
    outputs.want = {};
    source_.stream.inputs(plan.step, source_.layer, inputs);
    for (std::int32_t block : plan.block)
      if (block >= 0) {
        const auto state = concrete(block);
        pool_->write(source_.layer, block, state->recurrent, state->conv);
      }
    backend_.step({source_.layer, plan, inputs, *source_.other}, *pool_, outputs);
    for (std::int32_t block : plan.block)
      if (block >= 0) {
        BlockState state = zeros(block);
        pool_->read(source_.layer, block, state.recurrent, state.conv);
        states_[block] = std::move(state);
      }
  }

  /// A copy's source may be something only the probe computes: then its target counts as unknown.
  void apply(const Event& event) {
    if (!changes_contents(event.kind)) return;
    std::optional<BlockState> state;
    if (event.kind == EventKind::copy && !live_.contains(event.source)) state = concrete(event.source);
    if (event.kind != EventKind::copy) state = zeros(event.block);
    if (event.kind == EventKind::load) source_.stream.load_row(event.source, state->recurrent, state->conv);
    if (state) state->block = event.block;
    lose(event.block);
    states_[event.block] = std::move(state);
  }

  const Source& source_;
  Backend& backend_;
  std::unique_ptr<Pool> pool_;
  std::map<std::int32_t, std::optional<BlockState>> states_;  // absent: zero from the start; nullopt: unknown or live
  std::set<std::int32_t> live_;
  std::size_t next_event_ = 0;
};

/// Steps of the other path at the end count only up to the last recorded state.
void drop_idle_end(Window& window) {
  while (!window.empty() && window.back().carried && window.back().after.empty()) window.pop_back();
}

/// So many steps of the other path may lie between those that are looked at, before their blocks are given up.
std::int64_t carried_at_most(std::int64_t wanted) { return 8 + 3 * wanted; }

}  // namespace

Window known_window(const Source& source, Backend& backend, std::int64_t steps) {
  Window window;
  Follower follower(source, backend);
  std::int64_t wanted_steps = 0, carried_steps = 0;
  for (std::int64_t step = 0; step < source.last_step && wanted_steps < steps; ++step) {
    ObservedStep here{step, source.stream.plan(step), {}, {}, false};
    follower.events_of(step);
    follower.enter(here.plan);
    const bool opaque = here.plan.path == Path::opaque;
    const bool wanted = here.plan.path == source.path && step >= source.first_step;
    here.carried = source.other != nullptr && !opaque && here.plan.path != source.path;
    if (here.carried) follower.run_other(here.plan);
    const bool too_many = here.carried && carried_steps >= carried_at_most(wanted_steps);
    bool any = false;
    for (std::int32_t& block : here.plan.block) {
      if (block < 0) continue;
      const bool looked_at = source.only_block < 0 || block == source.only_block || here.carried;
      if ((wanted || here.carried) && !too_many && looked_at && follower.start(block, here.before))
        any = true;
      else
        follower.lose(block), block = -1;
    }
    const std::vector<BlockState> recorded = follower.snapshots_of(step);
    if (!any) continue;
    for (const BlockState& state : recorded)
      if (std::ranges::find(here.plan.block, state.block) != here.plan.block.end()) here.after.push_back(state);
    (here.carried ? carried_steps : wanted_steps) += 1;
    window.push_back(std::move(here));
  }
  drop_idle_end(window);
  return window;
}

Window first_steps(const Window& window, std::int64_t steps) {
  Window first;
  for (const ObservedStep& here : window) {
    if (!here.carried && --steps < 0) break;
    first.push_back(here);
  }
  drop_idle_end(first);
  return first;
}

Window first_blocks(const Window& window, std::int64_t rows) {
  std::map<std::int32_t, std::int64_t> rows_of;
  std::vector<std::int32_t> order;
  for (const ObservedStep& here : window)
    for (std::int32_t block : here.plan.block)
      if (block >= 0 && ++rows_of[block] == 1) order.push_back(block);
  std::set<std::int32_t> kept;
  for (std::int32_t block : order)
    if (kept.empty() || rows_of[block] <= rows) {
      kept.insert(block);
      rows -= rows_of[block];
    }
  Window thin = window;
  for (ObservedStep& here : thin) {
    for (std::int32_t& block : here.plan.block)
      if (!kept.contains(block)) block = -1;
    for (auto* states : {&here.before, &here.after})
      std::erase_if(*states, [&](const BlockState& state) { return !kept.contains(state.block); });
  }
  std::erase_if(thin, [](const ObservedStep& here) {
    return std::ranges::all_of(here.plan.block, [](std::int32_t block) { return block < 0; });
  });
  return thin;
}

}  // namespace gdnsim::fitting
