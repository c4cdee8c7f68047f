// Hypotheses about two rows of a step that took each other's blocks, as two entries of an index that changed places do.
#include <array>
#include <utility>

#include "explain/kinds.hpp"

namespace gdnsim::explaining {
namespace {

/// Two rows of one step, and the blocks that they name.
struct Pair {
  std::int64_t step;
  std::array<std::size_t, 2> row;
  std::array<std::int32_t, 2> block;
};

void exchange(StepEdit& edit, const Pair& pair, Part part) {
  Words first = read_words(edit.pool, edit.layer, pair.block[0]),
        second = read_words(edit.pool, edit.layer, pair.block[1]);
  const Words kept = first;
  take(part, second, first);
  take(part, kept, second);
  write_words(edit.pool, edit.layer, pair.block[0], first);
  write_words(edit.pool, edit.layer, pair.block[1], second);
}

/// Each finds in its own block what the other goes on from.
void read_others(StepEdit& edit, const Pair& pair, Part part) {
  std::array<Words, 2> words;
  for (std::size_t i = 0; i < 2; ++i) {
    words[i] = read_words(edit.pool, edit.layer, pair.block[i]);
    take(part, edit.read_still(edit.plan.start(pair.row[1 - i])), words[i]);
  }
  for (std::size_t i = 0; i < 2; ++i) write_words(edit.pool, edit.layer, pair.block[i], words[i]);
}

Twist swapped(const Pair& pair, Part part, bool reads) {
  Twist twist;
  if (reads)
    twist.before = [=](StepEdit& edit) {
      if (edit.plan.step == pair.step) read_others(edit, pair, part);
    };
  twist.after = [=](StepEdit& edit) {
    if (edit.plan.step == pair.step) exchange(edit, pair, part);
  };
  return twist;
}

std::string whose(const StepPlan& plan, const Pair& pair, std::size_t i) {
  const std::int64_t sequence = plan.sequence[pair.row[i]];
  return "block " + std::to_string(pair.block[i]) + " (row " + std::to_string(pair.row[i]) + "'s" +
         (sequence < 0 ? "" : ", sequence " + std::to_string(sequence)) + ")";
}

/// Each of the two has a line.
void propose_pair(const Scene& scene, const Pair& pair, Part part, bool reads, Hypotheses& out) {
  Hypothesis hypothesis;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string other = whose(scene.plan(pair.step), pair, 1 - i);
    const std::string says = reads ? "used " + other + " (" + words_of(part) + ") instead of its own"
                                   : "wrote its " + words_of(part) + " to " + other + " instead of its own";
    const Scope scope = scene.scope(pair.step, static_cast<int>(pair.row[i]), pair.block[1 - i]);
    hypothesis.mechanisms.push_back({"wrong-block", scope, says, "", Proof::rerun});
  }
  hypothesis.twists = {swapped(pair, part, reads)};
  out.push_back(std::move(hypothesis));
}

}  // namespace

void propose_swaps(const Scene& scene, Hypotheses& out) {
  for (const RowStep& place : rows_of_state(scene)) {
    const StepPlan& plan = scene.plan(place.step);
    const auto row = static_cast<std::size_t>(place.row);
    for (std::size_t other = 0; other < plan.block.size(); ++other) {
      if (other == row || plan.block[other] < 0) continue;
      const Pair pair{place.step, {row, other}, {plan.block[row], plan.block[other]}};
      for (Part part : scene.parts())
        for (bool reads : {true, false}) propose_pair(scene, pair, part, reads, out);
    }
  }
}

}  // namespace gdnsim::explaining
