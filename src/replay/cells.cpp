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
  std::vector<Cell>& cells = parts_.cells;
  const std::size_t half = (cells.size() + 1) / 2;
  for (std::size_t i = 0; i < half; ++i) {
    Cell both = cells[2 * i];
    if (2 * i + 1 < cells.size()) both.add(cells[2 * i + 1]);
    cells[i] = both;
  }
  cells.resize(half);
  parts_.steps_per_cell *= 2;
}

void CellRow::begin_at(std::int64_t step) {
  GDNSIM_CHECK(!parts_.begun);
  parts_.first_step = step, parts_.begun = true;
}

void CellRow::add(std::int64_t step, Tap tap, const WordRun& run) {
  if (!parts_.begun) begin_at(step);
  GDNSIM_CHECK(step >= first_step());
  while ((step - first_step()) / steps_per_cell() >= kMaxCells) merge_pairs();
  const auto at = static_cast<std::size_t>((step - first_step()) / steps_per_cell());
  if (at >= parts_.cells.size()) parts_.cells.resize(at + 1);
  Cell one{run.compared, run.differing, run.max_ulp, {}};
  one.taps[static_cast<std::size_t>(tap)] = capped(run.differing);
  parts_.cells[at].add(one);
}

void CellRow::add(const CellRow& other) {
  CellRow more = other;
  GDNSIM_CHECK(layer() == more.layer() && first_step() == more.first_step());
  while (steps_per_cell() < more.steps_per_cell()) merge_pairs();
  while (more.steps_per_cell() < steps_per_cell()) more.merge_pairs();
  parts_.cells.resize(std::max(parts_.cells.size(), more.cells().size()));
  for (std::size_t i = 0; i < more.cells().size(); ++i) parts_.cells[i].add(more.cells()[i]);
}

void CellRow::trim() {
  if (steps_per_cell() > 1) return;
  const auto first = std::ranges::find_if(parts_.cells, [](const Cell& cell) { return cell.compared > 0; });
  parts_.first_step = first == parts_.cells.end() ? 0 : first_step() + (first - parts_.cells.begin());
  parts_.cells.erase(parts_.cells.begin(), first);
}

}  // namespace gdnsim
