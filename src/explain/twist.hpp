// A twist: one thing that happens differently in one layer. Hypotheses are made of twists. Private to explain.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/block_words.hpp"
#include "gdnsim/backend.hpp"
#include "gdnsim/mechanism.hpp"

namespace gdnsim::explaining {

/// Which of a block's two states.
enum class Part : std::uint8_t { recurrent, conv, both };
inline constexpr Part kParts[] = {Part::recurrent, Part::conv, Part::both};
/// "recurrent state", "conv state", "state"
std::string words_of(Part part);
inline bool has_recurrent(Part part) { return part != Part::conv; }
inline bool has_conv(Part part) { return part != Part::recurrent; }

using Words = BlockWords;
/// Of blocks that rows of a step moved into: what they held before.
using Still = std::map<std::int32_t, Words>;
/// `to` with the named part taken from `from`.
void take(Part part, const Words& from, Words& to);

/// One row of one tap of one step, one part of a snapshot, or a block's digest around an event: the grain at which trials are
/// judged.
struct Unit {
  std::int64_t step;
  Tap tap;
  int row;                  // -1: a block that no row of the step named
  std::int32_t block;       // -1: an inactive row
  std::int64_t event = -1;  // before (2n) or after (2n + 1) event n of the stream; -1: none
  auto key() const {
    constexpr std::int64_t rows = std::numeric_limits<std::int64_t>::max();  // after every event
    return std::tuple(step, event < 0 ? rows : event, tap, row < 0 ? 1 << 30 : row, block);
  }
  bool operator<(const Unit& other) const { return key() < other.key(); }
  bool operator==(const Unit& other) const { return key() == other.key(); }
};

/// One layer of one step as a twist sees it. Inputs may be changed before the step, outputs after it, the pool at both times.
struct StepEdit {
  const StepPlan& plan;
  const int layer;
  Pool& pool;
  StepInputs& inputs;
  StepOutputs& outputs;
  const Still& still;

  /// A block's states as they were before rows moved. Ask before the step; after it, `before` is what it held in between.
  const Words& still_of(std::int32_t block, const Words& before) const {
    const auto found = still.find(block);
    return found != still.end() ? found->second : before;
  }
  Words read_still(std::int32_t block) const {
    const auto found = still.find(block);
    return found != still.end() ? found->second : read_words(pool, layer, block);
  }
};

/// An inactive row that is computed as if it named `block`.
struct PaddedRow {
  int row;
  std::int32_t block;
  Part part = Part::both;
  bool keep_outputs = false;  // its outputs are those of an active row; else those of an inactive one
  bool writes = true;         // false: another writer's words stay
  bool parallel = false;  // it reads the block as it was before the step, whoever else writes it; else after the rows
};

/// Active rows of steps: what a twist about rows acts on. -1: any row; to = -1: to the end.
struct Where {
  std::int64_t from, to;
  int row;
  bool has(const StepPlan& plan, int r) const {
    return plan.step >= from && (to < 0 || plan.step <= to) && (row < 0 || row == r) &&
           plan.block[static_cast<std::size_t>(r)] >= 0;
  }
};

/// All of it applies to the layer that is tried. Absent functions change nothing.
struct Twist {
  std::function<void(StepEdit&)> before, after;
  /// Another contract for a row of a step; nullptr: as it is.
  std::function<const Contract*(const StepPlan&, int row)> contract;
  std::function<std::vector<PaddedRow>(const StepPlan&)> padded;
  std::int64_t event = -1;                        // this event is not applied as written, but
  std::function<void(Pool&, int layer)> instead;  // this is done
  std::function<void(LayerParams&)> params;
  std::vector<std::int32_t> blocks;  // that it may write although no row and no event names them
  std::vector<Unit> forgiven;        // the records of these units are taken to be wrong: they are not compared
};

/// What may have happened: a mechanism (or several that go together) and how to act it out. `says` is without the place, which
/// the scope gives.
struct Hypothesis {
  std::vector<Mechanism> mechanisms;
  std::vector<Twist> twists;
  bool whole = false;  // acts from the first step on, so it runs from there
  // Where a row went on from another moment of its sequence: how many tokens from the right one the state and the window were.
  std::optional<std::int64_t> state_at{}, window_at{};
  std::function<std::string()> more;  // what is said besides when it is reported: too dear to find out for each
  const Contract* rounds = nullptr;   // a contract hypothesis: the contract that holds within the scope
  std::function<Hypothesis(const Where&)> again;  // the same elsewhere, where that makes sense
  const Mechanism& mechanism() const { return mechanisms.front(); }
};

}  // namespace gdnsim::explaining
