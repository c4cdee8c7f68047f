#include "gdnsim/cells.hpp"

#include <algorithm>
#include <limits>

#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

std::uint32_t capped(std::uint64_t count) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(count, std::numeric_limits<std::uint32_t>::max()));
}

}  // namespace

void Cell::add(const Cell& other) {
  compared += other.compared;
  differing += other.differing;
  max_ulp = std::max(max_ulp, other.max_ulp);
  for (std::size_t i = 0; i < kTaps; ++i) taps[i] = capped(std::uint64_t{taps[i]} + other.taps[i]);
}

void CellRow::merge_pairs() {
  const std::size_t half = (cells_.size() + 1) / 2;
  for (std::size_t i = 0; i < half; ++i) {
    Cell both = cells_[2 * i];
    if (2 * i + 1 < cells_.size()) both.add(cells_[2 * i + 1]);
    cells_[i] = both;
  }
  cells_.resize(half);
  steps_per_cell_ *= 2;
}

void CellRow::add(std::int64_t step, Tap tap, const WordRun& run) {
  if (cells_.empty()) first_step_ = step;
  GDNSIM_CHECK(step >= first_step_);
  while ((step - first_step_) / steps_per_cell_ >= kMaxCells) merge_pairs();
  const auto at = static_cast<std::size_t>((step - first_step_) / steps_per_cell_);
  if (at >= cells_.size()) cells_.resize(at + 1);
  Cell one{run.compared, run.differing, run.max_ulp, {}};
  one.taps[static_cast<std::size_t>(tap)] = capped(run.differing);
  cells_[at].add(one);
}

}  // namespace gdnsim
