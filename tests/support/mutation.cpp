#include "support/mutation.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <sstream>

namespace gdnsim::test {

// ---- decorators ----

void MutatedRecording::read_tap(Tap tap, std::int64_t step, int layer, Bytes& out) {
  const auto found = taps_.find({tap, step, layer});
  if (found == taps_.end()) return base_.read_tap(tap, step, layer, out);
  out = found->second;
}

void MutatedRecording::read_snapshot(const Snapshot& snapshot, Bytes& recurrent, Bytes& conv) {
  const auto found = blocks_.find(snapshot.at);
  if (found == blocks_.end()) return base_.read_snapshot(snapshot, recurrent, conv);
  recurrent = found->second.first;
  conv = found->second.second;
}

Bytes& MutatedRecording::tap_words(Tap tap, std::int64_t step, int layer) {
  return taps_.try_emplace({tap, step, layer}, base_.at(tap, step, layer)).first->second;
}

BlockBytes& MutatedRecording::block_words(std::int64_t at) {
  return blocks_.try_emplace(at, base_.blocks.at(static_cast<std::size_t>(at))).first->second;
}

const LayerParams& MutatedStream::params(int layer) const {
  const auto found = params_.find(layer);
  return found == params_.end() ? base_.params(layer) : found->second;
}

void MutatedStream::inputs(std::int64_t step, int layer, StepInputs& out) {
  const auto found = inputs_.find({step, layer});
  if (found == inputs_.end()) return base_.inputs(step, layer, out);
  out = found->second;
}

void MutatedStream::load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) {
  const auto found = load_rows_.find(source);
  if (found == load_rows_.end()) return base_.load_row(source, recurrent, conv);
  recurrent = found->second.first;
  conv = found->second.second;
}

// ---- places ----

Layout layout_of(Tap tap, const Model& m) {
  const std::int64_t H = m.H, HV = m.HV, K = m.K, V = m.V, dim = 2 * H * K + HV * V;
  switch (tap) {
    case Tap::conv_acc:
      return {DType::f32, dim, dim, false};
    case Tap::conv_out:
      return {m.act_dtype, dim, dim, false};
    case Tap::conv_state:
      return {m.conv_state_dtype, (m.W - 1) * dim, (m.W - 1) * dim, false};
    case Tap::q:
    case Tap::k:
      return {DType::f32, H * K, K, true};
    case Tap::beta:
    case Tap::g:
    case Tap::decay:
    case Tap::rstd:
      return {DType::f32, HV, 1, true};
    case Tap::dot_k:
    case Tap::u:
      return {DType::f32, HV * V, V, true};
    case Tap::state:
      return {m.state_dtype, HV * V * K, V * K, true};
    case Tap::core_out:
    case Tap::norm_out:
      return {m.act_dtype, HV * V, V, true};
  }
  return {};
}

std::uint32_t word_of(const Bytes& words, std::size_t i, DType type) {
  std::uint32_t word = 0;
  std::memcpy(&word, words.data() + i * size_of(type), size_of(type));
  return word;
}

void set_word(Bytes& words, std::size_t i, DType type, std::uint32_t word) {
  std::memcpy(words.data() + i * size_of(type), &word, size_of(type));
}

namespace {

Change change_at(const StepPlan& plan, int layer, Tap tap, int row, std::int32_t block, const Layout& layout,
                 std::int64_t i) {
  return {plan.step, layer, tap, row, block, layout.heads ? i / layout.per_head : -1, i % layout.per_head, 0, 0};
}

void add_words(std::vector<Change>& changes, Change at, const Layout& layout, const Bytes& ours, const Bytes& recorded,
               std::int64_t from) {
  const std::size_t width = size_of(layout.type), start = static_cast<std::size_t>(from) * width;
  if (std::memcmp(ours.data() + start, recorded.data() + start, static_cast<std::size_t>(layout.per_row) * width) == 0)
    return;
  for (std::int64_t i = 0; i < layout.per_row; ++i) {
    at.ours = word_of(ours, static_cast<std::size_t>(from + i), layout.type);
    at.recorded = word_of(recorded, static_cast<std::size_t>(from + i), layout.type);
    if (at.ours == at.recorded) continue;
    at.head = layout.heads ? i / layout.per_head : -1;
    at.element = i % layout.per_head;
    changes.push_back(at);
  }
}

/// What the model says of an inactive row's output (rule A7).
bool unwritten(const Model& model, Tap tap) {
  if (tap == Tap::conv_out) return model.inactive_conv_out == InactiveOut::unwritten;
  if (tap == Tap::core_out || tap == Tap::norm_out) return model.inactive_core_out == InactiveOut::unwritten;
  return true;
}

}  // namespace

void add_tap_changes(std::vector<Change>& changes, const Model& model, const StepPlan& plan, int layer, Tap tap,
                     const Bytes& ours, const Bytes& recorded) {
  const Layout layout = layout_of(tap, model);
  for (int row = 0; row < plan.rows(); ++row) {
    const std::int32_t block = plan.block[static_cast<std::size_t>(row)];
    if (block < 0 && unwritten(model, tap)) continue;
    add_words(changes, change_at(plan, layer, tap, row, block, layout, 0), layout, ours, recorded,
              row * layout.per_row);
  }
}

void add_block_changes(std::vector<Change>& changes, const Model& model, const StepPlan& plan, int layer,
                       std::int32_t block, const BlockBytes& ours, const BlockBytes& recorded) {
  int row = -1;
  for (int r = 0; r < plan.rows(); ++r)
    if (plan.block[static_cast<std::size_t>(r)] == block) row = r;
  for (Tap tap : {Tap::conv_state, Tap::state}) {
    const Layout layout = layout_of(tap, model);
    const bool conv = tap == Tap::conv_state;
    add_words(changes, change_at(plan, layer, tap, row, block, layout, 0), layout, conv ? ours.second : ours.first,
              conv ? recorded.second : recorded.first, 0);
  }
}

void sort_in_execution_order(std::vector<Change>& changes) {
  const auto key = [](const Change& c) {
    return std::make_tuple(c.step, c.layer, static_cast<int>(c.tap),
                           c.row < 0 ? std::numeric_limits<int>::max() : c.row, c.head, c.element);
  };
  std::stable_sort(changes.begin(), changes.end(), [&](const Change& a, const Change& b) { return key(a) < key(b); });
}

std::vector<Change> changes_of(const MutatedRecording& recording) {
  std::vector<Change> changes;
  MemoryRecording& base = recording.base_;
  for (const auto& [where, words] : recording.taps_) {
    const auto& [tap, step, layer] = where;
    add_tap_changes(changes, base.model(), base.plan(step), layer, tap, base.at(tap, step, layer), words);
  }
  for (const Snapshot& snapshot : base.snapshots())
    if (const auto found = recording.blocks_.find(snapshot.at); found != recording.blocks_.end())
      add_block_changes(changes, base.model(), base.plan(snapshot.step), snapshot.layer, snapshot.block,
                        base.blocks[static_cast<std::size_t>(snapshot.at)], found->second);
  sort_in_execution_order(changes);
  return changes;
}

// ---- random mutations ----

bool flip_bit(Random& random, Bytes& words, std::size_t i, DType type) {
  set_word(words, i, type, word_of(words, i, type) ^ (1u << random.below(8 * size_of(type))));
  return true;
}

/// Along the line ..., -denormal, -0, +0, +denormal, ...; not onto or past an infinity.
bool move_ulps(Random& random, Bytes& words, std::size_t i, DType type) {
  const std::uint32_t sign = type == DType::f32 ? 0x80000000u : 0x8000u;
  const std::uint32_t infinity = type == DType::f32 ? 0x7F800000u : type == DType::bf16 ? 0x7F80u : 0x7C00u;
  const std::uint32_t word = word_of(words, i, type);
  const std::int64_t magnitude = word & ~sign;
  std::int64_t line = (word & sign) != 0 ? -magnitude - 1 : magnitude;
  const std::int64_t distance = 1 + static_cast<std::int64_t>(random.below(8));
  line += random.below(2) == 0 ? distance : -distance;
  const std::int64_t moved = line < 0 ? -line - 1 : line;
  if (magnitude >= infinity || moved >= infinity) return false;
  set_word(words, i, type, static_cast<std::uint32_t>(moved) | (line < 0 ? sign : 0));
  return true;
}

void swap_runs(Bytes& a, std::size_t from_a, Bytes& b, std::size_t from_b, std::size_t bytes) {
  std::swap_ranges(a.begin() + static_cast<std::ptrdiff_t>(from_a),
                   a.begin() + static_cast<std::ptrdiff_t>(from_a + bytes),
                   b.begin() + static_cast<std::ptrdiff_t>(from_b));
}

namespace {

template <class T>
std::size_t pick(Random& random, const T& count) {
  return static_cast<std::size_t>(random.below(static_cast<std::uint64_t>(count)));
}

bool change_word(Random& random, Bytes& words, std::size_t i, DType type, bool flip) {
  return flip ? flip_bit(random, words, i, type) : move_ulps(random, words, i, type);
}

bool is_block(Tap tap) { return tap == Tap::state || tap == Tap::conv_state; }

/// A step and a layer; for a block's part, one with snapshots.
struct Spot {
  std::int64_t step;
  int layer;
};
Spot draw_spot(Random& random, const MemoryRecording& base, bool with_snapshots) {
  if (!with_snapshots)
    return {static_cast<std::int64_t>(pick(random, base.steps())),
            static_cast<int>(pick(random, base.model().layers()))};
  const Snapshot& snapshot = base.all_snapshots[pick(random, base.all_snapshots.size())];
  return {snapshot.step, snapshot.layer};
}

/// One word of a tap, or of one of the spot's snapshots if there are any.
void change_one(Random& random, MutatedRecording& recording, Tap tap, const Spot& spot, bool flip) {
  MemoryRecording& base = recording.base_;
  const Layout layout = layout_of(tap, base.model());
  if (!is_block(tap)) {
    change_word(random, recording.tap_words(tap, spot.step, spot.layer), pick(random, layout.per_row * base.rows()),
                layout.type, flip);
    return;
  }
  std::vector<std::int64_t> here;
  for (const Snapshot& snapshot : base.all_snapshots)
    if (snapshot.step == spot.step && snapshot.layer == spot.layer) here.push_back(snapshot.at);
  if (here.empty()) return;
  BlockBytes& block = recording.block_words(here[pick(random, here.size())]);
  change_word(random, tap == Tap::state ? block.first : block.second, pick(random, layout.per_row), layout.type, flip);
}

/// Words all over one step of one layer, so that the first in execution order has to be told.
std::string change_several(Random& random, MutatedRecording& recording, const std::vector<Tap>& taps) {
  const Spot spot = draw_spot(random, recording.base_, is_block(taps.back()) && random.below(2) == 0);
  for (std::size_t i = 0; i < 5; ++i)
    change_one(random, recording, taps[pick(random, taps.size())], spot, random.below(2) == 0);
  return "words all over a step";
}

/// Two rows of a tap, in the same step half of the time.
std::string swap_rows(Random& random, MutatedRecording& recording, Tap tap) {
  MemoryRecording& base = recording.base_;
  const Layout layout = layout_of(tap, base.model());
  const std::size_t bytes = static_cast<std::size_t>(layout.per_row) * size_of(layout.type);
  const int layer = static_cast<int>(pick(random, base.model().layers()));
  const std::int64_t one = static_cast<std::int64_t>(pick(random, base.steps()));
  const std::int64_t two = random.below(2) == 0 ? one : static_cast<std::int64_t>(pick(random, base.steps()));
  const std::size_t a = pick(random, base.rows()), b = pick(random, base.rows());
  swap_runs(recording.tap_words(tap, one, layer), a * bytes, recording.tap_words(tap, two, layer), b * bytes, bytes);
  return "rows swapped";
}

/// Two blocks of a layer, whole or one of their two parts.
std::string swap_blocks(Random& random, MutatedRecording& recording) {
  MemoryRecording& base = recording.base_;
  const Snapshot& one = base.all_snapshots[pick(random, base.all_snapshots.size())];
  const Snapshot& two = base.all_snapshots[pick(random, base.all_snapshots.size())];
  if (one.at == two.at || one.layer != two.layer) return "nothing";
  BlockBytes &a = recording.block_words(one.at), &b = recording.block_words(two.at);
  const auto part = random.below(3);
  if (part != 0) std::swap(a.first, b.first);
  if (part != 1) std::swap(a.second, b.second);
  return "blocks swapped";
}

}  // namespace

std::string mutate_recording(Random& random, MutatedRecording& recording) {
  std::vector<Tap> taps;
  for (std::size_t t = 0; t < kTaps; ++t)
    if (recording.base_.all_taps.has(static_cast<Tap>(t))) taps.push_back(static_cast<Tap>(t));
  if (!recording.base_.all_snapshots.empty()) taps.insert(taps.end(), {Tap::state, Tap::conv_state});
  const Tap tap = taps[pick(random, taps.size())];
  const auto how = random.below(10);
  if (how == 9) return change_several(random, recording, taps);
  if (how >= 6) return is_block(tap) ? swap_blocks(random, recording) : swap_rows(random, recording, tap);
  change_one(random, recording, tap, draw_spot(random, recording.base_, is_block(tap)), how < 3);
  return std::string(is_block(tap) ? "a block's word" : "a tap's word") + (how < 3 ? ", a bit flipped" : ", by ULPs");
}

namespace {

/// One word, or sometimes two rows swapped.
std::string mutate_rows(Random& random, Bytes& words, std::size_t rows, DType type) {
  const std::size_t count = words.size() / size_of(type);
  const auto how = random.below(rows > 1 ? 5 : 4);
  if (how == 4) {
    const std::size_t bytes = words.size() / rows;
    swap_runs(words, 0, words, bytes * (1 + pick(random, rows - 1)), bytes);
    return ", rows swapped";
  }
  change_word(random, words, pick(random, count), type, how < 2);
  return how < 2 ? ", a bit flipped" : ", by ULPs";
}

InputMutation mutate_inputs(Random& random, MutatedStream& stream) {
  static constexpr Bytes StepInputs::*fields[] = {&StepInputs::mixed_qkv, &StepInputs::a, &StepInputs::b,
                                                  &StepInputs::z};
  static constexpr const char* names[] = {"x", "a", "b", "z"};
  const std::int64_t step = static_cast<std::int64_t>(pick(random, stream.steps()));
  const int layer = static_cast<int>(pick(random, stream.model().layers()));
  StepInputs& inputs = stream.inputs_[{step, layer}] = stream.base_.at(step, layer);
  const std::size_t field = pick(random, 4);
  const std::string how =
      mutate_rows(random, inputs.*fields[field], static_cast<std::size_t>(stream.rows()), stream.model().act_dtype);
  return {names[field] + how, layer, step};
}

InputMutation mutate_params(Random& random, MutatedStream& stream) {
  const int layer = static_cast<int>(pick(random, stream.model().layers()));
  LayerParams& params = stream.params_[layer] = stream.base_.params(layer);
  const std::size_t field = pick(random, 4);
  if (field < 2) {
    std::vector<float>& values = field == 0 ? params.A_log : params.dt_bias;
    Bytes words(values.size() * 4);
    std::memcpy(words.data(), values.data(), words.size());
    const std::string how = mutate_rows(random, words, 1, DType::f32);
    std::memcpy(values.data(), words.data(), words.size());
    return {(field == 0 ? "A_log" : "dt_bias") + how, layer, 0};
  }
  Bytes& words = field == 2 ? params.conv_weight : params.norm_weight;
  return {(field == 2 ? "conv_weight" : "norm_weight") + mutate_rows(random, words, 1, stream.model().act_dtype), layer,
          0};
}

InputMutation mutate_load(Random& random, MutatedStream& stream) {
  std::vector<Event> loads;
  for (const Event& event : stream.events())
    if (event.kind == EventKind::load) loads.push_back(event);
  const Event& event = loads.at(pick(random, loads.size()));
  BlockBytes& row = stream.load_rows_[event.source] = stream.base_.load_rows.at(event.source);
  const bool conv = random.below(2) == 0;
  const std::string how = mutate_rows(random, conv ? row.second : row.first, 1,
                                      conv ? stream.model().conv_state_dtype : stream.model().state_dtype);
  std::int64_t step = event.step;  // the first event that takes the row
  for (const Event& other : loads)
    if (other.source == event.source) step = std::min<std::int64_t>(step, other.step);
  const int layer = event.layer >= 0 ? event.layer : static_cast<int>(pick(random, stream.model().layers()));
  return {(conv ? "loaded conv" : "loaded state") + how, layer, step};
}

}  // namespace

InputMutation mutate_stream(Random& random, MutatedStream& stream) {
  switch (random.below(4)) {
    case 0:
      return mutate_params(random, stream);
    case 1:
      return mutate_load(random, stream);
    default:
      return mutate_inputs(random, stream);
  }
}

}  // namespace gdnsim::test
