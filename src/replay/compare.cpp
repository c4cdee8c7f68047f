#include "gdnsim/compare.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

/// The taps an operation reads, and whether it reads the block's state from before the step.
struct Reads {
  std::vector<Tap> taps;
  bool block = false;
};

const Reads& reads_of(Tap tap) {
  static const std::array<Reads, kTaps> table = {{
      {{}, true},                                    // conv_acc: the window
      {{Tap::conv_acc}},                             // conv_out
      {{}, true},                                    // conv_state: the window
      {{Tap::conv_out}},                             // q
      {{Tap::conv_out}},                             // k
      {{}},                                          // beta
      {{}},                                          // g
      {{Tap::g}},                                    // decay
      {{Tap::k, Tap::decay}, true},                  // dot_k
      {{Tap::conv_out, Tap::beta, Tap::dot_k}},      // u
      {{Tap::k, Tap::decay, Tap::u}, true},          // state
      {{Tap::q, Tap::k, Tap::decay, Tap::u}, true},  // core_out: from the f32 state, before it is stored
      {{Tap::core_out}},                             // rstd
      {{Tap::core_out, Tap::rstd}},                  // norm_out
  }};
  return table[static_cast<std::size_t>(tap)];
}

bool is_inner(Tap tap) { return tap != Tap::conv_out && tap != Tap::core_out && tap != Tap::norm_out; }

}  // namespace

std::string_view name_of(InputsMatched value) {
  constexpr std::string_view words[] = {"unknown", "equal", "different"};
  return words[static_cast<std::size_t>(value)];
}

std::string event_text(const Event& event) {
  std::string text(name_of(event.kind));
  if (event.kind == EventKind::copy)
    return text + " of block " + std::to_string(event.source) + " to block " + std::to_string(event.block);
  return text + " of block " + std::to_string(event.block);
}

bool precedes(const Divergence& a, const Divergence& b) {
  static constexpr int after_rows = std::numeric_limits<int>::max();  // a block that no row named
  const auto key = [](const Divergence& d) {
    const std::int64_t event =
        d.event ? d.event->number * 2 + d.event->after : std::numeric_limits<std::int64_t>::max();
    return std::make_tuple(d.step, event, d.layer, d.tap, d.row < 0 ? after_rows : d.row, d.head, d.element, d.block);
  };
  return key(a) < key(b);
}

LayerComparer::LayerComparer(const Model& model, int layer, bool from_zero)
    : model_(model),
      layer_(layer),
      cells_(layer, model.layer_ids[static_cast<std::size_t>(layer)]),
      from_zero_(from_zero) {}

bool LayerComparer::known(std::int32_t block) const {
  const auto found = known_.find(block);
  return found == known_.end() ? from_zero_ : found->second;
}

void LayerComparer::pin(std::int32_t block, std::int64_t step) {
  known_[block] = true;
  origin_[block] = step;
}

void LayerComparer::pin_as(std::int32_t from, std::int32_t to) {
  known_[to] = known(from);
  origin_[to] = origin_[from];
}

/// Forgets what the step before said about its taps and blocks.
void LayerComparer::begin(const StepPlan& plan) {
  if (current_step_ == plan.step) return;
  current_step_ = plan.step;
  equal_.clear();
  differ_.clear();
}

/// Inactive rows: outputs are compared where the model says what they hold; inner values never (rule A7).
bool LayerComparer::compared(Tap tap, const StepPlan& plan, int row) const {
  if (plan.block[static_cast<std::size_t>(row)] >= 0) return true;
  if (tap == Tap::conv_out) return model_.inactive_conv_out == InactiveOut::zero;
  return !is_inner(tap) && model_.inactive_core_out == InactiveOut::zero;
}

/// A value read by an operation: recorded and equal, recorded and different, or - where it was not recorded - as its own inputs
/// are, since the operation then reaches back to them.
InputsMatched LayerComparer::of_tap(Tap tap, int row, std::int32_t block) const {
  if (differ_.contains({tap, row})) return InputsMatched::different;
  if (equal_.contains({tap, row})) return InputsMatched::equal;
  return inputs_of(tap, row, block);
}

/// What the operation behind a tap read (rules A2.1 to A2.6); x, a, b, z and the parameters are the trace's own.
InputsMatched LayerComparer::inputs_of(Tap tap, int row, std::int32_t block) const {
  const Reads& reads = reads_of(tap);
  InputsMatched worst = InputsMatched::equal;
  const auto join = [&](InputsMatched input) {
    if (input == InputsMatched::different || worst == InputsMatched::equal) worst = input;
  };
  if (reads.block) {
    const bool vouched = row >= 0 && known(block) && (events_seen_ || current_step_ == 0);
    join(vouched ? InputsMatched::equal : InputsMatched::unknown);
  }
  for (Tap input : reads.taps) join(of_tap(input, row, block));
  return worst;
}

Divergence LayerComparer::place(Tap tap, const StepPlan& plan, int row, std::int32_t block) const {
  Divergence at;
  at.step = plan.step;
  at.layer = layer_;
  at.layer_id = model_.layer_ids[static_cast<std::size_t>(layer_)];
  at.tap = tap;
  at.row = row;
  at.block = block;
  if (row >= 0) at.sequence = plan.sequence[static_cast<std::size_t>(row)];
  at.inputs = inputs_of(tap, row, block);
  if (const auto origin = origin_.find(block); origin != origin_.end()) at.from_step = origin->second;
  return at;
}

Divergence LayerComparer::element(Divergence at, const TapShape& shape, std::span<const std::byte> got,
                                  std::span<const std::byte> want, const WordRun& run) const {
  const std::int64_t head = run.first / shape.per_head;
  at.type = shape.type;
  at.head = shape.heads > 1 || at.tap >= Tap::q ? head : -1;
  at.element = run.first % shape.per_head;
  at.kind = run.kind;
  at.near.from = std::max<std::int64_t>(0, at.element - Near::kReach);
  const std::int64_t end = std::min(shape.per_head, at.element + Near::kReach + 1);
  for (std::int64_t i = at.near.from; i < end; ++i) {
    const auto word = static_cast<std::size_t>(head * shape.per_head + i);
    at.near.got.push_back(word_at(shape.type, got, word));
    at.near.want.push_back(word_at(shape.type, want, word));
  }
  at.got = at.near.got[static_cast<std::size_t>(at.element - at.near.from)];
  at.want = at.near.want[static_cast<std::size_t>(at.element - at.near.from)];
  at.ulp = ulp_distance(shape.type, at.got, at.want);
  return at;
}

void LayerComparer::found(Divergence divergence) {
  auto& of_tap = firsts_[static_cast<std::size_t>(divergence.tap)];
  if (!of_tap || precedes(divergence, *of_tap)) of_tap = divergence;
  if (!first_ || precedes(divergence, *first_)) first_ = divergence;
}

void LayerComparer::compare_row(Tap tap, const StepPlan& plan, int row, std::span<const std::byte> got,
                                std::span<const std::byte> want) {
  const TapShape shape = shape_of(tap, model_);
  const WordRun run = compare_words(tap, shape, got, want, counts_[static_cast<std::size_t>(tap)]);
  cells_.add(plan.step, tap, run);
  (run.first < 0 ? equal_ : differ_).insert({tap, row});
  if (run.first < 0) return;
  const std::int32_t block = plan.block[static_cast<std::size_t>(row)];
  found(element(place(tap, plan, row, block), shape, got, want, run));
}

void LayerComparer::tap(Tap tap, const StepPlan& plan, std::span<const std::byte> got,
                        std::span<const std::byte> want) {
  begin(plan);
  const std::size_t bytes = shape_of(tap, model_).bytes();
  GDNSIM_CHECK(got.size() == want.size() && got.size() == bytes * plan.block.size());
  for (int row = 0; row < plan.rows(); ++row) {
    if (!pick_.row(plan, row)) continue;
    const std::size_t at = static_cast<std::size_t>(row) * bytes;
    if (compared(tap, plan, row))
      compare_row(tap, plan, row, got.subspan(at, bytes), want.subspan(at, bytes));
    else
      counts_[static_cast<std::size_t>(tap)].not_compared +=
          static_cast<std::uint64_t>(shape_of(tap, model_).elements());
  }
}

bool LayerComparer::compare_block(Tap tap, const StepPlan& plan, std::int32_t block, std::span<const std::byte> got,
                                  std::span<const std::byte> want) {
  const TapShape shape = shape_of(tap, model_);
  const WordRun run = compare_words(tap, shape, got, want, counts_[static_cast<std::size_t>(tap)]);
  cells_.add(plan.step, tap, run);
  const auto row = std::ranges::find(plan.block, block);
  const int at = row == plan.block.end() ? -1 : static_cast<int>(row - plan.block.begin());
  if (at >= 0) (run.first < 0 ? equal_ : differ_).insert({tap, at});
  if (run.first < 0) return true;
  found(element(place(tap, plan, at, block), shape, got, want, run));
  return false;
}

bool LayerComparer::state(const StepPlan& plan, std::int32_t block, std::span<const std::byte> got_recurrent,
                          std::span<const std::byte> want_recurrent, std::span<const std::byte> got_conv,
                          std::span<const std::byte> want_conv) {
  if (!pick_.state(plan, block))
    return std::ranges::equal(got_recurrent, want_recurrent) && std::ranges::equal(got_conv, want_conv);
  begin(plan);
  const bool conv = compare_block(Tap::conv_state, plan, block, got_conv, want_conv);
  const bool recurrent = compare_block(Tap::state, plan, block, got_recurrent, want_recurrent);
  return conv && recurrent;
}

bool LayerComparer::count_digest(Tap tap, const StepPlan& plan, bool equal) {
  ++digests_compared_;
  WordRun run;
  run.compared = 1;
  run.differing = equal ? 0 : 1;
  cells_.add(plan.step, tap, run);
  digests_differing_ += run.differing;
  return equal;
}

void LayerComparer::digest(const StepPlan& plan, int row, std::int64_t head, std::uint64_t got, std::uint64_t want) {
  if (!pick_.row(plan, row)) return;
  const Tap tap = head < 0 ? Tap::conv_state : Tap::state;
  if (count_digest(tap, plan, got == want)) return;
  Divergence at = place(tap, plan, row, plan.block[static_cast<std::size_t>(row)]);
  at.head = head;
  at.kind = DiffClass::digest;
  found(at);
}

/// A zero or a load reads nothing that could differ; a copy reads its source; the others must leave the block as it was.
InputsMatched LayerComparer::inputs_of(const EventPlace& place) const {
  if (!place.after || !events_seen_) return InputsMatched::unknown;
  switch (place.event.kind) {
    case EventKind::zero:
    case EventKind::load:
      return InputsMatched::equal;
    case EventKind::copy:
      return known(place.event.source) ? InputsMatched::equal : InputsMatched::unknown;
    default:
      return event_began_equal_ ? InputsMatched::equal : InputsMatched::different;
  }
}

bool LayerComparer::event(const StepPlan& plan, const EventPlace& place, std::uint64_t got, std::uint64_t want) {
  if (!pick_.state(plan, place.event.block)) return true;
  begin(plan);
  const bool equal = count_digest(Tap::state, plan, got == want);
  if (!place.after) event_began_equal_ = equal;
  if (equal) return true;
  Divergence at = this->place(Tap::state, plan, -1, place.event.block);
  at.kind = DiffClass::digest;
  at.inputs = inputs_of(place);
  at.event = place;
  found(at);
  return false;
}

void LayerComparer::pool_digest(const StepPlan& plan, std::uint64_t got, std::uint64_t want) {
  if (!pick_.all() || count_digest(Tap::state, plan, got == want)) return;
  Divergence at = place(Tap::state, plan, -1, -1);
  at.kind = DiffClass::digest;
  found(at);
}

void LayerComparer::step_done(const StepPlan& plan) {
  for (std::int32_t block : plan.block)
    if (block >= 0) known_[block] = false;
}

}  // namespace gdnsim
