// What every stream has to satisfy before a step may run: indices and events.
#include "gdnsim/stream.hpp"

#include <algorithm>
#include <limits>
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

/// " (sequences 7 and 9)", where both are known.
std::string sequences_of(const StepPlan& plan, std::size_t a, std::size_t b) {
  if (plan.sequence[a] < 0 || plan.sequence[b] < 0) return "";
  return " (sequences " + std::to_string(plan.sequence[a]) + " and " + std::to_string(plan.sequence[b]) + ")";
}

void refuse_two_writers(const StepPlan& plan, const std::string& where) {
  std::unordered_map<std::int32_t, std::size_t> writer;
  for (std::size_t row = 0; row < plan.block.size(); ++row) {
    if (plan.block[row] < 0) continue;
    const auto [first, fresh] = writer.emplace(plan.block[row], row);
    if (!fresh)
      throw error(where, ": index[", plan.step, ", ", row, "]: rows ", first->second, " and ", row, " both name block ",
                  plan.block[row], " in one step: two writers, the result would depend on their order",
                  sequences_of(plan, first->second, row));
  }
}

/// A row goes on from a block in range, which no other row of the step writes.
void require_sources(const Model& model, const StepPlan& plan, const std::string& where) {
  if (plan.source.empty()) return;
  const std::int32_t lowest = model.sentinel == Sentinel::minus_one ? 0 : 1;
  for (std::size_t row = 0; row < plan.source.size(); ++row) {
    const std::int32_t source = plan.source[row];
    if (source == -1) continue;
    const auto at = [&] {
      return where + ": source[" + std::to_string(plan.step) + ", " + std::to_string(row) + "]: ";
    };
    if (plan.block[row] < 0) throw error(at(), "expected -1 for an inactive row, found ", source);
    if (source < lowest || source >= model.num_blocks)
      throw error(at(), "expected -1 or a block in ", lowest, "..", model.num_blocks - 1, ", found ", source);
    const auto writer = std::ranges::find(plan.block, source);
    if (writer != plan.block.end() && writer != plan.block.begin() + static_cast<std::ptrdiff_t>(row))
      throw error(at(), "row ", row, " goes on from block ", source, ", which row ", writer - plan.block.begin(),
                  " writes in the same step: the result would depend on their order");
  }
}

void require_launch(const StepPlan& plan, std::size_t rows, const std::string& where) {
  if (plan.draft < 0 || plan.draft > 127)
    throw error(where, ": draft[", plan.step, "]: expected 0..127, found ", plan.draft);
  if (plan.in_launch() && plan.path != Path::mixed)
    throw error(where, ": path[", plan.step, "]: draft ", plan.draft,
                " of a launch of several: expected path 1 (mixed), found ", static_cast<int>(plan.path));
  for (const auto* field : {&plan.source, &plan.accepted})
    if (!field->empty() && field->size() != rows)
      throw error(where, field == &plan.source ? ": source[" : ": accepted[", plan.step, "]: expected ", rows,
                  " rows, found ", field->size());
  for (std::size_t row = 0; row < plan.accepted.size(); ++row) {
    const std::int32_t count = plan.accepted[row];
    if (count < 0 || ((plan.draft > 0 || plan.block[row] < 0) && count != 0))
      throw error(where, ": accepted[", plan.step, ", ", row, "]: expected ",
                  plan.draft > 0        ? "0 but at the first draft of a launch"
                  : plan.block[row] < 0 ? "0 for an inactive row"
                                        : "0 or more",
                  ", found ", count);
  }
}

void validate_event(const Model& model, std::int64_t steps, std::int64_t load_rows, const Event& event, std::size_t i,
                    const std::string& where) {
  const auto range = [&](const char* field, std::int64_t value, std::int64_t low, std::int64_t high) {
    if (value < low || value > high)
      throw error(where, ": events/", field, "[", i, "]: expected ", low, "..", high, ", found ", value);
  };
  range("kind", static_cast<int>(event.kind), 0, 4);
  range("why", static_cast<int>(event.why), 0, 5);
  range("sequence", event.sequence, -1, std::numeric_limits<std::int64_t>::max());
  range("step", event.step, 0, steps - 1);
  range("layer", event.layer, -1, model.layers() - 1);
  range("block", event.block, 0, model.num_blocks - 1);
  if (event.kind == EventKind::copy) range("source", event.source, 0, model.num_blocks - 1);
  if (event.kind == EventKind::load) range("source", event.source, 0, load_rows - 1);
}

}  // namespace

std::string_view name_of(EventKind kind) {
  constexpr std::string_view words[] = {"zero", "load", "copy", "free", "allocate"};
  return words[static_cast<std::size_t>(kind)];
}

std::string_view name_of(EventWhy why) {
  constexpr std::string_view words[] = {"none", "start", "fork", "evict", "resume", "finish"};
  return words[static_cast<std::size_t>(why)];
}

StepPlan make_plan(const Model& model, std::int64_t step, Path path, std::span<const std::int32_t> index,
                   std::span<const std::int64_t> sequence, int rows_present, const std::string& where,
                   const Launch& launch) {
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
  plan.draft = launch.draft, plan.last_draft = launch.last_draft;
  plan.source.assign(launch.source.begin(), launch.source.end());
  plan.accepted.assign(launch.accepted.begin(), launch.accepted.end());
  refuse_two_writers(plan, where);
  require_launch(plan, index.size(), where);
  require_sources(model, plan, where);
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

std::pair<std::int64_t, std::int64_t> launch_of(const Stream& stream, std::int64_t step) {
  const std::int64_t first = step - stream.plan(step).draft;
  std::int64_t last = step;
  while (last + 1 < stream.steps() && !stream.plan(last).last_draft) ++last;
  return {first, last + 1};
}

void require_launch_start(const Stream& stream, std::int64_t first_step, const std::string& where) {
  if (stream.plan(first_step).draft == 0) return;
  const auto [first, last] = launch_of(stream, first_step);
  throw error(where, ": step ", first_step, " is within the launch of steps ", first, ":", last,
              ": expected a start at step ", first, " or ", last);
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
