// What every stream has to satisfy before a step may run: indices and events.
#include "gdnsim/stream.hpp"

#include <algorithm>
#include <unordered_map>

#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

/// The block of one row, or -1; throws when an active row's index cannot be.
std::int32_t block_of_row(const Model& model, std::int64_t step, std::size_t row, std::int32_t index,
                          const std::string& where) {
  if (model.inactive(index)) return -1;
  const std::int32_t lowest = model.sentinel == Sentinel::minus_one ? 0 : 1;
  if (index < lowest || index >= model.num_blocks)
    throw error(where, ": index[", step, ", ", row, "]: expected a block in ", lowest, "..", model.num_blocks - 1,
                " or the sentinel (", name_of(model.sentinel), "), found ", index);
  return index;
}

void refuse_two_writers(const StepPlan& plan, const std::string& where) {
  std::unordered_map<std::int32_t, std::size_t> writer;
  for (std::size_t row = 0; row < plan.block.size(); ++row) {
    if (plan.block[row] < 0) continue;
    const auto [first, fresh] = writer.emplace(plan.block[row], row);
    if (!fresh)
      throw error(where, ": index[", plan.step, ", ", row, "]: rows ", first->second, " and ", row, " both name block ",
                  plan.block[row], " in one step: two writers, the result would depend on their order");
  }
}

void validate_event(const Model& model, std::int64_t steps, std::int64_t load_rows, const Event& event, std::size_t i,
                    const std::string& where) {
  const auto range = [&](const char* field, std::int64_t value, std::int64_t low, std::int64_t high) {
    if (value < low || value > high)
      throw error(where, ": events/", field, "[", i, "]: expected ", low, "..", high, ", found ", value);
  };
  range("kind", static_cast<int>(event.kind), 0, 3);
  range("step", event.step, 0, steps - 1);
  range("layer", event.layer, -1, model.layers() - 1);
  range("block", event.block, 0, model.num_blocks - 1);
  if (event.kind == EventKind::copy) range("source", event.source, 0, model.num_blocks - 1);
  if (event.kind == EventKind::load) range("source", event.source, 0, load_rows - 1);
}

}  // namespace

std::string_view name_of(EventKind kind) {
  constexpr std::string_view words[] = {"zero", "load", "copy", "free"};
  return words[static_cast<std::size_t>(kind)];
}

StepPlan make_plan(const Model& model, std::int64_t step, Path path, std::span<const std::int32_t> index,
                   std::span<const std::int64_t> sequence, int rows_present, const std::string& where) {
  const int rows = static_cast<int>(index.size());
  if (rows_present < 0 || rows_present > rows)
    throw error(where, ": rows[", step, "]: expected 0..", rows, ", found ", rows_present);
  if (path < Path::decode || path > Path::opaque)
    throw error(where, ": path[", step, "]: expected 0, 1 or 2, found ", static_cast<int>(path));
  StepPlan plan;
  plan.step = step;
  plan.path = path;
  plan.present = rows_present;
  plan.index.assign(index.begin(), index.end());
  plan.sequence.assign(sequence.begin(), sequence.end());
  plan.block.assign(index.size(), -1);
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows_present); ++row)
    plan.block[row] = block_of_row(model, step, row, index[row], where);
  refuse_two_writers(plan, where);
  return plan;
}

void validate_events(const Model& model, std::int64_t steps, std::int64_t load_rows, std::span<const Event> events,
                     const std::string& where) {
  for (std::size_t i = 0; i < events.size(); ++i) {
    validate_event(model, steps, load_rows, events[i], i, where);
    if (i > 0 && events[i].step < events[i - 1].step)
      throw error(where, ": events/step[", i, "]: expected at least ", events[i - 1].step, " (sorted by step), found ",
                  events[i].step);
  }
}

std::vector<std::int32_t> named_blocks(const Stream& stream, std::int64_t last_step) {
  std::vector<bool> named(static_cast<std::size_t>(stream.model().num_blocks));
  for (std::int64_t step = 0; step < last_step; ++step)
    for (std::int32_t block : stream.plan(step).block)
      if (block >= 0) named[static_cast<std::size_t>(block)] = true;
  for (const Event& event : stream.events())
    if (event.step < last_step) named[static_cast<std::size_t>(event.block)] = true;
  std::vector<std::int32_t> blocks;
  for (std::size_t block = 0; block < named.size(); ++block)
    if (named[block]) blocks.push_back(static_cast<std::int32_t>(block));
  return blocks;
}

}  // namespace gdnsim
