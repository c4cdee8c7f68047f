// Hypotheses about which state a row read and where it wrote: another block's, another position's, none.
#include <algorithm>

#include "explain_rows.hpp"

namespace gdnsim::explaining {
namespace {

std::string name(std::int32_t block) { return "block " + std::to_string(block); }

/// Reads another block's state; writes to its own.
Twist reads_block(const Where& where, Part part, std::int32_t other) {
  return changed_before(where, [=](StepEdit& edit, int, std::int32_t block, Words& words) {
    if (block != other) take(part, read_words(edit.pool, edit.layer, other), words);
  });
}

/// What the row wrote of the part goes to `target` as well or instead; -1: nowhere.
Twist writes_to(const Where& where, Part part, std::int32_t target, bool keep_own) {
  Twist twist = changed_after(where, [=](StepEdit& edit, int, std::int32_t block, const Words& before, Words& words) {
    if (block == target) return;
    if (target >= 0) {
      Words other = read_words(edit.pool, edit.layer, target);
      take(part, words, other);
      write_words(edit.pool, edit.layer, target, other);
    }
    if (!keep_own) take(part, before, words);
  });
  if (target >= 0) twist.blocks = {target};
  return twist;
}

/// The row used another block altogether: read it, wrote it, and left its own alone.
Twist uses_instead(const Where& where, Part part, std::int32_t other) {
  const auto read = [=](StepEdit& edit, int, std::int32_t block, Words& words) {
    if (block != other) take(part, read_words(edit.pool, edit.layer, other), words);
  };
  const auto write = [=](StepEdit& edit, int, std::int32_t block, const Words& before, Words& words) {
    if (block == other) return;
    Words theirs = read_words(edit.pool, edit.layer, other);
    take(part, words, theirs);
    write_words(edit.pool, edit.layer, other, theirs);
    take(part, before, words);
  };
  Twist twist = changed_around(where, read, write);
  twist.blocks = {other};
  return twist;
}

void blocks_of_row(const Scene& scene, const RowStep& place, Hypotheses& out) {
  const std::int32_t own = scene.plan(place.step).block[static_cast<std::size_t>(place.row)];
  for (Part part : scene.parts())
    for (std::int32_t other : scene.blocks) {
      if (other == own) continue;
      const std::string what = words_of(part);
      propose_row(scene, out, "wrong-block", place, other, "read the " + what + " of " + name(other),
                  [=](const Where& where) { return reads_block(where, part, other); });
      propose_row(scene, out, "wrong-block", place, other, "used " + name(other) + " (" + what + ") instead of its own",
                  [=](const Where& where) { return uses_instead(where, part, other); });
      propose_row(scene, out, "wrong-block", place, other,
                  "wrote its " + what + " to " + name(other) + " instead of its own",
                  [=](const Where& where) { return writes_to(where, part, other, false); });
    }
}

/// The block's own rows in time order, its latest first in `rows`: where the place is among them.
std::vector<RowStep> in_time_order(const Scene& scene, std::int32_t block) {
  auto rows = rows_of_block(scene, block, 0, static_cast<std::int64_t>(scene.plans.size()) - 1);
  std::ranges::reverse(rows);
  return rows;
}

/// What the last load or zero before a step put into the block; nothing where there was none.
std::optional<std::pair<Event, Words>> start_of(const Scene& scene, std::int32_t block, std::int64_t step) {
  Stream& stream = scene.bench.stream;
  std::optional<Event> last;
  for (const Event& event : stream.events())
    if (event.block == block && event.step <= step && (event.layer == -1 || event.layer == scene.bench.layer) &&
        (event.kind == EventKind::load || event.kind == EventKind::zero))
      last = event;
  if (!last) return std::nullopt;
  Words words{Bytes(scene.model().state_bytes()), Bytes(scene.model().conv_bytes())};
  if (last->kind == EventKind::load) stream.load_row(last->source, words.recurrent, words.conv);
  return std::pair{*last, std::move(words)};
}

void read_of_position(const Scene& scene, const RowStep& place, std::ptrdiff_t n, const std::string& which,
                      const Words& words, Hypotheses& out) {
  for (Part part : scene.parts())
    propose_row(
        scene, out, "wrong-position", place, -1,
        "read its own " + words_of(part) + " of position p" + (n > 0 ? "+" : "") + std::to_string(n) + ", " + which,
        [=](const Where& where) {
          return changed_before(where, [=](StepEdit&, int, std::int32_t, Words& now) { take(part, words, now); });
        });
}

}  // namespace

void propose_wrong_blocks(const Scene& scene, Hypotheses& out) {
  for (const RowStep& place : rows_of_block(scene, scene.at.block, scene.anchor, scene.at.step))
    blocks_of_row(scene, place, out);
  if (scene.at.block < 0) return;
  // Some other row's write went there: a block that no row named, or one that a row named too.
  for (std::int64_t step = scene.at.step; step >= scene.anchor; --step)
    for (int row = 0; row < scene.plan(step).rows(); ++row) {
      const std::int32_t own = scene.plan(step).block[static_cast<std::size_t>(row)];
      if (own < 0 || own == scene.at.block) continue;
      for (Part part : {Part::both, Part::recurrent, Part::conv})
        for (bool keep : {false, true})
          propose_row(
              scene, out, "wrong-block", {step, row}, scene.at.block,
              "wrote its " + words_of(part) + " to " + name(scene.at.block) +
                  (keep ? " as well as to its own" : " instead of its own"),
              [=, target = scene.at.block](const Where& where) { return writes_to(where, part, target, keep); });
    }
}

void propose_positions(const Scene& scene, Hypotheses& out) {
  const std::int32_t own = scene.at.block;
  const auto rows = in_time_order(scene, own);
  for (const RowStep& place : rows_of_block(scene, own, scene.anchor, scene.at.step)) {
    const std::int64_t sequence = scene.plan(place.step).sequence[static_cast<std::size_t>(place.row)];
    // The state before rows[here] is the one after rows[here - 1].
    const auto here = std::ranges::find(rows, place.step, &RowStep::step) - rows.begin();
    for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(rows.size()); ++i) {
      const RowStep& other = rows[static_cast<std::size_t>(i)];
      const std::ptrdiff_t n = i - (here - 1);
      const auto kept = scene.history.after.find({other.step, own});
      if (n == 0 || kept == scene.history.after.end()) continue;
      if (scene.plan(other.step).sequence[static_cast<std::size_t>(other.row)] != sequence) continue;
      read_of_position(scene, place, n, "the one after step " + std::to_string(other.step), kept->second, out);
    }
    if (const auto start = start_of(scene, own, place.step)) {
      const auto since = rows_of_block(scene, own, start->first.step, place.step - 1).size();
      if (since > 0)
        read_of_position(scene, place, -static_cast<std::ptrdiff_t>(since), "the one it started from", start->second,
                         out);
    }
  }
}

void propose_missing_writes(const Scene& scene, Hypotheses& out) {
  for (const RowStep& place : rows_of_block(scene, scene.at.block, scene.anchor, scene.at.step))
    for (Part part : {Part::recurrent, Part::conv, Part::both})
      propose_row(scene, out, "write-missing", place, -1, words_of(part) + " not written",
                  [=](const Where& where) { return writes_to(where, part, -1, false); });
  // Several of the block's writes in a row are missing.
  const auto rows = rows_of_block(scene, scene.at.block, scene.anchor, scene.at.step);
  for (std::size_t n = 1; n < rows.size(); ++n)
    for (Part part : scene.parts()) {
      Hypothesis run;
      bool one_row = true;
      for (std::size_t i = 0; i <= n; ++i) {
        run.twists.push_back(writes_to({rows[i].step, rows[i].step, rows[i].row}, part, -1, false));
        one_row &= rows[i].row == rows[0].row;
      }
      const Scope scope{rows[n].step, rows[0].step, scene.bench.layer, one_row ? rows[0].row : -1, scene.at.block, -1};
      run.mechanisms = {{"write-missing", scope, words_of(part) + " not written", "", Proof::rerun}};
      run.again = [=, &scene](const Where& where) {
        Hypothesis wider;
        wider.twists = {writes_to(where, part, -1, false)};
        wider.mechanisms = {{"write-missing",
                             {where.from, where.to, scene.bench.layer, where.row, -1, -1},
                             words_of(part) + " not written",
                             "",
                             Proof::rerun}};
        return wider;
      };
      out.push_back(std::move(run));
    }
}

}  // namespace gdnsim::explaining
