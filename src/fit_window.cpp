// Which steps of a path start from known states: the window that fit's probes are cut from.
#include <algorithm>
#include <optional>

#include "fit_probe.hpp"

namespace gdnsim::fitting {
namespace {

/// What is known of the layer's blocks, step by step.
class Follower {
 public:
  explicit Follower(const Source& source) : source_(source) {}

  void events_of(std::int64_t step) {
    const auto events = source_.stream.events();
    for (; next_event_ < events.size() && events[next_event_].step <= step; ++next_event_)
      if (events[next_event_].layer == -1 || events[next_event_].layer == source_.layer) apply(events[next_event_]);
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
    const auto found = states_.find(block);
    if (found == states_.end())
      before.push_back(zeros(block));
    else if (found->second)
      before.push_back(*found->second);
    else
      return false;
    live_[block] = true;
    states_[block] = std::nullopt;
    return true;
  }

  void lose(std::int32_t block) {
    live_.erase(block);
    states_[block] = std::nullopt;
  }

 private:
  BlockState zeros(std::int32_t block) const {
    const Model& model = source_.stream.model();
    return {block, Bytes(model.state_bytes()), Bytes(model.conv_bytes())};
  }

  /// A copy's source may be something only we computed: its target counts as unknown.
  void apply(const Event& event) {
    if (event.kind == EventKind::free) return;
    lose(event.block);
    if (event.kind == EventKind::copy) return;
    BlockState state = zeros(event.block);
    if (event.kind == EventKind::load) source_.stream.load_row(event.source, state.recurrent, state.conv);
    states_[event.block] = std::move(state);
  }

  const Source& source_;
  std::map<std::int32_t, std::optional<BlockState>> states_;  // absent: zero from the start; nullopt: unknown
  std::map<std::int32_t, bool> live_;                         // computed by the probe itself
  std::size_t next_event_ = 0;
};

}  // namespace

std::vector<WindowStep> known_window(const Source& source, std::int64_t steps) {
  std::vector<WindowStep> window;
  Follower follower(source);
  for (std::int64_t step = 0; step < source.last_step && static_cast<std::int64_t>(window.size()) < steps; ++step) {
    WindowStep here{step, source.stream.plan(step), {}, {}};
    follower.events_of(step);
    const bool wanted = here.plan.path == source.path && step >= source.first_step;
    const bool opaque = here.plan.path == Path::opaque;
    bool any = false;
    for (std::int32_t& block : here.plan.block) {
      if (block < 0) continue;
      if (wanted && follower.start(block, here.before))
        any = true;
      else
        follower.lose(block), block = -1;
    }
    const std::vector<BlockState> recorded = follower.snapshots_of(step);
    if (opaque || !any) continue;
    for (const BlockState& state : recorded)
      if (std::ranges::find(here.plan.block, state.block) != here.plan.block.end()) here.after.push_back(state);
    window.push_back(std::move(here));
  }
  return window;
}

}  // namespace gdnsim::fitting
