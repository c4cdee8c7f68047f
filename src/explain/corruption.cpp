// Hypotheses about memory: isolated words of a snapshot that changed on their own, or of the record.
#include <algorithm>
#include <bit>

#include "explain/words.hpp"

namespace gdnsim::explaining {
namespace {

constexpr std::size_t kIsolated = 8;  // words of one unit that still count as isolated

/// The first of the block's steps after which the same bits may have flipped: from there on every recorded bit stays right.
std::int64_t flipped_since(const Scene& scene, Tap tap, const std::vector<WrongWord>& words,
                           const std::vector<RowStep>& rows) {
  std::int64_t since = rows.front().step;
  for (const RowStep& place : rows) {
    const Twist twist =
        changed_bits(place.step, scene.at.block, tap == Tap::state ? Part::recurrent : Part::conv, words);
    if (!scene.trials.run({twist}, scene.from, scene.at.step + 1, true).clean()) return since;
    since = std::max<std::int64_t>(place.step - 1, scene.anchor - 1);
  }
  return since;
}

/// Isolated words of a snapshot: they changed after some step, and stayed.
void changed_words(const Scene& scene, const WrongUnit& wrong, Hypotheses& out) {
  const Tap tap = wrong.unit.tap;
  const DType type = shape_of(tap, scene.model()).type;
  const auto words = wrong_words(wrong, type);
  const bool snapshot = tap == Tap::state || tap == Tap::conv_state;
  if (!snapshot || words.empty() || words.size() > kIsolated) return;
  const auto rows = rows_of_block(scene, wrong.unit.block, scene.anchor, wrong.unit.step);
  const std::int64_t since = rows.empty() ? scene.anchor - 1 : flipped_since(scene, tap, words, rows);
  const Scope scope{std::max<std::int64_t>(since, 0), wrong.unit.step, scene.bench.layer, -1, wrong.unit.block, -1};
  Twist twist;
  twist.after = [=, block = wrong.unit.block, step = wrong.unit.step](StepEdit& edit) {
    if (edit.plan.step != step) return;
    Words state = read_words(edit.pool, edit.layer, block);
    for (const WrongWord& word : words)
      put_word(type, tap == Tap::state ? state.recurrent : state.conv, word.element, word.want);
    write_words(edit.pool, edit.layer, block, state);
  };
  std::string says = tap_text(tap) + " of block " + std::to_string(wrong.unit.block) + ": ";
  for (std::size_t i = 0; i < words.size(); ++i)
    says += (i > 0 ? "; " : "") + word_text(scene.model(), wrong.unit.tap, words[i]);
  says += words.size() == 1 ? " changed" : " changed, " + std::to_string(words.size()) + " words";
  if (rows.empty())
    says += " before the snapshot after step " + std::to_string(scope.to_step) +
            "; no row wrote the block since step " + std::to_string(scene.anchor);
  else
    says += " after the write of step " + std::to_string(scope.from_step) + " and before the snapshot after step " +
            std::to_string(scope.to_step);
  propose_corruption(out, scope, says, twist);
  out.back().more = [&scene, block = wrong.unit.block, step = wrong.unit.step] {
    return last_writer_of(scene, block, step, true);
  };
}

/// Isolated words of the record that nothing downstream shows.
void corrupt_record(const Scene& scene, const WrongUnit& wrong, Hypotheses& out) {
  const DType type = shape_of(wrong.unit.tap, scene.model()).type;
  const auto words = wrong_words(wrong, type);
  if (words.empty() || words.size() > 2) return;
  Twist twist;
  twist.forgiven = {wrong.unit};
  std::string says = "the record of " + tap_text(wrong.unit.tap) + " differs in ";
  for (std::size_t i = 0; i < words.size(); ++i)
    says += (i > 0 ? "; " : "") + word_text(scene.model(), wrong.unit.tap, words[i]);
  says += "; nothing that was computed from it does";
  propose_corruption(out, scene.scope(wrong.unit.step, wrong.unit.row, wrong.unit.block), says, twist);
  out.back().mechanisms[0].proof = Proof::fact;
}

}  // namespace

void propose_bit(const Scene& scene, Hypotheses& out) {
  const auto words = first_wrong_words(scene);
  if (words.size() == 1 && std::popcount(words[0].got ^ words[0].want) == 1)
    changed_words(scene, scene.found.wrong.front(), out);
}

void propose_words(const Scene& scene, Hypotheses& out) { changed_words(scene, scene.found.wrong.front(), out); }

void propose_records(const Scene& scene, Hypotheses& out) { corrupt_record(scene, scene.found.wrong.front(), out); }

}  // namespace gdnsim::explaining
