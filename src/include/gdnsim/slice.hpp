// Slices: the part of a file that is looked at - layers, steps, rows of the batch, blocks of the state pool.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gdnsim/recording.hpp"
#include "gdnsim/stream_view.hpp"

namespace gdnsim {

/// The blocks that one process of a spread looks at. A row goes with the block that its index names, an inactive row too, so that
/// every row and every block is one process's own.
struct Portion {
  std::vector<int> part;  // [num_blocks] whose each is
  int mine = 0;
  /// What is no block is part 0's.
  bool has(std::int32_t block) const {
    const bool there = block >= 0 && static_cast<std::size_t>(block) < part.size();
    return (there ? part[static_cast<std::size_t>(block)] : 0) == mine;
  }
};

/// Which rows of a step are looked at (--rows, --blocks). Both ascending; empty: all. With both, a row has to be of both.
struct Pick {
  std::vector<int> rows{};                   // places in the batch
  std::vector<std::int32_t> blocks{};        // rows on these blocks, and these blocks' states
  std::shared_ptr<const Portion> portion{};  // and of those what is this process's; null: all

  bool all() const { return rows.empty() && blocks.empty() && portion == nullptr; }
  /// Is this row of the step looked at?
  bool row(const StepPlan& plan, int row) const;
  /// Is the state of this block after the step looked at? With rows: when one of them is on it.
  bool state(const StepPlan& plan, std::int32_t block) const;
  /// The step's rows that are looked at, ascending.
  std::vector<int> rows_of(const StepPlan& plan) const;
  bool operator==(const Pick&) const = default;
};

/// Part of a file: layer positions (empty: all), steps [first, last) (-1: from the start, to the end), rows and blocks.
struct Slice {
  std::vector<int> layers;
  std::int64_t first_step = -1;
  std::int64_t last_step = -1;
  Pick pick{};

  /// Nothing is left out.
  bool whole() const { return layers.empty() && first_step < 0 && last_step < 0 && pick.all(); }
};

/// Fills in the defaults from what there is; throws Error when a layer or a step is out of range or nothing is left.
Slice resolved(const Slice& slice, const Slice& whole, const std::string& where);
Slice whole_of(const Recording& recording);
Slice whole_of(const Stream& stream);
/// Throws Error when a row or a block is not there.
void require_picked(const Pick& pick, const Model& model, int rows, const std::string& where);

/// Reads the picked rows of a tap of one step; `out` is [B, ...] and holds only those. False when none is picked.
bool read_picked(Recording& recording, const Pick& pick, const StepPlan& plan, Tap tap, int layer, Bytes& out);

/// The blocks whose states the picked rows of steps first .. last - 1 need, ascending: their own, and those that were copied
/// to them. Rows on other blocks can be left out of a run without changing a picked one.
std::vector<std::int32_t> needed_blocks(const Stream& stream, const Slice& slice);

/// A stream without the rows that a resolved slice does not need: they are inactive. Everything else is the whole's. A portion
/// must be closed (src/replay/spread_rows.hpp): nothing goes from one's blocks to another's.
class PickedStream final : public StreamView {
 public:
  PickedStream(Stream& whole, const Slice& slice);
  const Pick& pick() const { return pick_; }
  bool needs(std::int32_t block) const;
  /// The same for all portions together.
  bool somebody_needs(std::int32_t block) const;
  StepPlan plan(std::int64_t step) const override;

 private:
  const Pick pick_;
  std::vector<std::int32_t> needed_;
};

}  // namespace gdnsim
