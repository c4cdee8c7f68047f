// Hypotheses about which state a row read and where it wrote: another block's, another position's, none.
#include <algorithm>

#include "explain/rows.hpp"

namespace gdnsim::explaining {
namespace {

std::string name(std::int32_t block) { return "block " + std::to_string(block); }

/// Which row of the step names the block, if another one does: " (row 1's, sequence 9)".
std::string whose(const StepPlan& plan, int row, std::int32_t block) {
  const auto found = std::ranges::find(plan.block, block);
  const auto other = found - plan.block.begin();
  if (found == plan.block.end() || other == row) return "";
  const std::int64_t sequence = plan.sequence[static_cast<std::size_t>(other)];
  return " (row " + std::to_string(other) + "'s" + (sequence < 0 ? "" : ", sequence " + std::to_string(sequence)) + ")";
}

/// Reads another block's state, or its own where it should have gone on from another; writes to its own.
Twist reads_block(const Where& where, Part part, std::int32_t other) {
  return changed_before(
      where, [=](StepEdit& edit, int, std::int32_t, Words& words) { take(part, edit.read_still(other), words); });
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
    if (!keep_own) take(part, edit.still_of(block, before), words);
  });
  if (target >= 0) twist.blocks = {target};
  return twist;
}

/// The row used another block altogether: read it, wrote it, and left its own alone.
Twist uses_instead(const Where& where, Part part, std::int32_t other) {
  const auto read = [=](StepEdit& edit, int, std::int32_t block, Words& words) {
    if (block != other) take(part, edit.read_still(other), words);
  };
  const auto write = [=](StepEdit& edit, int, std::int32_t block, const Words& before, Words& words) {
    if (block == other) return;
    Words theirs = read_words(edit.pool, edit.layer, other);
    take(part, words, theirs);
    write_words(edit.pool, edit.layer, other, theirs);
    take(part, edit.still_of(block, before), words);
  };
  Twist twist = changed_around(where, read, write);
  twist.blocks = {other};
  return twist;
}

void blocks_of_row(const Scene& scene, const RowStep& place, Hypotheses& out) {
  const StepPlan& plan = scene.plan(place.step);
  const std::int32_t own = plan.block[static_cast<std::size_t>(place.row)],
                     start = plan.start(static_cast<std::size_t>(place.row));
  for (Part part : scene.parts())
    for (std::int32_t other : scene.blocks) {
      const std::string what = words_of(part), block = name(other) + whose(plan, place.row, other);
      const std::string instead = start == own ? "" : " instead of " + name(start);
      if (other != start)
        propose_row(scene, out, "wrong-block", place, other, "read the " + what + " of " + block + instead,
                    [=](const Where& where) { return reads_block(where, part, other); });
      if (other == own) continue;
      if (other != start)
        propose_row(scene, out, "wrong-block", place, other, "used " + block + " (" + what + ") instead of its own",
                    [=](const Where& where) { return uses_instead(where, part, other); });
      propose_row(scene, out, "wrong-block", place, other,
                  "wrote its " + what + " to " + block + (other == start ? ", which it went on from," : "") +
                      " instead of its own",
                  [=](const Where& where) { return writes_to(where, part, other, false); });
    }
}

/// The block's own rows in time order, its latest first in `rows`: where the place is among them.
std::vector<RowStep> in_time_order(const Scene& scene, std::int32_t block) {
  auto rows = rows_of_block(scene, block, scene.at.step + 1, static_cast<std::int64_t>(scene.plans.size()) - 1);
  for (const RowStep& place : rows_of_state(scene, 0)) rows.push_back(place);
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

Twist reads_words(const Where& where, Part part, const Words& words) {
  return changed_before(where, [=](StepEdit&, int, std::int32_t, Words& now) { take(part, words, now); });
}

void read_of_position(const Scene& scene, const RowStep& place, std::ptrdiff_t n, const std::string& which,
                      const Words& words, Hypotheses& out) {
  for (Part part : scene.parts()) {
    propose_row(
        scene, out, "wrong-position", place, -1,
        "read its own " + words_of(part) + " of position p" + (n > 0 ? "+" : "") + std::to_string(n) + ", " + which,
        [=](const Where& where) { return reads_words(where, part, words); });
    if (has_recurrent(part)) out.back().state_at = n;
    if (has_conv(part)) out.back().window_at = n;
  }
}

/// A state that the row's sequence left earlier: after which step, in which block, n tokens from the one to go on from.
struct Left {
  std::int64_t step;
  std::int32_t block;
  std::int64_t n;
  const Words* words;
  std::string position() const { return "p" + std::string(n > 0 ? "+" : "") + std::to_string(n); }
};

std::string from_words(const Left& left, std::int32_t start) {
  if (left.block == start) return "the one after step " + std::to_string(left.step);
  return name(left.block) + ", the one after step " + std::to_string(left.step) + ", not " + name(start);
}

Mechanism wrong_state(const Scope& scope, const Left& left, std::int32_t start) {
  return {"wrong-position", scope,
          "read its own recurrent state of position " + left.position() + ", " + from_words(left, start), "",
          Proof::rerun};
}

Mechanism wrong_window(const Scope& scope, const Left& left, std::int32_t start) {
  const std::int64_t by = left.n < 0 ? -left.n : left.n;
  return {"conv-window-shift", scope,
          "conv window read " + std::to_string(by) + (by == 1 ? " column" : " columns") +
              (left.n < 0 ? " too early: " : " too late: ") + from_words(left, start),
          "", Proof::rerun};
}

/// What a row of a sequence with several candidates a launch goes on from, when the wrong one is taken for the accepted one:
/// for the state, for the window (a shift), or for each its own; nullptr: the right one. Each has a line.
void columns_of_launch(const Scene& scene, const RowStep& place, const Left* state, const Left* window,
                       Hypotheses& out) {
  const std::int32_t start = scene.plan(place.step).start(static_cast<std::size_t>(place.row));
  const auto scope = [&](const Left& left) { return scene.scope(place.step, place.row, left.block); };
  Hypothesis hypothesis;
  const Where where{place.step, place.step, place.row};
  if (state != nullptr) {
    hypothesis.mechanisms.push_back(wrong_state(scope(*state), *state, start));
    hypothesis.twists.push_back(reads_words(where, Part::recurrent, *state->words));
  }
  if (window != nullptr) {
    hypothesis.mechanisms.push_back(wrong_window(scope(*window), *window, start));
    hypothesis.twists.push_back(reads_words(where, Part::conv, *window->words));
  }
  if (state != nullptr) hypothesis.state_at = state->n;
  if (window != nullptr) hypothesis.window_at = window->n;
  out.push_back(std::move(hypothesis));
}

/// The states that the row's sequence left before, the latest first.
std::vector<Left> left_before(const Scene& scene, const RowStep& place) {
  constexpr std::size_t kMost = 8;  // two launches of a few candidates
  const auto tokens = tokens_of_states(scene);
  const StepPlan& plan = scene.plan(place.step);
  const auto row = static_cast<std::size_t>(place.row);
  const std::int64_t before = tokens.at({place.step, plan.block[row]}) - 1;
  std::vector<Left> lefts;
  for (const auto& [at, words] : scene.history.after) {
    const auto& [step, block] = at;
    const StepPlan& then = scene.plan(step);
    const auto there = std::ranges::find(then.block, block) - then.block.begin();
    const bool own = then.sequence[static_cast<std::size_t>(there)] == plan.sequence[row];
    if (own && step < place.step && tokens.at(at) != before)
      lefts.push_back({step, block, tokens.at(at) - before, &words});
  }
  std::ranges::reverse(lefts);
  if (lefts.size() > kMost) lefts.resize(kMost);
  return lefts;
}

/// State and window each of another token: neither comes right alone.
void pairs_of_moments(const Scene& scene, const RowStep& place, const std::vector<Left>& lefts, Hypotheses& out) {
  for (const Left& state : lefts)
    for (const Left& window : lefts)
      if (&state != &window) columns_of_launch(scene, place, &state, &window, out);
}

}  // namespace

void propose_wrong_blocks(const Scene& scene, Hypotheses& out) {
  for (const RowStep& place : rows_of_state(scene)) blocks_of_row(scene, place, out);
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

void propose_columns(const Scene& scene, Hypotheses& out) {
  const auto parts = scene.parts();
  const auto may = [&](Part part) { return std::ranges::find(parts, part) != parts.end(); };
  for (const RowStep& place : rows_of_state(scene)) {
    const StepPlan& plan = scene.plan(place.step);
    if (plan.accepted.empty() && plan.source.empty()) continue;
    const auto lefts = left_before(scene, place);
    for (const Left& left : lefts) {
      if (may(Part::recurrent)) columns_of_launch(scene, place, &left, nullptr, out);
      if (may(Part::conv)) columns_of_launch(scene, place, nullptr, &left, out);
      if (may(Part::both)) columns_of_launch(scene, place, &left, &left, out);
    }
    if (may(Part::both)) pairs_of_moments(scene, place, lefts, out);
  }
}

void propose_positions(const Scene& scene, Hypotheses& out) {
  const std::int32_t own = scene.at.block;
  const auto rows = in_time_order(scene, own);
  for (const RowStep& place : rows_of_state(scene)) {
    const std::int64_t sequence = scene.plan(place.step).sequence[static_cast<std::size_t>(place.row)];
    // The state before rows[here] is the one after rows[here - 1].
    const auto here = std::ranges::find(rows, place.step, &RowStep::step) - rows.begin();
    for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(rows.size()); ++i) {
      const RowStep& other = rows[static_cast<std::size_t>(i)];
      const std::ptrdiff_t n = i - (here - 1);
      const std::int32_t block = scene.plan(other.step).block[static_cast<std::size_t>(other.row)];
      const auto kept = scene.history.after.find({other.step, block});
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
    const StepPlan& plan = scene.plan(place.step);
    if (!scene.in_conv() || !plan.accepted.empty() || !plan.source.empty()) continue;  // propose_columns has asked
    constexpr std::size_t kNear = 4;
    auto lefts = left_before(scene, place);
    lefts.resize(std::min(lefts.size(), kNear));
    pairs_of_moments(scene, place, lefts, out);
  }
}

void propose_missing_writes(const Scene& scene, Hypotheses& out) {
  for (const RowStep& place : rows_of_state(scene))
    for (Part part : {Part::recurrent, Part::conv, Part::both})
      propose_row(scene, out, "write-missing", place, -1, words_of(part) + " not written",
                  [=](const Where& where) { return writes_to(where, part, -1, false); });
  // Several of the block's writes in a row are missing.
  const auto rows = rows_of_state(scene);
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
