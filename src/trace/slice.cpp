#include "gdnsim/slice.hpp"

#include <algorithm>
#include <numeric>

#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

template <class T>
bool picks(const std::vector<T>& sorted, T value) {
  return sorted.empty() || std::ranges::binary_search(sorted, value);
}

std::vector<int> positions(int count) {
  std::vector<int> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

template <class T>
void sort_once(std::vector<T>& values) {
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

}  // namespace

bool Pick::row(const StepPlan& plan, int row) const {
  if (!picks(rows, row)) return false;
  if (portion != nullptr && !portion->has(plan.index[static_cast<std::size_t>(row)])) return false;
  return blocks.empty() || std::ranges::binary_search(blocks, plan.block[static_cast<std::size_t>(row)]);
}

bool Pick::state(const StepPlan& plan, std::int32_t block) const {
  if (!picks(blocks, block) || (portion != nullptr && !portion->has(block))) return false;
  return rows.empty() || std::ranges::any_of(rows, [&](int row) {
           return row < plan.rows() && plan.block[static_cast<std::size_t>(row)] == block;
         });
}

std::vector<int> Pick::rows_of(const StepPlan& plan) const {
  std::vector<int> found;
  for (int row = 0; row < plan.rows(); ++row)
    if (this->row(plan, row)) found.push_back(row);
  return found;
}

std::vector<int> Recording::layers() const { return positions(model().layers()); }

void Recording::read_tap_rows(Tap tap, std::int64_t step, int layer, std::span<const int> rows, Bytes& out) {
  if (!rows.empty()) read_tap(tap, step, layer, out);
}

Slice whole_of(const Recording& recording) {
  return {recording.layers(), recording.first_step(), recording.first_step() + recording.steps()};
}

Slice whole_of(const Stream& stream) { return {positions(stream.model().layers()), 0, stream.steps()}; }

Slice resolved(const Slice& slice, const Slice& whole, const std::string& where) {
  Slice result = slice;
  if (result.layers.empty()) result.layers = whole.layers;
  if (result.first_step < 0) result.first_step = whole.first_step;
  if (result.last_step < 0) result.last_step = whole.last_step;
  sort_once(result.layers);
  sort_once(result.pick.rows);
  sort_once(result.pick.blocks);
  for (int layer : result.layers)
    if (std::ranges::find(whole.layers, layer) == whole.layers.end())
      throw error(where, ": layer ", layer, ": expected one of the ", whole.layers.size(), " layers from ",
                  whole.layers.front(), " to ", whole.layers.back());
  if (whole.first_step >= whole.last_step)
    throw error(where, ": no complete step: it was interrupted or damaged ('gdnsim verify' says which)");
  if (result.first_step < whole.first_step || result.last_step > whole.last_step)
    throw error(where, ": steps ", result.first_step, ":", result.last_step, ": expected a range within ",
                whole.first_step, ":", whole.last_step);
  if (result.first_step >= result.last_step)
    throw error(where, ": no steps selected (there are ", whole.last_step - whole.first_step, ")");
  return result;
}

void require_picked(const Pick& pick, const Model& model, int rows, const std::string& where) {
  for (int row : pick.rows)
    if (row < 0 || row >= rows)
      throw error(where, ": row ", row, ": expected one of the ", rows, " rows from 0 to ", rows - 1);
  for (std::int32_t block : pick.blocks)
    if (block < 0 || block >= model.num_blocks)
      throw error(where, ": block ", block, ": expected one of the ", model.num_blocks, " blocks from 0 to ",
                  model.num_blocks - 1);
}

bool read_picked(Recording& recording, const Pick& pick, const StepPlan& plan, Tap tap, int layer, Bytes& out) {
  if (pick.all()) {
    recording.read_tap(tap, plan.step, layer, out);
    return true;
  }
  const std::vector<int> rows = pick.rows_of(plan);
  recording.read_tap_rows(tap, plan.step, layer, rows, out);
  return !rows.empty();
}

std::vector<std::int32_t> needed_blocks(const Stream& stream, const Slice& slice) {
  std::vector<bool> needed(static_cast<std::size_t>(stream.model().num_blocks));
  const auto at = [&](std::int32_t block) { return needed[static_cast<std::size_t>(block)]; };
  if (slice.pick.rows.empty())
    for (std::int32_t block : slice.pick.blocks) at(block) = true;
  for (std::int64_t step = slice.first_step; step < slice.last_step; ++step) {
    const StepPlan plan = stream.plan(step);
    for (int row : slice.pick.rows_of(plan))
      if (plan.block[static_cast<std::size_t>(row)] >= 0) at(plan.block[static_cast<std::size_t>(row)]) = true;
  }
  const auto events = stream.events();
  auto event = events.rbegin();
  for (std::int64_t step = slice.last_step - 1; step >= 0;
       --step) {  // backwards: rows that moved, then the events before
    const StepPlan plan = stream.plan(step);
    for (std::size_t row = 0; row < plan.source.size(); ++row)
      if (plan.block[row] >= 0 && at(plan.block[row])) at(plan.start(row)) = true;
    for (; event != events.rend() && event->step >= step; ++event)
      if (event->kind == EventKind::copy && event->step < slice.last_step && at(event->block)) at(event->source) = true;
  }
  std::vector<std::int32_t> blocks;
  for (std::size_t block = 0; block < needed.size(); ++block)
    if (needed[block]) blocks.push_back(static_cast<std::int32_t>(block));
  return blocks;
}

PickedStream::PickedStream(Stream& whole, const Slice& slice) : StreamView(whole), pick_(slice.pick) {
  Slice everyones = slice;
  everyones.pick.portion = nullptr;
  if (!everyones.pick.all()) needed_ = needed_blocks(whole, everyones);
}

StepPlan PickedStream::plan(std::int64_t step) const {
  StepPlan plan = whole_.plan(step);
  for (std::size_t row = 0; row < plan.block.size(); ++row) {
    if (plan.block[row] < 0 || needs(plan.block[row])) continue;
    plan.block[row] = -1;
    if (!plan.source.empty()) plan.source[row] = -1;
    if (!plan.accepted.empty()) plan.accepted[row] = 0;
  }
  return plan;
}

bool PickedStream::needs(std::int32_t block) const {
  return somebody_needs(block) && (pick_.portion == nullptr || pick_.portion->has(block));
}

bool PickedStream::somebody_needs(std::int32_t block) const {
  return (pick_.rows.empty() && pick_.blocks.empty()) || std::ranges::binary_search(needed_, block);
}

}  // namespace gdnsim
