// Hypotheses about events: a reset, a load or a copy that did not happen, came too late, or brought something else.
#include <algorithm>

#include "explain/edits.hpp"
#include "explain/kinds.hpp"
#include "gdnsim/lifecycle.hpp"

namespace gdnsim::explaining {
namespace {

/// ": the last writer was row 0 of step 0, sequence 5": what the block held before this event of a layer.
std::string left_by(const Stream& stream, const Event& event, std::int64_t at, int layer) {
  Lifecycle life(stream, "", layer);
  life.go_to(event.step);
  const auto events = stream.events();
  std::int64_t first = at;
  while (first > 0 && events[static_cast<std::size_t>(first - 1)].step == event.step) --first;
  for (std::int64_t i = first; i < at; ++i) life.event(events[static_cast<std::size_t>(i)], i);
  const BlockLife& block = life.life(event.block);
  if (block.written_step < 0) return ": nothing had written it before";
  const Event* writer = block.written_event < 0 ? nullptr : &events[static_cast<std::size_t>(block.written_event)];
  // Events that name a layer come once for each: without the number, layers that show the same say the same.
  if (writer != nullptr && writer->layer >= 0)
    return ": the last writer was a " + std::string(name_of(writer->kind)) + " at step " + std::to_string(writer->step);
  return ": the last writer was " + life.last_writer(event.block);
}

/// The last row that wrote a copy's source before it, and how many tokens the source then stood for.
struct SourceMoment {
  std::int64_t step = -1, tokens = 0;
};
SourceMoment source_before(const Scene& scene, const Event& event) {
  SourceMoment found;
  for (const auto& [place, tokens] : tokens_of_states(scene))
    if (place.second == event.source && place.first < event.step && place.first > found.step)
      found = {place.first, tokens};
  return found;
}

/// One event, and every way in which it may have gone wrong.
class EventFaults {
 public:
  EventFaults(const Scene& scene, std::int64_t at, Hypotheses& out)
      : scene_(scene), stream_(scene.bench.stream), at_(at), event_(at_of(stream_, at)), out_(out) {}

  void propose_faults() {
    missing();
    if (event_.kind != EventKind::zero) {
      zeros();
      changed_on_the_way();
      of_other_blocks();
    }
    if (event_.kind == EventKind::copy) of_other_moments();
    if (event_.kind == EventKind::load) other_loads();
    elsewhere();
  }

  /// It happens when the rows of the step, or of the launch that begins there, are done.
  void propose_late() {
    const std::int64_t last = launch_of(stream_, event_.step).second - 1;
    if (scene_.plan(event_.step).path == Path::opaque) return;
    Twist& twist = propose("reset-missing", " came after the rows of step " + std::to_string(last) + ", not before",
                           nullptr, event_.block);
    twist.after = [last, event = event_, &stream = stream_](StepEdit& edit) {
      if (edit.plan.step == last) edit.pool.apply(event, edit.layer, stream);
    };
  }

 private:
  using Instead = std::function<void(Pool&, int)>;
  /// Changes what the event brings; `before`: what the block held.
  using Change = std::function<void(Pool&, int, const Words& before, Words&)>;

  static Event at_of(const Stream& stream, std::int64_t at) { return stream.events()[static_cast<std::size_t>(at)]; }

  std::string what() const { return "the " + std::string(name_of(event_.kind)) + " of block " + name(event_.block); }
  static std::string name(std::int32_t block) { return std::to_string(block); }

  Twist& propose(const char* id, std::string says, Instead instead, std::int32_t block) {
    const Scope scope{event_.step, event_.step, scene_.bench.layer, -1, block, -1};
    Hypothesis hypothesis;
    hypothesis.mechanisms = {{id, scope, what() + says, "", Proof::rerun}};
    hypothesis.twists.resize(1);
    hypothesis.twists[0].event = at_;
    hypothesis.twists[0].instead = std::move(instead);
    out_.push_back(std::move(hypothesis));
    return out_.back().twists[0];
  }

  Instead changed(Change change) const {
    return [event = event_, &stream = stream_, change = std::move(change)](Pool& pool, int layer) {
      const Words before = read_words(pool, layer, event.block);
      pool.apply(event, layer, stream);
      Words words = read_words(pool, layer, event.block);
      change(pool, layer, before, words);
      write_words(pool, layer, event.block, words);
    };
  }
  Instead edited(Edit edit) const {
    return changed(
        [edit = std::move(edit)](Pool& pool, int, const Words&, Words& words) { edit(pool.model(), words); });
  }

  /// A part keeps what the block held before.
  void missing() {
    const std::string left = left_by(stream_, event_, at_, scene_.bench.layer);
    for (Part part : kParts)
      propose("reset-missing", " did not reach its " + words_of(part) + left,
              changed([part](Pool&, int, const Words& before, Words& words) { take(part, before, words); }),
              event_.block);
  }

  void zeros() {
    for (Part part : kParts)
      propose("reset-missing", " left zeros in its " + words_of(part), edited([part](const Model& model, Words& words) {
                take(part, {Bytes(model.state_bytes()), Bytes(model.conv_bytes())}, words);
              }),
              event_.block);
  }

  void changed_on_the_way() {
    if (scene_.model().K == scene_.model().V)
      propose("kv-transposed", " came with K and V swapped", edited(transpose_heads), event_.block);
    if (scene_.model().state_dtype == DType::f32)
      propose("state-store-bf16", " came rounded to bf16", edited(round_state), event_.block);
    for (int by : {-1, 1, -2, 2})
      for (Fill fill : kFills)
        propose("conv-window-shift", " came with its conv window " + columns(by),
                edited([=](const Model& model, Words& words) { shift_window(model, words.conv, by, fill); }),
                event_.block);
  }

  void of_other_blocks() {
    for (std::int32_t other : scene_.blocks)
      for (Part part : kParts)
        if (other != event_.block)
          propose("wrong-block", " took the " + words_of(part) + " of block " + name(other),
                  changed([=](Pool& pool, int layer, const Words&, Words& words) {
                    take(part, read_words(pool, layer, other), words);
                  }),
                  other);
  }

  /// A copy of another moment: what the source was after its earlier rows.
  void of_other_moments() {
    const auto tokens = tokens_of_states(scene_);
    const SourceMoment now = source_before(scene_, event_);
    for (const auto& [place, words] : scene_.history.after) {
      if (place.second != event_.source || place.first >= event_.step || place.first == now.step) continue;
      const std::int64_t n = tokens.at(place) - now.tokens;
      if (n == 0 || scene_.plan(place.first).path == Path::opaque) continue;
      for (Part part : kParts)
        propose("wrong-position",
                " took the " + words_of(part) + " that block " + name(event_.source) + " held at position p" +
                    (n > 0 ? "+" : "") + std::to_string(n) + ", after step " + std::to_string(place.first),
                edited([part, words = words](const Model&, Words& to) { take(part, words, to); }), event_.block);
    }
  }

  /// Each load row once, named by the first event that loads it.
  void other_loads() {
    std::set<std::int32_t> asked{event_.source};
    for (const Event& other : stream_.events()) {
      if (other.kind != EventKind::load || !asked.insert(other.source).second) continue;
      Event swapped = event_;
      swapped.source = other.source;
      propose(
          "wrong-block",
          " took the state that step " + std::to_string(other.step) + " loads into block " + name(other.block),
          [swapped, &stream = stream_](Pool& pool, int layer) { pool.apply(swapped, layer, stream); }, other.block);
    }
  }

  void elsewhere() {
    for (std::int32_t other : scene_.blocks) {
      if (other == event_.block) continue;
      Event moved = event_;
      moved.block = other;
      Twist& twist = propose(
          "wrong-block", " went to block " + name(other) + " instead",
          [moved, &stream = stream_](Pool& pool, int layer) { pool.apply(moved, layer, stream); }, other);
      twist.blocks = {other};
    }
  }

  const Scene& scene_;
  Stream& stream_;
  const std::int64_t at_;
  const Event event_;
  Hypotheses& out_;
};

}  // namespace

void propose_events(const Scene& scene, Hypotheses& out) {
  for (const std::int64_t event : events_of_state(scene)) EventFaults(scene, event, out).propose_faults();
}

void propose_late_events(const Scene& scene, Hypotheses& out) {
  for (const std::int64_t event : events_of_state(scene)) EventFaults(scene, event, out).propose_late();
}

}  // namespace gdnsim::explaining
