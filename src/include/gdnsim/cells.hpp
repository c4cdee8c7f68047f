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
  CellRow(int layer, std::int32_t layer_id) : layer_(layer), layer_id_(layer_id) {}

  /// Counts a run of one tap's words in a step. Steps come in ascending order.
  void add(std::int64_t step, Tap tap, const WordRun& run);

  int layer() const { return layer_; }
  std::int32_t layer_id() const { return layer_id_; }
  std::int64_t first_step() const { return first_step_; }
  std::int64_t steps_per_cell() const { return steps_per_cell_; }
  /// cells()[i] holds steps_per_cell steps from first_step + i * steps_per_cell on.
  const std::vector<Cell>& cells() const { return cells_; }

 private:
  void merge_pairs();

  int layer_;
  std::int32_t layer_id_;
  std::int64_t first_step_ = 0, steps_per_cell_ = 1;
  std::vector<Cell> cells_;
};

}  // namespace gdnsim
