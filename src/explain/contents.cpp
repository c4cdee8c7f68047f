// Hypotheses about what a state held when it was read: a shifted window, a transposed state, poison.
#include <algorithm>
#include <cstring>

#include "explain/edits.hpp"
#include "explain/rows.hpp"
#include "explain/words.hpp"
#include "gdnsim/arith.hpp"
#include "gdnsim/compare.hpp"

namespace gdnsim::explaining {
namespace {

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

/// Every recorded word that is other than ours is a NaN, as where poison was read. Not known of a digest.
bool only_nans_differ(const Model& model, const WrongUnit& wrong) {
  const auto words = wrong_words(wrong, shape_of(wrong.unit.tap, model).type);
  const auto is_nan = [&](const WrongWord& word) {
    const double x = value_of(shape_of(wrong.unit.tap, model).type, word.want);
    return x != x;
  };
  return !words.empty() && std::ranges::all_of(words, is_nan);
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
  std::string others;  // that poison alone does not make
  for (const WrongUnit& w : scene.found.wrong) {
    if (w.unit.step != wrong.unit.step || w.unit.row != wrong.unit.row) continue;
    twist.forgiven.push_back(w.unit);
    if (!only_nans_differ(scene.model(), w)) others += (others.empty() ? "" : ", ") + tap_text(w.unit.tap);
  }
  Hypothesis hypothesis;
  hypothesis.mechanisms = {{"poison-read", scene.scope(wrong.unit.step, wrong.unit.row, -1),
                            std::string(name_of(wrong.unit.tap)) +
                                " was never written: every word still holds the poison that was there before" +
                                (others.empty() ? "" : "; not explained by that, and set aside: this row's " + others),
                            "", Proof::fact}};
  hypothesis.twists = {twist};
  out.push_back(std::move(hypothesis));
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

}  // namespace gdnsim::explaining
