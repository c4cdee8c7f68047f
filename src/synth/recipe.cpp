// Recipes: JSON to Recipe and back. Each part has its reader and its printer side by side.
#include "gdnsim/recipe.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "file/schema.hpp"
#include "gdnsim/error.hpp"
#include "synth/recipe_parts.hpp"

namespace gdnsim {
namespace {

constexpr const char* kSchema = "gdnsim.recipe/1";
constexpr std::size_t kMaxFile = 1 << 24;

// Words of each enum, in the enum's order.
constexpr std::string_view kDraws[] = {"normal", "uniform", "log_of_uniform", "constant"};
constexpr std::string_view kSpecials[] = {"nan",  "payload",    "inf",      "minus_inf",
                                          "zero", "minus_zero", "denormal", "largest"};
constexpr std::string_view kTensors[] = {"mixed_qkv", "a", "b", "z"};
constexpr std::string_view kStarts[] = {"zero", "load"};
constexpr std::string_view kPlacements[] = {"packed", "sticky"};
constexpr std::string_view kPreempts[] = {"swap", "load", "recompute"};
constexpr std::string_view kAllocators[] = {"drawn", "lifo", "fifo", "modulo"};
constexpr std::string_view kDTypes[] = {"f32", "bf16", "f16"};
constexpr std::string_view kActivations[] = {"none", "silu"};
constexpr std::string_view kNormGates[] = {"silu", "sigmoid"};
constexpr std::string_view kSentinels[] = {"nonpositive", "zero", "minus_one"};
constexpr std::string_view kInactiveOuts[] = {"zero", "unwritten"};

// ---- draws ----

Draw read_draw(JsonReader reader, const Json& json, const std::string& path) {
  const auto word = std::find_if(std::begin(kDraws), std::end(kDraws), [&](auto name) { return reader.has(name); });
  if (word == std::end(kDraws))
    reader.refuse(
        path,
        "one of {\"normal\": [mean, deviation]}, {\"uniform\": [low, high]}, {\"log_of_uniform\": [low, high]}, "
        "{\"constant\": value}",
        json);
  Draw draw{static_cast<Draw::Kind>(word - std::begin(kDraws)), 0, 0};
  if (draw.kind == Draw::Kind::constant) {
    reader.number(*word, draw.first);
  } else {
    const std::vector<float> numbers = reader.numbers(*word, 2);
    draw.first = numbers[0];
    draw.second = numbers[1];
  }
  reader.done();
  return draw;
}

void read(JsonReader& parent, std::string_view key, Draw& draw) {
  if (parent.has(key)) draw = read_draw(parent.object(key), parent.at(key), parent.path_of(key));
}

void read(JsonReader& parent, std::string_view key, std::optional<Draw>& draw) {
  if (!parent.has(key)) return;
  if (parent.at(key).is_null()) return draw.reset();
  draw = read_draw(parent.object(key), parent.at(key), parent.path_of(key));
}

Json print(const Draw& draw) {
  Json json = Json::object();
  Json& value = json[word_of(kDraws, draw.kind)];
  if (draw.kind == Draw::Kind::constant)
    value = json_of(draw.first);
  else
    value = Json::array({json_of(draw.first), json_of(draw.second)});
  return json;
}

Json print(const std::optional<Draw>& draw) { return draw ? print(*draw) : Json(nullptr); }

// ---- model ----

/// Counts are only kept in 32 bits here; validate(model) knows the ranges.
void read_model(JsonReader reader, Model& model) {
  constexpr int kMax = 1 << 30;
  reader.require("num_k_heads").integer("num_k_heads", 1, kMax, model.H);
  reader.require("num_v_heads").integer("num_v_heads", 1, kMax, model.HV);
  reader.require("head_k_dim").integer("head_k_dim", 1, kMax, model.K);
  reader.require("head_v_dim").integer("head_v_dim", 1, kMax, model.V);
  model.W = 4;
  reader.integer("conv_width", 1, kMax, model.W);
  model.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(model.K)));
  reader.number("scale", model.scale);
  reader.word("activation", kActivations, model.activation);
  reader.flag("use_qk_l2norm", model.use_qk_l2norm);
  reader.word("state_dtype", kDTypes, model.state_dtype);
  reader.word("conv_state_dtype", kDTypes, model.conv_state_dtype);
  reader.word("act_dtype", kDTypes, model.act_dtype);
  reader.word("sentinel", kSentinels, model.sentinel);
  reader.require("num_blocks").integer("num_blocks", 1, INT32_MAX, model.num_blocks);
  model.norm_eps = 1e-6f;
  if (reader.has("norm_eps") && reader.at("norm_eps").is_null()) model.norm_eps.reset();
  if (model.norm_eps) reader.number("norm_eps", *model.norm_eps);
  reader.word("norm_gate", kNormGates, model.norm_gate);
  reader.word("inactive_conv_out", kInactiveOuts, model.inactive_conv_out);
  reader.word("inactive_core_out", kInactiveOuts, model.inactive_core_out);
  model.layer_ids = reader.require("layer_ids").integers("layer_ids", 0, (1 << 24) - 1);
  reader.integer("block_stride", 0, std::int64_t{1} << 45, model.block_stride);
  reader.integer("conv_block_stride", 0, std::int64_t{1} << 45, model.conv_block_stride);
  reader.integer("index_bits", 32, 64, model.index_bits);
  reader.done();
}

Json print(const Model& model) {
  Json json = {{"num_k_heads", model.H},
               {"num_v_heads", model.HV},
               {"head_k_dim", model.K},
               {"head_v_dim", model.V},
               {"conv_width", model.W},
               {"scale", json_of(model.scale)},
               {"activation", word_of(kActivations, model.activation)},
               {"use_qk_l2norm", model.use_qk_l2norm},
               {"state_dtype", word_of(kDTypes, model.state_dtype)},
               {"conv_state_dtype", word_of(kDTypes, model.conv_state_dtype)},
               {"act_dtype", word_of(kDTypes, model.act_dtype)},
               {"sentinel", word_of(kSentinels, model.sentinel)},
               {"num_blocks", model.num_blocks},
               {"norm_eps", model.norm_eps ? json_of(*model.norm_eps) : Json(nullptr)},
               {"norm_gate", word_of(kNormGates, model.norm_gate)},
               {"inactive_conv_out", word_of(kInactiveOuts, model.inactive_conv_out)},
               {"inactive_core_out", word_of(kInactiveOuts, model.inactive_core_out)},
               {"layer_ids", model.layer_ids}};
  if (model.block_stride != 0) json["block_stride"] = model.block_stride;
  if (model.conv_block_stride != 0) json["conv_block_stride"] = model.conv_block_stride;
  if (model.index_bits != 64) json["index_bits"] = model.index_bits;
  return json;
}

// ---- parameters, inputs, states ----

void read_params(JsonReader reader, ParamRecipe& params) {
  read(reader, "A_log", params.A_log);
  read(reader, "dt_bias", params.dt_bias);
  read(reader, "conv_weight", params.conv_weight);
  read(reader, "conv_bias", params.conv_bias);
  read(reader, "norm_weight", params.norm_weight);
  reader.done();
}

Json print(const ParamRecipe& params) {
  return {{"A_log", print(params.A_log)},
          {"dt_bias", print(params.dt_bias)},
          {"conv_weight", print(params.conv_weight)},
          {"conv_bias", print(params.conv_bias)},
          {"norm_weight", print(params.norm_weight)}};
}

void read_keys(JsonReader reader, KeyRecipe& keys) {
  reader.integer("weight", 0, 256, keys.weight);
  reader.integer("drift", 0, 1 << 19, keys.drift);
  reader.done();
}

void read_specials(JsonReader reader, SpecialRecipe& specials) {
  reader.number("rate", 0, 1, specials.rate);
  if (reader.has("kinds"))
    for (std::size_t kind : reader.words("kinds", kSpecials))
      specials.kinds.push_back(static_cast<SpecialRecipe::Kind>(kind));
  if (reader.has("tensors")) {
    bool* const flags[] = {&specials.mixed_qkv, &specials.a, &specials.b, &specials.z};
    for (bool* flag : flags) *flag = false;
    for (std::size_t tensor : reader.words("tensors", kTensors)) *flags[tensor] = true;
  }
  reader.done();
}

Json print(const SpecialRecipe& specials) {
  Json kinds = Json::array(), tensors = Json::array();
  for (SpecialRecipe::Kind kind : specials.kinds) kinds.push_back(word_of(kSpecials, kind));
  const bool flags[] = {specials.mixed_qkv, specials.a, specials.b, specials.z};
  for (std::size_t i = 0; i < std::size(flags); ++i)
    if (flags[i]) tensors.push_back(std::string(kTensors[i]));
  return {{"rate", specials.rate}, {"kinds", kinds}, {"tensors", tensors}};
}

void read_inputs(JsonReader reader, InputRecipe& inputs) {
  read(reader, "x", inputs.x);
  read(reader, "a", inputs.a);
  read(reader, "b", inputs.b);
  read(reader, "z", inputs.z);
  if (reader.has("keys")) read_keys(reader.object("keys"), inputs.keys);
  if (reader.has("specials")) read_specials(reader.object("specials"), inputs.specials);
  reader.done();
}

Json print(const InputRecipe& inputs) {
  return {{"x", print(inputs.x)},
          {"a", print(inputs.a)},
          {"b", print(inputs.b)},
          {"z", print(inputs.z)},
          {"keys", {{"weight", inputs.keys.weight}, {"drift", inputs.keys.drift}}},
          {"specials", print(inputs.specials)}};
}

void read_states(JsonReader reader, StateRecipe& states) {
  reader.word("start", kStarts, states.start);
  read(reader, "recurrent", states.recurrent);
  read(reader, "conv", states.conv);
  reader.done();
}

Json print(const StateRecipe& states) {
  return {
      {"start", word_of(kStarts, states.start)}, {"recurrent", print(states.recurrent)}, {"conv", print(states.conv)}};
}

// ---- schedule ----

Range read_range(JsonReader& reader, std::string_view key) {
  const std::vector<std::int32_t> ends = reader.integers(key, 1, 1 << 30);
  if (ends.size() != 2 || ends[0] > ends[1]) reader.refuse(reader.path_of(key), "[lowest, highest]", reader.at(key));
  return {ends[0], ends[1]};
}

void read_speculative(JsonReader reader, SpeculativeRecipe& speculative) {
  reader.require("drafts").integer("drafts", 0, 63, speculative.drafts);
  if (reader.has("accept") && !reader.at("accept").is_null()) speculative.accept = read_range(reader, "accept");
  reader.number("rate", 0, 1, speculative.rate);
  reader.number("plain", 0, 1, speculative.plain);
  reader.done();
}

void read_schedule(JsonReader reader, ScheduleRecipe& schedule) {
  reader.integer("running", 0, 1 << 30, schedule.running);
  reader.integer("first_sequence", 0, 1 << 30, schedule.first_sequence);
  if (reader.has("length") && !reader.at("length").is_null()) schedule.length = read_range(reader, "length");
  reader.number("arrival", 0, 1, schedule.arrival);
  reader.number("shuffle", 0, 1, schedule.shuffle);
  reader.number("skip", 0, 1, schedule.skip);
  reader.number("preempt", 0, 1, schedule.preempt);
  if (reader.has("away")) schedule.away = read_range(reader, "away");
  reader.word("preempt_by", kPreempts, schedule.preempt_by);
  reader.word("placement", kPlacements, schedule.placement);
  reader.flag("stale_tail", schedule.stale_tail);
  reader.number("mixed", 0, 1, schedule.mixed);
  reader.word("allocator", kAllocators, schedule.allocator);
  reader.number("fork", 0, 1, schedule.fork);
  if (reader.has("speculative")) read_speculative(reader.object("speculative"), schedule.speculative);
  reader.done();
}

Json print(const Range& range) { return Json::array({range.lowest, range.highest}); }

Json print(const SpeculativeRecipe& speculative) {
  return {{"drafts", speculative.drafts},
          {"accept", speculative.accept ? print(*speculative.accept) : Json(nullptr)},
          {"rate", speculative.rate},
          {"plain", speculative.plain}};
}

/// Keys that came later are left out where they keep their default: recipes from before them keep their text.
Json print(const ScheduleRecipe& schedule) {
  Json json = {{"running", schedule.running},
               {"first_sequence", schedule.first_sequence},
               {"length", schedule.length ? print(*schedule.length) : Json(nullptr)},
               {"arrival", schedule.arrival},
               {"shuffle", schedule.shuffle},
               {"skip", schedule.skip},
               {"preempt", schedule.preempt},
               {"away", print(schedule.away)},
               {"preempt_by", word_of(kPreempts, schedule.preempt_by)},
               {"placement", word_of(kPlacements, schedule.placement)},
               {"stale_tail", schedule.stale_tail},
               {"mixed", schedule.mixed}};
  if (schedule.allocator != Allocation::drawn) json["allocator"] = word_of(kAllocators, schedule.allocator);
  if (schedule.fork > 0) json["fork"] = schedule.fork;
  if (schedule.speculative != SpeculativeRecipe{}) json["speculative"] = print(schedule.speculative);
  return json;
}

}  // namespace

Recipe parse_recipe(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  JsonReader reader(json, where, "");
  std::string schema;
  reader.require("schema").text("schema", schema);
  if (schema == schema::kDriftSchema)
    throw error(where, ": is a sweep, not a recipe; 'gdnsim drift FILE -o RESULT' runs it");
  if (schema != kSchema) reader.refuse("schema", std::string("\"") + kSchema + "\"", json.at("schema"));
  Recipe recipe;
  reader.text("note", recipe.note);
  reader.require("seed").seed("seed", recipe.seed);
  reader.require("steps").integer("steps", 1, 1 << 24, recipe.steps);
  reader.require("rows").integer("rows", 1, 1 << 20, recipe.rows);
  read_model(reader.require("model").object("model"), recipe.model);
  if (reader.has("params")) read_params(reader.object("params"), recipe.params);
  if (reader.has("inputs")) read_inputs(reader.object("inputs"), recipe.inputs);
  if (reader.has("states")) read_states(reader.object("states"), recipe.states);
  if (reader.has("schedule")) read_schedule(reader.object("schedule"), recipe.schedule);
  if (reader.has("script")) recipe.script = read_script(reader.object("script"), where, recipe.steps);
  if (reader.has("faults")) recipe.faults = read_faults(reader.at("faults"), where);
  reader.done();
  validate(recipe, where);
  return recipe;
}

std::string canonical_json(const Recipe& recipe) {
  Json json = {{"schema", kSchema},
               {"seed", recipe.seed},
               {"steps", recipe.steps},
               {"rows", recipe.rows},
               {"model", print(recipe.model)},
               {"params", print(recipe.params)},
               {"inputs", print(recipe.inputs)},
               {"states", print(recipe.states)},
               {"schedule", print(recipe.schedule)}};
  if (recipe.script) json["script"] = print(*recipe.script);
  if (!recipe.faults.empty()) json["faults"] = print(recipe.faults);
  return json.dump();
}

bool is_recipe(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char first = 0;
  return static_cast<bool>(file >> first) && first == '{';
}

Recipe load_recipe(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFile + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) throw error(path, ": expected a readable recipe");
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxFile) throw error(path, ": expected a recipe of at most 16 MiB");
  return parse_recipe(text, path);
}

std::unique_ptr<Stream> open_recipe(const std::string& path) { return make_recipe_stream(load_recipe(path)); }

}  // namespace gdnsim
