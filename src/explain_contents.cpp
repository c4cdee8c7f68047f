// Hypotheses about what a state held when it was read: a shifted window, a transposed state, poison; and events that went wrong.
#include <algorithm>
#include <cstring>

#include "explain_rows.hpp"
#include "gdnsim/arith.hpp"
#include "gdnsim/compare.hpp"
#include "gdnsim/lifecycle.hpp"

namespace gdnsim::explaining {
namespace {

using Edit = std::function<void(const Model&, Words&)>;

/// What the rows read is changed by `edit`. `roll_true`: the window then rolls as if nothing had been wrong; else what the step
/// stores of it stays.
Twist edited(const Where& where, const Edit& edit, bool roll_true) {
  const auto before = [=](StepEdit& e, int, std::int32_t, Words& words) { edit(e.pool.model(), words); };
  if (!roll_true) return changed_before(where, before);
  return changed_around(where, before, [](StepEdit& e, int, std::int32_t, const Words& kept, Words& words) {
    const Model& model = e.pool.model();
    const std::size_t column = model.conv_bytes() / static_cast<std::size_t>(model.W - 1);
    if (model.W > 2) std::memcpy(words.conv.data(), kept.conv.data() + column, words.conv.size() - column);
  });
}

enum class Fill : std::uint8_t { zero, edge, rotate };
constexpr Fill kFills[] = {Fill::zero, Fill::edge, Fill::rotate};

/// Column j takes what stood in column j + by.
void shift_window(const Model& model, Bytes& conv, int by, Fill fill) {
  const int columns = model.W - 1;
  const std::size_t bytes = conv.size() / static_cast<std::size_t>(columns);
  const Bytes before = conv;
  for (int j = 0; j < columns; ++j) {
    int from = j + by;
    const bool inside = from >= 0 && from < columns;
    if (fill == Fill::edge) from = std::clamp(from, 0, columns - 1);
    if (fill == Fill::rotate) from = ((from % columns) + columns) % columns;
    std::byte* to = conv.data() + static_cast<std::size_t>(j) * bytes;
    if (!inside && fill == Fill::zero)
      std::memset(to, 0, bytes);
    else
      std::memcpy(to, before.data() + static_cast<std::size_t>(from) * bytes, bytes);
  }
}

/// The newest column (x itself) as stored words of the conv state.
Bytes newest_column(const StepEdit& edit, int row) {
  const Model& model = edit.pool.model();
  const DType from = model.act_dtype, to = model.conv_state_dtype;
  const std::size_t dim = static_cast<std::size_t>(model.dim());
  Bytes words(dim * size_of(to));
  const std::byte* x = edit.inputs.mixed_qkv.data() + static_cast<std::size_t>(row) * dim * size_of(from);
  if (from == to) {
    std::memcpy(words.data(), x, words.size());
    return words;
  }
  for (std::size_t i = 0; i < dim; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, x + i * size_of(from), size_of(from));
    const float value = from == DType::f32    ? float_of(word)
                        : from == DType::bf16 ? f32_from_bf16(static_cast<std::uint16_t>(word))
                                              : f32_from_f16(static_cast<std::uint16_t>(word));
    const std::uint32_t out = to == DType::f32    ? bits_of(value)
                              : to == DType::bf16 ? bf16_from_f32(value)
                                                  : f16_from_f32(value);
    std::memcpy(words.data() + i * size_of(to), &out, size_of(to));
  }
  return words;
}

/// Too late by one: every tap sees the next column, the last stored one sees x.
Twist late_with_x(const Where& where, bool roll_true) {
  const auto before = [](StepEdit& e, int row, std::int32_t, Words& words) {
    shift_window(e.pool.model(), words.conv, 1, Fill::edge);
    const Bytes x = newest_column(e, row);
    std::memcpy(words.conv.data() + words.conv.size() - x.size(), x.data(), x.size());
  };
  const auto after = [](StepEdit& e, int, std::int32_t, const Words& kept, Words& words) {
    const Model& model = e.pool.model();
    const std::size_t column = model.conv_bytes() / static_cast<std::size_t>(model.W - 1);
    if (model.W > 2) std::memcpy(words.conv.data(), kept.conv.data() + column, words.conv.size() - column);
  };
  return changed_around(where, before, roll_true ? ChangeAfter(after) : ChangeAfter());
}

void transpose_heads(const Model& model, Words& words) {
  const std::size_t width = size_of(model.state_dtype), n = static_cast<std::size_t>(model.K);
  Bytes out(words.recurrent.size());
  for (std::size_t head = 0; head < static_cast<std::size_t>(model.HV); ++head)
    for (std::size_t v = 0; v < n; ++v)
      for (std::size_t k = 0; k < n; ++k)
        std::memcpy(out.data() + ((head * n + k) * n + v) * width,
                    words.recurrent.data() + ((head * n + v) * n + k) * width, width);
  words.recurrent = std::move(out);
}

void round_state(const Model& model, Words& words) {
  if (model.state_dtype != DType::f32) return;
  for (std::size_t at = 0; at < words.recurrent.size(); at += 4) {
    std::uint32_t word;
    std::memcpy(&word, words.recurrent.data() + at, 4);
    word = static_cast<std::uint32_t>(bf16_from_f32(float_of(word))) << 16;
    std::memcpy(words.recurrent.data() + at, &word, 4);
  }
}

std::uint32_t quiet_nan(DType type) {
  return type == DType::f32 ? 0x7FC00000u : type == DType::bf16 ? 0x7FC0u : 0x7E00u;
}

void fill_words(DType type, std::uint32_t word, std::span<std::byte> words) {
  for (std::size_t at = 0; at < words.size(); at += size_of(type)) std::memcpy(words.data() + at, &word, size_of(type));
}

/// The poison that the block's recorded conv window shows afterwards: a copied NaN keeps its payload.
std::uint32_t poison_of(const Scene& scene, std::int64_t from_step) {
  const DType type = scene.model().conv_state_dtype;
  Bytes recurrent, conv;
  for (const Snapshot& snapshot : scene.bench.recording.snapshots()) {
    if (snapshot.layer != scene.bench.layer || snapshot.block != scene.at.block || snapshot.step < from_step) continue;
    scene.bench.recording.read_snapshot(snapshot, recurrent, conv);
    for (std::size_t i = 0; i < conv.size() / size_of(type); ++i)
      if (is_foreign_nan(type, word_at(type, conv, i))) return word_at(type, conv, i);
  }
  return quiet_nan(type);
}

/// Heads whose recorded words are all NaN in the first wrong unit, ours not.
std::vector<std::int64_t> nan_heads(const Scene& scene) {
  const WrongUnit& wrong = scene.found.wrong.front();
  const TapShape shape = shape_of(wrong.unit.tap, scene.model());
  std::vector<std::int64_t> heads;
  if (scene.in_conv() || wrong.want.empty() || shape.heads != scene.model().HV) return heads;
  for (std::int64_t head = 0; head < shape.heads; ++head) {
    bool all = true;
    for (std::int64_t i = 0; i < shape.per_head; ++i) {
      const double x =
          value_of(shape.type, word_at(shape.type, wrong.want, static_cast<std::size_t>(head * shape.per_head + i)));
      all &= x != x;
    }
    if (all) heads.push_back(head);
  }
  return heads;
}

/// A NaN that a head's arithmetic made and ours does not.
void nan_in_head(const Scene& scene, const RowStep& place, std::int64_t head, Hypotheses& out) {
  const auto fill = [=](StepEdit& e, int, std::int32_t, Words& words) {
    const std::size_t bytes = words.recurrent.size() / static_cast<std::size_t>(e.pool.model().HV);
    const DType type = e.pool.model().state_dtype;
    fill_words(type, quiet_nan(type),
               std::span(words.recurrent).subspan(static_cast<std::size_t>(head) * bytes, bytes));
  };
  propose_row(scene, out, "nan-born", place, -1,
              "a NaN came out of head " + std::to_string(head) + "'s arithmetic, which read none and makes none here",
              [=](const Where& where) { return changed_before(where, fill); });
  out.back().mechanisms[0].scope.head = head;
  for (const WrongUnit& w : scene.found.wrong)  // the values on the way to the state show it as well
    if (w.unit.step == place.step && w.unit.row == place.row && w.unit.tap >= Tap::beta && w.unit.tap <= Tap::u)
      out.back().twists[0].forgiven.push_back(w.unit);
}

/// An output row that still holds what the buffer held before: NaNs that no arithmetic makes.
void poisoned_output(const Scene& scene, Hypotheses& out) {
  const WrongUnit& wrong = scene.found.wrong.front();
  const DType type = shape_of(wrong.unit.tap, scene.model()).type;
  for (std::size_t i = 0; i < wrong.want.size() / size_of(type); ++i)
    if (!is_foreign_nan(type, word_at(type, wrong.want, i))) return;
  if (wrong.want.empty() || wrong.unit.row < 0 || wrong.unit.tap == Tap::state || wrong.unit.tap == Tap::conv_state)
    return;
  Twist twist;
  for (const WrongUnit& w : scene.found.wrong)
    if (w.unit.step == wrong.unit.step && w.unit.row == wrong.unit.row) twist.forgiven.push_back(w.unit);
  Hypothesis hypothesis;
  hypothesis.mechanisms = {{"poison-read", scene.scope(wrong.unit.step, wrong.unit.row, -1),
                            std::string(name_of(wrong.unit.tap)) +
                                " was never written: every word still holds the poison that was there before",
                            "", Proof::fact}};
  hypothesis.twists = {twist};
  out.push_back(std::move(hypothesis));
}

std::string columns(int by) {
  const int n = by < 0 ? -by : by;
  return std::to_string(n) + (n == 1 ? " column" : " columns") + (by < 0 ? " too early" : " too late");
}

std::string event_words(const Event& event) {
  return "the " + std::string(name_of(event.kind)) + " of block " + std::to_string(event.block);
}

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
void one_event(const Scene& scene, std::int64_t at, Hypotheses& out) {
  const Bench& bench = scene.bench;
  Stream& stream = bench.stream;
  const Event event = stream.events()[static_cast<std::size_t>(at)];
  const Scope scope{event.step, event.step, bench.layer, -1, event.block, -1};
  const std::string what = event_words(event);
  const auto event_state = [event, &stream](Pool& pool, int layer) {
    const Words before = read_words(pool, layer, event.block);
    pool.apply(event, layer, stream);
    Words after = read_words(pool, layer, event.block);
    write_words(pool, layer, event.block, before);
    return after;
  };
  const auto propose = [&](const char* id, std::string says, std::function<void(Pool&, int)> instead,
                           std::int32_t block) {
    Twist twist;
    twist.event = at;
    twist.instead = std::move(instead);
    Scope here = scope;
    here.block = block;
    Hypothesis hypothesis;
    hypothesis.mechanisms = {{id, here, std::move(says), "", Proof::rerun}};
    hypothesis.twists = {std::move(twist)};
    out.push_back(std::move(hypothesis));
  };
  const std::string left = left_by(stream, event, at, bench.layer);
  for (Part part : kParts)  // the part keeps what the block held before
    propose(
        "reset-missing", what + " did not reach its " + words_of(part) + left,
        [=](Pool& pool, int layer) {
          Words words = event_state(pool, layer);
          take(part, read_words(pool, layer, event.block), words);
          write_words(pool, layer, event.block, words);
        },
        event.block);
  if (event.kind == EventKind::zero) return;
  for (Part part : kParts)
    propose(
        "reset-missing", what + " left zeros in its " + words_of(part),
        [=](Pool& pool, int layer) {
          Words words = event_state(pool, layer);
          take(part, {Bytes(pool.model().state_bytes()), Bytes(pool.model().conv_bytes())}, words);
          write_words(pool, layer, event.block, words);
        },
        event.block);
  const auto changed = [=](Edit edit) {
    return [=](Pool& pool, int layer) {
      Words words = event_state(pool, layer);
      edit(pool.model(), words);
      write_words(pool, layer, event.block, words);
    };
  };
  if (scene.model().K == scene.model().V)
    propose("kv-transposed", what + " came with K and V swapped", changed(transpose_heads), event.block);
  if (scene.model().state_dtype == DType::f32)
    propose("state-store-bf16", what + " came rounded to bf16", changed(round_state), event.block);
  for (int by : {-1, 1, -2, 2})
    for (Fill fill : kFills)
      propose("conv-window-shift", what + " came with its conv window " + columns(by),
              changed([=](const Model& model, Words& words) { shift_window(model, words.conv, by, fill); }),
              event.block);
  for (std::int32_t other : scene.blocks)
    if (other != event.block)
      for (Part part : kParts)
        propose(
            "wrong-block", what + " took the " + words_of(part) + " of block " + std::to_string(other),
            [=](Pool& pool, int layer) {
              Words words = event_state(pool, layer);
              take(part, read_words(pool, layer, other), words);
              write_words(pool, layer, event.block, words);
            },
            other);
  if (event.kind == EventKind::copy) {  // of another moment: what the source was after its earlier rows
    const auto tokens = tokens_of_states(scene);
    const SourceMoment now = source_before(scene, event);
    for (const auto& [place, words] : scene.history.after) {
      if (place.second != event.source || place.first >= event.step || place.first == now.step) continue;
      const std::int64_t n = tokens.at(place) - now.tokens;
      if (n == 0 || scene.plan(place.first).path == Path::opaque) continue;
      for (Part part : kParts)
        propose("wrong-position",
                what + " took the " + words_of(part) + " that block " + std::to_string(event.source) +
                    " held at position p" + (n > 0 ? "+" : "") + std::to_string(n) + ", after step " +
                    std::to_string(place.first),
                changed([part, words = words](const Model&, Words& now) { take(part, words, now); }), event.block);
    }
  }
  if (event.kind != EventKind::load) return;
  std::set<std::int32_t> sources;
  for (const Event& other : stream.events())
    if (other.kind == EventKind::load && other.source != event.source) sources.insert(other.source);
  for (const Event& other : stream.events())
    if (other.kind == EventKind::load && sources.erase(other.source) > 0)
      propose(
          "wrong-block",
          what + " took the state that step " + std::to_string(other.step) + " loads into block " +
              std::to_string(other.block),
          [=, &stream](Pool& pool, int layer) {
            Event swapped = event;
            swapped.source = other.source;
            pool.apply(swapped, layer, stream);
          },
          other.block);
  for (std::int32_t other : scene.blocks)
    if (other != event.block && other != 0)
      propose(
          "wrong-block", what + " went to block " + std::to_string(other) + " instead",
          [=, &stream](Pool& pool, int layer) {
            Event elsewhere = event;
            elsewhere.block = other;
            pool.apply(elsewhere, layer, stream);
          },
          other);
}

}  // namespace

void propose_windows(const Scene& scene, Hypotheses& out) {
  if (!scene.in_conv() && scene.parts().size() == 1) return;
  const auto lineage = rows_of_state(scene, 0);
  for (std::size_t at = 0; at < lineage.size() && lineage[at].step >= scene.anchor; ++at) {
    const RowStep place = lineage[at];
    const auto propose = [&](int by, const std::function<Twist(const Where&)>& twist) {
      propose_row(scene, out, "conv-window-shift", place, -1, "conv window read " + columns(by), twist);
      out.back().window_at = by;
    };
    for (bool roll_true : {true, false}) {
      for (int by : {-1, 1, -2, 2})
        for (Fill fill : kFills)
          propose(by, [=](const Where& where) {
            return edited(
                where, [=](const Model& model, Words& words) { shift_window(model, words.conv, by, fill); }, roll_true);
          });
      propose(1, [=](const Where& where) { return late_with_x(where, roll_true); });
    }
    // The window of a position before: columns that had rolled out.
    for (std::size_t n = 1; at + 1 + n < lineage.size() && n <= 3; ++n) {
      const RowStep& row = lineage[at + 1 + n];
      const auto kept =
          scene.history.after.find({row.step, scene.plan(row.step).block[static_cast<std::size_t>(row.row)]});
      if (kept == scene.history.after.end()) continue;
      propose(-static_cast<int>(n), [conv = kept->second.conv](const Where& where) {
        return edited(
            where, [=](const Model&, Words& words) { words.conv = conv; }, true);
      });
    }
  }
}

void propose_contents(const Scene& scene, Hypotheses& out) {
  poisoned_output(scene, out);
  const auto heads = nan_heads(scene);
  for (const RowStep& place : rows_of_state(scene)) {
    const auto reads = [&](const char* id, std::int32_t block, const std::string& what, const Edit& edit) {
      propose_row(scene, out, id, place, block, what, [=](const Where& where) { return edited(where, edit, false); });
    };
    const auto writes = [&](const char* id, const std::string& what, const Edit& edit) {
      propose_row(scene, out, id, place, -1, what, [=](const Where& where) {
        return changed_after(
            where, [=](StepEdit& e, int, std::int32_t, const Words&, Words& words) { edit(e.pool.model(), words); });
      });
    };
    if (scene.model().K == scene.model().V) {
      reads("kv-transposed", -1, "read its state with K and V swapped, or found it written so", transpose_heads);
      writes("kv-transposed", "wrote its state with K and V swapped", transpose_heads);
    }
    if (scene.model().state_dtype == DType::f32)
      reads("state-store-bf16", -1, "read its state rounded to bf16, or found it written so", round_state);
    for (std::int64_t head : heads)
      if (std::cmp_less(heads.size(), scene.model().HV)) nan_in_head(scene, place, head, out);
    for (Part part : scene.parts()) {
      const std::uint32_t nan = poison_of(scene, place.step);
      const auto fill = [=](const Model& model, Words& words) {
        if (has_recurrent(part)) fill_words(model.state_dtype, quiet_nan(model.state_dtype), words.recurrent);
        if (has_conv(part)) fill_words(model.conv_state_dtype, nan, words.conv);
      };
      reads("poison-read", -1, "read a " + words_of(part) + " that nothing had written: NaN", fill);
      reads("wrong-block", 0, "read zeros for its " + words_of(part) + ", as the null block holds",
            [=](const Model& model, Words& words) {
              take(part, {Bytes(model.state_bytes()), Bytes(model.conv_bytes())}, words);
            });
    }
  }
}

void propose_events(const Scene& scene, Hypotheses& out) {
  for (const std::int64_t event : events_of_state(scene)) one_event(scene, event, out);
}

}  // namespace gdnsim::explaining
