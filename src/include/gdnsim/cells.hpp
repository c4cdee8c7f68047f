// Cells: what was compared and what differs in each step of a layer, for a map of layers x steps.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "gdnsim/types.hpp"
#include "gdnsim/words.hpp"

namespace gdnsim {

/// One layer's part of one step (or of a few, where there are many). Digests count as one element of their state.
struct Cell {
  std::uint64_t compared = 0, differing = 0;
  std::uint64_t max_ulp = 0;
  std::array<std::uint32_t, kTaps> taps{};  // differing elements of each tap, at most 2^32 - 1
  void add(const Cell& other);
};

/// The cells of one layer. Memory is bounded: when a run is longer than kMaxCells, neighbours are merged.
class CellRow {
 public:
  static constexpr std::int64_t kMaxCells = 4096;
  struct Parts {
    int layer = -1;
    std::int32_t layer_id = -1;
    std::int64_t first_step = 0, steps_per_cell = 1;
    std::vector<Cell> cells;
    bool begun = false;  // first_step is settled
  };
  CellRow() = default;
  CellRow(int layer, std::int32_t layer_id) : parts_{layer, layer_id, 0, 1, {}, false} {}

  /// The first cell is of this step, whatever is compared first. Without it, it is of the first step that is counted.
  void begin_at(std::int64_t step);
  /// Counts a run of one tap's words in a step. Steps come in ascending order.
  void add(std::int64_t step, Tap tap, const WordRun& run);
  /// Adds what others counted of the same layer; both begin at the same step.
  void add(const CellRow& other);
  /// Leaves out what comes before the first cell with anything in it, while a cell is one step.
  void trim();

  int layer() const { return parts_.layer; }
  std::int32_t layer_id() const { return parts_.layer_id; }
  std::int64_t first_step() const { return parts_.first_step; }
  std::int64_t steps_per_cell() const { return parts_.steps_per_cell; }
  /// cells()[i] holds steps_per_cell steps from first_step + i * steps_per_cell on.
  const std::vector<Cell>& cells() const { return parts_.cells; }
  /// All of it, to be handed to another process.
  Parts& parts() { return parts_; }

 private:
  void merge_pairs();

  Parts parts_;
};

}  // namespace gdnsim
