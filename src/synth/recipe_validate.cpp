// What a recipe has to satisfy beyond its syntax.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "gdnsim/error.hpp"
#include "gdnsim/recipe.hpp"

namespace gdnsim {
namespace {

void expect(bool holds, const std::string& where, const char* key, const char* expected) {
  if (!holds) throw error(where, ": ", key, ": expected ", expected);
}

void check(const Draw& draw, const std::string& where, const char* key) {
  expect(std::isfinite(draw.first) && std::isfinite(draw.second), where, key, "finite numbers");
  switch (draw.kind) {
    case Draw::Kind::normal:
      return expect(draw.second >= 0, where, key, "a deviation of 0 or more");
    case Draw::Kind::uniform:
    case Draw::Kind::log_of_uniform:
      expect(draw.first <= draw.second && std::isfinite(draw.second - draw.first), where, key,
             "low <= high, not too far apart");
      return expect(draw.kind == Draw::Kind::uniform || draw.first > 0, where, key, "low > 0, to have a logarithm");
    case Draw::Kind::constant:
      return;
  }
}

void check(const std::optional<Draw>& draw, const std::string& where, const char* key) {
  if (draw) check(*draw, where, key);
}

void check_values(const Recipe& recipe, const std::string& where) {
  check(recipe.params.A_log, where, "params.A_log");
  check(recipe.params.dt_bias, where, "params.dt_bias");
  check(recipe.params.conv_weight, where, "params.conv_weight");
  check(recipe.params.conv_bias, where, "params.conv_bias");
  check(recipe.params.norm_weight, where, "params.norm_weight");
  check(recipe.inputs.x, where, "inputs.x");
  check(recipe.inputs.a, where, "inputs.a");
  check(recipe.inputs.b, where, "inputs.b");
  check(recipe.inputs.z, where, "inputs.z");
  check(recipe.states.recurrent, where, "states.recurrent");
  check(recipe.states.conv, where, "states.conv");
}

void check_inputs(const InputRecipe& inputs, const std::string& where) {
  expect(inputs.keys.weight >= 0 && inputs.keys.weight <= 256, where, "inputs.keys.weight", "0 to 256 (in 1/256)");
  expect(inputs.keys.drift >= 0 && inputs.keys.drift <= 1 << 19, where, "inputs.keys.drift", "0 to 524288 positions");
  expect(inputs.keys.weight == 0 || inputs.x.kind == Draw::Kind::normal, where, "inputs.keys.weight",
         "0, or a normal inputs.x to mix the keys from");
  expect(inputs.specials.rate >= 0 && inputs.specials.rate <= 1, where, "inputs.specials.rate", "0 to 1");
  expect(inputs.specials.rate == 0 || !inputs.specials.kinds.empty(), where, "inputs.specials.kinds",
         "at least one kind when the rate is not 0");
}

bool rate(double value) { return value >= 0 && value <= 1; }
bool range(const Range& range) {
  return range.lowest >= 1 && range.lowest <= range.highest && range.highest <= 1 << 30;
}

void check_speculative(const SpeculativeRecipe& s, const std::string& where) {
  expect(s.drafts >= 0 && s.drafts <= 63, where, "schedule.speculative.drafts", "0 to 63");
  expect(!s.accept || (range(*s.accept) && s.accept->highest <= s.drafts + 1), where, "schedule.speculative.accept",
         "1 <= lowest <= highest <= drafts + 1");
  expect(rate(s.rate) && rate(s.plain), where, "schedule.speculative", "rates from 0 to 1");
}

void check_schedule(const Recipe& recipe, const std::string& where) {
  const ScheduleRecipe& s = recipe.schedule;
  expect(s.running >= 0 && s.running <= recipe.rows, where, "schedule.running", "0 to the number of rows");
  expect(s.first_sequence >= 0 && s.first_sequence <= 1 << 30, where, "schedule.first_sequence", "0 to 2^30");
  expect(!s.length || range(*s.length), where, "schedule.length", "1 <= lowest <= highest");
  expect(range(s.away), where, "schedule.away", "1 <= lowest <= highest");
  expect(rate(s.arrival) && rate(s.shuffle) && rate(s.skip) && rate(s.preempt) && rate(s.mixed), where, "schedule",
         "rates from 0 to 1");
  expect(!s.stale_tail || s.placement == ScheduleRecipe::Placement::packed, where, "schedule.stale_tail",
         "false, or placement \"packed\"");
  expect(rate(s.fork), where, "schedule.fork", "a rate from 0 to 1");
  expect(s.allocator != Allocation::modulo || s.preempt == 0 || s.preempt_by != ScheduleRecipe::Preempt::swap, where,
         "schedule.allocator", "not modulo where preempt swaps: it has no spare blocks");
  check_speculative(s.speculative, where);
  expect(recipe.model.num_blocks <= 1 << 26, where, "model.num_blocks",
         "at most 2^26 blocks for a schedule to take from");
  const std::int64_t running = s.running > 0 ? s.running : recipe.rows, columns = s.speculative.drafts + 1;
  const std::int64_t blocks = recipe.model.num_blocks - (recipe.model.sentinel == Sentinel::minus_one ? 0 : 1);
  if (s.allocator == Allocation::modulo ? blocks < columns : blocks < running * columns)
    throw error(where, ": model.num_blocks: expected ", columns == 1 ? "a block" : std::to_string(columns) + " blocks",
                " for each of ", running, " running sequences, found ", blocks,
                recipe.model.sentinel == Sentinel::minus_one ? "" : " (block 0 is the null block)");
}

/// Lengths only: what the steps say is checked as the stream's plans are.
void check_script(const Recipe& recipe, const std::string& where) {
  const Script& script = *recipe.script;
  expect(recipe.schedule == ScheduleRecipe{}, where, "script", "no schedule beside it");
  expect(!script.fill || recipe.model.num_blocks <= 1 << 20, where, "script.fill", "at most 2^20 blocks to fill");
  if (static_cast<std::int64_t>(script.steps.size()) != recipe.steps)
    throw error(where, ": script.steps: expected ", recipe.steps, " steps, found ", script.steps.size());
  for (std::size_t i = 0; i < script.steps.size(); ++i) {
    const ScriptStep& step = script.steps[i];
    const auto rows = [&](const auto& values, const char* key, bool optional) {
      if (!(optional && values.empty()) && std::cmp_not_equal(values.size(), recipe.rows))
        throw error(where, ": script.steps: ", key, " of step ", i, ": expected ", recipe.rows, " rows, found ",
                    values.size());
    };
    rows(step.index, "index", false), rows(step.sequence, "sequence", true);
    rows(step.source, "source", true), rows(step.accepted, "accepted", true);
  }
  const auto by_step = [](const ScriptEvent& line) { return line.event.step; };
  expect(std::ranges::is_sorted(script.events, {}, by_step), where, "script.events", "events sorted by step");
  for (const ScriptEvent& line : script.events)
    expect(line.event.step < recipe.steps, where, "script.events", "steps below the number of steps");
}

void check_faults(const Recipe& recipe, const std::string& where) {
  using Kind = Fault::Kind;
  for (std::size_t i = 0; i < recipe.faults.size(); ++i) {
    const Fault& fault = recipe.faults[i];
    const std::string at = where + ": faults[" + std::to_string(i) + "]";
    const auto one_of = [&](std::initializer_list<Kind> kinds) {
      return std::ranges::find(kinds, fault.kind) != kinds.end();
    };
    const bool event = one_of({Kind::missing_event, Kind::old_copy});
    expect(!(one_of({Kind::inactive_row, Kind::read_block, Kind::write_block, Kind::poisoned}) || event) ||
               (fault.block >= 0 && fault.block < recipe.model.num_blocks),
           at, "block", "a block of the pool");
    expect(!one_of({Kind::inactive_row, Kind::poison_out}) || (fault.row >= 0 && fault.row < recipe.rows), at, "row",
           "a row");
    expect(!(event || one_of({Kind::inactive_row, Kind::poisoned})) || fault.step >= 0, at, "step", "a step");
    expect(fault.layer < recipe.model.layers(), at, "layer", "a layer's position");
    expect(fault.kind != Kind::contract || !fault.field.empty(), at, "field", "a field of the contract");
    expect(fault.kind != Kind::transposed || recipe.model.K == recipe.model.V, at, "kind", "K = V to swap them");
    expect(!one_of({Kind::window, Kind::old_copy, Kind::read_inputs}) || fault.by != 0, at, "by", "a number that is not 0");
    expect(fault.kind != Kind::wrapped || fault.by == 31 || fault.by == 32, at, "by", "31 or 32 bits");
  }
}

}  // namespace

void validate(const Recipe& recipe, const std::string& where) {
  validate(recipe.model, where + ": model");
  const std::set<std::int32_t> ids(recipe.model.layer_ids.begin(), recipe.model.layer_ids.end());
  expect(ids.size() == recipe.model.layer_ids.size(), where, "model.layer_ids",
         "each layer once (a layer's id addresses its values)");
  expect(*ids.begin() >= 0 && *ids.rbegin() < 1 << 24, where, "model.layer_ids", "ids from 0 to 2^24 - 1");
  expect(recipe.model.num_blocks <= INT32_MAX, where, "model.num_blocks", "at most 2^31 - 1");
  expect(recipe.model.state_elements() <= std::int64_t{1} << 31, where, "model",
         "at most 2^31 elements in a recurrent block");
  expect(recipe.steps >= 1 && recipe.steps <= 1 << 24, where, "steps", "1 to 2^24");
  expect(recipe.rows >= 1 && recipe.rows <= 1 << 13, where, "rows", "1 to 8192");
  expect(recipe.steps * recipe.rows <= 1 << 25, where, "steps", "steps x rows at most 2^25");
  check_values(recipe, where);
  check_inputs(recipe.inputs, where);
  if (recipe.script)
    check_script(recipe, where);
  else
    check_schedule(recipe, where);
  check_faults(recipe, where);
}

}  // namespace gdnsim
