// Recipes as text: what is accepted, what is refused and how, and that the canonical text is one text.
#include <gdnsim/error.hpp>
#include <gdnsim/recipe.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include "support/temp_dir.hpp"

using namespace gdnsim;

namespace {

constexpr const char* kModel =
    R"("model": {"num_k_heads": 1, "num_v_heads": 2, "head_k_dim": 4, "head_v_dim": 4, "num_blocks": 4, "layer_ids": [3]})";

/// A least recipe with more keys put in.
std::string with(const std::string& more) {
  return R"({"schema": "gdnsim.recipe/1", "seed": 5, "steps": 2, "rows": 2, )" + std::string(kModel) +
         (more.empty() ? "" : ", " + more) + "}";
}

/// The same with keys of the model put in.
std::string with_model(const std::string& more) {
  std::string text = with("");
  return text.insert(text.rfind("}}"), ", " + more);
}

std::string refusal(const std::string& text) {
  try {
    (void)parse_recipe(text, "r.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

/// Every field away from its default.
Recipe full_recipe() {
  Recipe r;
  r.seed = 18446744073709551615u;
  r.steps = 77, r.rows = 9;
  r.model.H = 2, r.model.HV = 6, r.model.K = 12, r.model.V = 20, r.model.W = 3;
  r.model.scale = 0.1f;
  r.model.activation = Activation::none;
  r.model.use_qk_l2norm = false;
  r.model.state_dtype = DType::bf16, r.model.conv_state_dtype = DType::f32, r.model.act_dtype = DType::f16;
  r.model.sentinel = Sentinel::minus_one;
  r.model.num_blocks = 40;
  r.model.norm_eps = 1e-5f;
  r.model.norm_gate = NormGate::sigmoid;
  r.model.inactive_conv_out = InactiveOut::unwritten, r.model.inactive_core_out = InactiveOut::unwritten;
  r.model.layer_ids = {7, 0, 16777215};
  r.params.A_log = {Draw::Kind::uniform, -3.0f, 0.3f};
  r.params.dt_bias = {Draw::Kind::constant, 1.1f, 0};
  r.params.conv_weight = {Draw::Kind::normal, 1e-30f, 3e30f};
  r.params.conv_bias = Draw{Draw::Kind::log_of_uniform, 1e-38f, 7.0f};
  r.params.norm_weight.reset();
  r.inputs.x.second = 0.7f, r.inputs.a.first = -0.1f, r.inputs.b.second = 16777217.0f;
  r.inputs.z.reset();
  r.inputs.keys = {256, 524288};
  r.inputs.specials = {0.1, {SpecialRecipe::Kind::largest, SpecialRecipe::Kind::nan}, false, true, false, true};
  r.states = {StateRecipe::Start::zero, {Draw::Kind::constant, 2, 0}, {Draw::Kind::uniform, 0, 0.25f}};
  r.schedule = {7,
                5,
                Range{2, 9},
                0.1,
                0.2,
                0.3,
                1e-9,
                {2, 3},
                ScheduleRecipe::Preempt::load,
                ScheduleRecipe::Placement::sticky,
                false,
                0.375,
                Allocation::fifo,
                0.25,
                {3, Range{2, 4}, 0.5, 0.125}};
  r.model.block_stride = 1 << 20, r.model.conv_block_stride = 99999, r.model.index_bits = 32;
  Fault fault{Fault::Kind::window, 3, 5, 2, 1, 7, Fault::Part::conv, -2, Tap::core_out, "exp", "exact"};
  r.faults = {fault, Fault{}};
  return r;
}

}  // namespace

TEST_CASE("a least recipe takes the defaults") {
  const Recipe r = parse_recipe(with(""), "r.json");
  CHECK(r.seed == 5);
  CHECK(r.model.layer_ids == std::vector<std::int32_t>{3});
  CHECK(r.model.W == 4);
  CHECK(r.model.scale == 0.5f);
  CHECK(r.model.norm_eps == 1e-6f);
  CHECK(r.params == ParamRecipe{});
  CHECK(r.inputs == InputRecipe{});
  CHECK(r.states == StateRecipe{});
  CHECK(r.schedule == ScheduleRecipe{});
}

TEST_CASE("K = 128 has the scale of every known model") {
  std::string text = with("");
  text.replace(text.find("\"head_k_dim\": 4"), 15, "\"head_k_dim\": 128");
  const Recipe r = parse_recipe(text, "r.json");
  CHECK(r.model.scale == 0x1.6A09E6p-4f);  // 0x3DB504F3
}

TEST_CASE("the canonical text is complete and stable") {
  for (const Recipe& r : {full_recipe(), parse_recipe(with(""), "r.json")}) {
    const std::string text = canonical_json(r);
    CAPTURE(text);
    const Recipe again = parse_recipe(text, "canonical");
    CHECK(again == r);
    CHECK(canonical_json(again) == text);
    CHECK(text.find('\n') == std::string::npos);
  }
}

/// A script with every field away from its default.
Recipe scripted_recipe() {
  Recipe r = parse_recipe(with(""), "r.json");
  r.script = Script{true, {}, {}};
  r.script->steps = {{{3, 1}, {7, 9}, Path::mixed, 2, 0, false, {-1, 2}, {0, 2}},
                     {{2, 0}, {}, Path::mixed, -1, 1, true, {3, -1}, {}}};
  r.script->events = {{{0, 0, 2, EventKind::load, -1, 7, EventWhy::resume}, 4},
                      {{1, -1, 2, EventKind::copy, 3, 8, EventWhy::evict}, 0}};
  return r;
}

TEST_CASE("a script keeps its fields through the canonical text") {
  const Recipe r = scripted_recipe();
  const std::string text = canonical_json(r);
  CAPTURE(text);
  CHECK(parse_recipe(text, "canonical") == r);
  CHECK(canonical_json(parse_recipe(text, "canonical")) == text);
}

TEST_CASE("order, space and notes do not change the canonical text") {
  const std::string a = R"({"note": "first", "rows": 2, "seed": 5, "schema": "gdnsim.recipe/1", )" +
                        std::string(kModel) + R"(, "steps": 2})";
  const Recipe r = parse_recipe(a, "r.json");
  CHECK(r.note == "first");
  CHECK(canonical_json(r) == canonical_json(parse_recipe(with(""), "r.json")));
}

TEST_CASE("the canonical text of the default recipe is frozen") {
  CHECK(
      canonical_json(parse_recipe(with(""), "r.json")) ==
      R"({"schema":"gdnsim.recipe/1","seed":5,"steps":2,"rows":2,"model":{"num_k_heads":1,"num_v_heads":2,"head_k_dim":4,)"
      R"("head_v_dim":4,"conv_width":4,"scale":0.5,"activation":"silu","use_qk_l2norm":true,"state_dtype":"f32",)"
      R"("conv_state_dtype":"bf16","act_dtype":"bf16","sentinel":"nonpositive","num_blocks":4,"norm_eps":1e-06,)"
      R"("norm_gate":"silu","inactive_conv_out":"zero","inactive_core_out":"zero","layer_ids":[3]},)"
      R"("params":{"A_log":{"log_of_uniform":[0.1,16.0]},"dt_bias":{"normal":[0.0,0.7]},"conv_weight":{"normal":[0.0,0.4]},)"
      R"("conv_bias":null,"norm_weight":{"normal":[1.0,0.1]}},"inputs":{"x":{"normal":[0.0,1.0]},"a":{"normal":[0.0,1.0]},)"
      R"("b":{"normal":[0.0,1.0]},"z":{"normal":[0.0,1.0]},"keys":{"weight":0,"drift":0},)"
      R"("specials":{"rate":0.0,"kinds":[],"tensors":["mixed_qkv","a","b","z"]}},"states":{"start":"load",)"
      R"("recurrent":{"normal":[0.0,0.1]},"conv":{"normal":[0.0,1.0]}},"schedule":{"running":0,"first_sequence":0,)"
      R"("length":null,"arrival":1.0,"shuffle":0.0,"skip":0.0,"preempt":0.0,"away":[1,4],"preempt_by":"swap",)"
      R"("placement":"packed","stale_tail":false,"mixed":0.0}})");
}

TEST_CASE("floats keep their bits through the canonical text") {
  Recipe r = full_recipe();
  std::uint32_t bits = 12345;
  for (int i = 0; i < 2000; ++i) {
    bits = bits * 1664525u + 1013904223u;
    const float value = std::bit_cast<float>((bits >> 1 & 0x7FFFFFFFu) % 0x7F800000u);
    r.model.scale = value;
    REQUIRE(parse_recipe(canonical_json(r), "canonical").model.scale == value);
  }
}

TEST_CASE("what is wrong is refused in one line that names it") {
  struct {
    std::string text, line;
  } const cases[] = {
      {"", "r.json: line 1: expected valid JSON (byte 1)"},
      {"[]", "r.json: the document: expected an object, found []"},
      {"{\n\"seed\": 1,\n}", "r.json: line 3: expected valid JSON (byte 14)"},
      {"{}", "r.json: schema: expected this key, found none"},
      {R"({"schema": "gdnsim.recipe/2"})", R"(r.json: schema: expected "gdnsim.recipe/1", found "gdnsim.recipe/2")"},
      {R"({"schema": "gdnsim.recipe/1", "seed": 1, "seed": 2})",
       "r.json: seed: expected each key once, found it twice"},
      {R"({"schema": "gdnsim.recipe/1", "seed": -1})",
       "r.json: seed: expected a whole number from 0 to 18446744073709551615, found -1"},
      {R"({"schema": "gdnsim.recipe/1", "seed": 1.5})",
       "r.json: seed: expected a whole number from 0 to 18446744073709551615, found 1.5"},
      {with("\"stpes\": 3"), "r.json: stpes: expected only known keys, found this one"},
      {with(R"("schedule": {"lenght": [1, 2]})"), "r.json: schedule.lenght: expected only known keys, found this one"},
      {with(R"("inputs": {"x": {"normal": [0, 1], "std": 1}})"),
       "r.json: inputs.x.std: expected only known keys, found this one"},
      {with(R"("inputs": {"x": 3})"), "r.json: inputs.x: expected an object, found 3"},
      {with(R"("inputs": {"x": null})"), "r.json: inputs.x: expected an object, found null"},
      {with(R"("inputs": {"x": {"normal": [0]}})"),
       "r.json: inputs.x.normal: expected an array of 2 numbers, found [0]"},
      {with(R"("inputs": {"x": {"normal": [0, -1]}})"), "r.json: inputs.x: expected a deviation of 0 or more"},
      {with(R"("inputs": {"a": {"normal": [0, 1e39]}})"),
       "r.json: inputs.a.normal[1]: expected a number in the range of f32, found 1e+39"},
      {with(R"("inputs": {"a": {"constant": 1e999}})"),
       "r.json: expected numbers in the range of double, found a larger one"},
      {with(R"("params": {"A_log": {"log_of_uniform": [0, 1]}})"),
       "r.json: params.A_log: expected low > 0, to have a logarithm"},
      {with(R"("params": {"A_log": {"uniform": [2, 1]}})"),
       "r.json: params.A_log: expected low <= high, not too far apart"},
      {with(R"("inputs": {"keys": {"weight": 257}})"),
       "r.json: inputs.keys.weight: expected a whole number from 0 to 256, found 257"},
      {with(R"("inputs": {"x": {"constant": 1}, "keys": {"weight": 1}})"),
       "r.json: inputs.keys.weight: expected 0, or a normal inputs.x to mix the keys from"},
      {with(R"("inputs": {"specials": {"rate": 0.5}})"),
       "r.json: inputs.specials.kinds: expected at least one kind when the rate is not 0"},
      {with(R"("inputs": {"specials": {"kinds": ["nan", "nan"]}})"),
       R"(r.json: inputs.specials.kinds[1]: expected each word once, found "nan")"},
      {with(R"("inputs": {"specials": {"tensors": ["q"]}})"),
       R"(r.json: inputs.specials.tensors[0]: expected one of "mixed_qkv", "a", "b", "z", found "q")"},
      {with(R"("states": {"start": "warm"})"), R"(r.json: states.start: expected one of "zero", "load", found "warm")"},
      {with(R"("schedule": {"skip": 1.5})"), "r.json: schedule.skip: expected a number from 0.0 to 1.0, found 1.5"},
      {with(R"("schedule": {"skip": "0"})"), R"(r.json: schedule.skip: expected a number from 0.0 to 1.0, found "0")"},
      {with(R"("schedule": {"length": [3, 2]})"), "r.json: schedule.length: expected [lowest, highest], found [3,2]"},
      {with(R"("schedule": {"length": [0, 2]})"),
       "r.json: schedule.length[0]: expected a whole number from 1 to 1073741824, found 0"},
      {with(R"("schedule": {"running": 3})"), "r.json: schedule.running: expected 0 to the number of rows"},
      {with(R"("schedule": {"stale_tail": 1})"), "r.json: schedule.stale_tail: expected true or false, found 1"},
      {with(R"("schedule": {"stale_tail": true, "placement": "sticky"})"),
       "r.json: schedule.stale_tail: expected false, or placement \"packed\""},
      {with(R"("schedule": {"allocator": "buddy"})"),
       R"(r.json: schedule.allocator: expected one of "drawn", "lifo", "fifo", "modulo", found "buddy")"},
      {with(R"("schedule": {"speculative": {"rate": 1}})"),
       "r.json: schedule.speculative.drafts: expected this key, found none"},
      {with(R"("schedule": {"speculative": {"drafts": 2, "accept": [1, 4]}, "running": 1})"),
       "r.json: schedule.speculative.accept: expected 1 <= lowest <= highest <= drafts + 1"},
      {with(R"("schedule": {"speculative": {"drafts": 2}, "running": 2})"),
       "r.json: model.num_blocks: expected 3 blocks for each of 2 running sequences, found 3 (block 0 is the null "
       "block)"},
      {with(R"("schedule": {"allocator": "modulo", "preempt": 0.5})"),
       "r.json: schedule.allocator: expected not modulo where preempt swaps: it has no spare blocks"},
      {with(R"("script": {"steps": [{"index": [1, 2]}]})"), "r.json: script.steps: expected 2 steps, found 1"},
      {with(R"("script": {"steps": [{"index": [1], "times": 2}]})"),
       "r.json: script.steps: index of step 0: expected 2 rows, found 1"},
      {with(R"("script": {"steps": [{"index": [1, 2], "times": 2, "pat": 0}]})"),
       "r.json: script.steps[0].pat: expected only known keys, found this one"},
      {with(R"("script": {"steps": [{"table": [[1, 2], [3]], "column": [0, 1], "times": 2}]})"),
       "r.json: script.steps[0].column[1]: expected a column in 0..0 for row 1, found 1"},
      // 2^32 + 1 is no block 1, and steps are not held in memory before they are counted.
      {with(R"("script": {"steps": [{"table": [[4294967297], [2]], "column": [0, 0], "times": 2}]})"),
       "r.json: script.steps[0].table: expected blocks, which have 32 bits, found 4294967297"},
      {with(R"("script": {"steps": [{"index": [1, 2], "times": 65536}, {"index": [1, 2], "times": 65536}]})"),
       "r.json: script.steps: expected 2 steps, found 131072"},
      {with(R"("script": {"steps": [{"index": [1, 2], "times": 2}]}, "schedule": {"skip": 0.5})"),
       "r.json: script: expected no schedule beside it"},
      {with(R"("script": {"steps": [{"index": [1, 2], "times": 2}], "events": [{"step": 1, "kind": "free", "block": 1},
       {"step": 0, "kind": "free", "block": 1}]})"),
       "r.json: script.events: expected events sorted by step"},
      {with(R"("faults": [{"kind": "read-block", "step": 1}])"),
       "r.json: faults[0]: block: expected a block of the pool"},
      {with(R"("faults": [{"kind": "wrapped", "by": 16}])"), "r.json: faults[0]: by: expected 31 or 32 bits"},
      {with(R"("faults": [{"kind": "poison-out", "row": 1, "tap": "core"}])"),
       R"(r.json: faults[0].tap: expected a tap, found "core")"},
      {with_model(R"("index_bits": 48)"), "r.json: model: index_bits: expected 32 or 64"},
      {with_model(R"("head_v_dim": 5)"), "r.json: head_v_dim: expected each key once, found it twice"},
      {with_model(R"("norm_esp": 1)"), "r.json: model.norm_esp: expected only known keys, found this one"},
      {with_model(R"("state_dtype": "f64")"),
       R"(r.json: model.state_dtype: expected one of "f32", "bf16", "f16", found "f64")"},
      {with_model(R"("use_qk_l2norm": 1)"), "r.json: model.use_qk_l2norm: expected true or false, found 1"},
      {with_model(R"("sentinel": "none")"),
       R"(r.json: model.sentinel: expected one of "nonpositive", "zero", "minus_one", found "none")"},
  };
  for (const auto& refused : cases) {
    CAPTURE(refused.text);
    CHECK(refusal(refused.text) == refused.line);
  }
}

TEST_CASE("more blocks than a free list, or a load each, is for") {
  const auto blocks = [](std::string text, const char* number) {
    return text.replace(text.find("\"num_blocks\": 4") + 14, 1, number);
  };
  const std::string script = with(R"("script": {"fill": true, "steps": [{"index": [1, 2], "times": 2}]})");
  CHECK(refusal(blocks(script, "1048576")) == "accepted");
  CHECK(refusal(blocks(script, "1048577")) == "r.json: script.fill: expected at most 2^20 blocks to fill");
  CHECK(refusal(blocks(with(""), "67108864")) == "accepted");
  CHECK(refusal(blocks(with(""), "67108865")) ==
        "r.json: model.num_blocks: expected at most 2^26 blocks for a schedule to take from");
}

TEST_CASE("what cannot run is refused") {
  const auto refused = [](auto&& change) {
    Recipe r = full_recipe();
    change(r);
    CHECK_THROWS_AS(validate(r, "r"), Error);
    CHECK_THROWS_AS(make_recipe_stream(r), Error);
  };
  CHECK_NOTHROW(validate(full_recipe(), "r"));
  refused([](Recipe& r) { r.model.num_blocks = 6; });                                     // seven run at a time
  refused([](Recipe& r) { r.model.num_blocks = 7, r.model.sentinel = Sentinel::zero; });  // block 0 is taken
  refused([](Recipe& r) { r.model.layer_ids = {1, 2, 1}; });
  refused([](Recipe& r) { r.model.layer_ids = {1 << 24}; });
  refused([](Recipe& r) { r.model.HV = 5; });
  refused([](Recipe& r) { r.model.state_dtype = DType::f16; });
  refused([](Recipe& r) { r.model.scale = std::numeric_limits<float>::infinity(); });
  refused([](Recipe& r) { r.steps = 0; });
  refused([](Recipe& r) { r.steps = 1 << 24, r.rows = 1 << 10; });
  refused([](Recipe& r) { r.rows = 6; });
  refused([](Recipe& r) { r.schedule.arrival = -0.1; });
  refused([](Recipe& r) { r.schedule.away = {0, 1}; });
  refused([](Recipe& r) { r.inputs.specials.rate = std::numeric_limits<double>::quiet_NaN(); });
  refused([](Recipe& r) { r.params.dt_bias.first = std::numeric_limits<float>::quiet_NaN(); });
}

TEST_CASE("files") {
  const test::TempDir folder;
  const std::string good = folder / "good.json", other = folder / "other";
  std::ofstream(good) << "\n  " << with("");
  std::ofstream(other) << "\x89HDF";
  CHECK(is_recipe(good));
  CHECK_FALSE(is_recipe(other));
  CHECK_FALSE(is_recipe(folder / "missing"));
  CHECK_FALSE(is_recipe(folder.path()));
  CHECK(canonical_json(load_recipe(good)) == canonical_json(parse_recipe(with(""), "")));
  CHECK(open_recipe(good)->steps() == 2);
  CHECK_THROWS_WITH_AS(load_recipe(folder.path()), doctest::Contains("expected a readable recipe"), Error);
  CHECK_THROWS_WITH_AS(load_recipe(folder / "missing"), doctest::Contains("expected a readable recipe"), Error);
  CHECK_THROWS_WITH_AS(load_recipe(other), doctest::Contains("expected valid JSON"), Error);
}

TEST_CASE("every sample recipe runs") {
  const char* traces = std::getenv("GDNSIM_TRACES");
  REQUIRE_MESSAGE(traces != nullptr, "GDNSIM_TRACES names the folder traces/");
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(traces) / "recipes")) {
    if (entry.path().extension() != ".json") continue;
    CAPTURE(entry.path().string());
    const Recipe recipe = load_recipe(entry.path().string());
    CHECK_FALSE(recipe.note.empty());
    const auto stream = make_recipe_stream(recipe);
    CHECK(stream->source() == canonical_json(recipe));
    StepInputs inputs;
    for (std::int64_t step = 0; step < stream->steps(); ++step) CHECK(stream->plan(step).rows() == recipe.rows);
    stream->inputs(stream->steps() - 1, stream->model().layers() - 1, inputs);
    CHECK_FALSE(inputs.mixed_qkv.empty());
    ++seen;
  }
  CHECK(seen >= 8);
}
