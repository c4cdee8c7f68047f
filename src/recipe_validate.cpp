// What a recipe has to satisfy beyond its syntax.
#include <cmath>
#include <set>

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
  const std::int64_t running = s.running > 0 ? s.running : recipe.rows;
  const std::int64_t blocks = recipe.model.num_blocks - (recipe.model.sentinel == Sentinel::minus_one ? 0 : 1);
  if (blocks < running)
    throw error(where, ": model.num_blocks: expected a block for each of ", running, " running sequences, found ",
                blocks, recipe.model.sentinel == Sentinel::minus_one ? "" : " (block 0 is the null block)");
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
  check_schedule(recipe, where);
}

}  // namespace gdnsim
