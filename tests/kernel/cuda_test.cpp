// The CUDA backend against the golden one, bit for bit: every tap and every block of the pool, over presets, every
// value of every contract field, shapes, types, sentinels and hostile contents. Without a device the cases are
// skipped, never passed.
#include <doctest/doctest.h>

#include <gdnsim/backend.hpp>
#include <gdnsim/contract.hpp>
#include <gdnsim/error.hpp>

#include <memory>
#include <string>

#include "kernel/sides.hpp"

using namespace gdnsim;
using namespace gdnsim::second;
using namespace gdnsim::test;

namespace {

struct Dims {
  int H, HV, K, V, W;
};

struct Types {
  DType state = DType::f32, conv = DType::bf16, act = DType::bf16;
};

/// The settings that a number stands for: each of the model's switches is reached as n counts up.
second::Recipe recipe_of(const Dims& dims, const Types& types, unsigned n, std::uint32_t hostile_in) {
  second::Recipe recipe;
  Model& m = recipe.model;
  m.H = dims.H, m.HV = dims.HV, m.K = dims.K, m.V = dims.V, m.W = dims.W;
  m.scale = dims.K == 128 ? 0.088388346f : 0.3f;
  m.num_blocks = 9;
  m.norm_eps = n % 2 == 0 ? 1e-6f : 1e-5f;
  m.state_dtype = types.state, m.conv_state_dtype = types.conv, m.act_dtype = types.act;
  m.activation = n / 2 % 2 == 0 ? Activation::silu : Activation::none;
  m.sentinel = static_cast<Sentinel>(n % 3);
  m.norm_gate = n % 5 < 3 ? NormGate::silu : NormGate::sigmoid;
  m.use_qk_l2norm = n % 7 != 3;
  recipe.bias = n / 4 % 2 == 1;
  recipe.norm = n % 8 != 5;
  recipe.hostile_in = hostile_in;
  recipe.name = "recipe " + std::to_string(n);
  return recipe;
}

/// A few steps of one recipe on both sides, state carried.
void compare(Backend& cuda, const second::Recipe& recipe, const Contract& contract, int steps, std::uint64_t seed,
             int rows, Compared& total) {
  CAPTURE(recipe.name);
  CAPTURE(to_text({contract, contract}));
  OneLayer stream(recipe, seed, rows);
  REQUIRE(undefined_because(contract, stream.model()) == "");
  const auto golden = make_golden({});
  Side got(cuda, stream), want(*golden, stream);
  StepInputs inputs;
  for (std::int64_t t = 0; t < steps; ++t) {
    CAPTURE(t);
    const StepPlan plan = stream.plan(t);
    stream.inputs(t, 0, inputs);
    for (Side* side : {&got, &want})
      side->backend.step({.layer = 0, .plan = plan, .inputs = inputs, .contract = contract}, *side->pool,
                         side->outputs);
    compare_sides(got, want, stream.model(), total);
  }
}

constexpr Dims kToy[] = {{1, 1, 1, 1, 2},   {2, 4, 7, 5, 3},   {1, 3, 33, 40, 4}, {2, 4, 64, 32, 4},
                         {2, 2, 96, 31, 5}, {3, 6, 32, 65, 2}, {1, 1, 300, 3, 9}};
constexpr Dims kTriton[] = {
    {2, 4, 64, 64, 4}, {1, 2, 128, 128, 4}, {2, 2, 64, 128, 4}, {1, 3, 256, 32, 3}, {2, 4, 32, 256, 2}};
constexpr Dims kTiled[] = {{2, 4, 64, 128, 4}, {1, 2, 128, 128, 4}};
constexpr std::uint32_t kHostile[] = {0, 2000, 60};

Types types_of(unsigned n, bool any_act) {
  Types types;
  types.state = n % 2 == 0 ? DType::f32 : DType::bf16;
  types.conv = n / 2 % 2 == 0 ? DType::bf16 : DType::f32;
  if (any_act) types.act = static_cast<DType>(n / 4 % 3);
  return types;
}

/// Every value of every field that is no number, one at a time; numbers take a few.
std::vector<Contract> single_changes(const Contract& base) {
  std::vector<Contract> result;
  for (const auto& [field, value] : contract_fields(base)) {
    std::vector<std::string> words = contract_field_values(field);
    if (words.empty()) words = {"1", "2", "3", "8", "33", "128"};
    for (const std::string& word : words) {
      Contract changed = base;
      set_contract_field(changed, field, word);
      if (word != value) result.push_back(changed);
    }
  }
  return result;
}

}  // namespace

TEST_CASE("cuda: golden contract, any shape and type") {
  CUDA_OR_SKIP(cuda);
  MESSAGE(cuda->description());
  Compared total;
  for (unsigned n = 0; n < 168; ++n)
    compare(*cuda, recipe_of(kToy[n % std::size(kToy)], types_of(n / 7, true), n, kHostile[n % 3]),
            contract_preset("golden"), 3, n, 4, total);
  MESSAGE("elements compared: " << total.elements);
  CHECK(total.elements > 1000000);
}

TEST_CASE("cuda: every preset, the shapes it is defined for") {
  CUDA_OR_SKIP(cuda);
  for (const Contract& preset : contract_presets()) {
    Compared total;
    for (unsigned n = 0; n < 60; ++n) {
      const bool tiled = preset.shapes == Shapes::triton_v128;
      const Dims& dims = tiled ? kTiled[n % std::size(kTiled)] : kTriton[n % std::size(kTriton)];
      Contract contract = preset;
      if (tiled && n % 3 != 0) contract.multiprocessors = n % 3 == 1 ? 4 : 1;  // two and four rows a block
      const second::Recipe recipe = recipe_of(dims, types_of(n, false), n, kHostile[n / 4 % 3]);
      if (undefined_because(contract, recipe.model) == "") compare(*cuda, recipe, contract, 2, n, 4, total);
    }
    MESSAGE(preset.name << ": elements compared: " << total.elements);
    CHECK(total.elements > 1000000);
  }
}

TEST_CASE("cuda: every value of every contract field, alone") {
  CUDA_OR_SKIP(cuda);
  Compared total;
  unsigned n = 0, ran = 0;
  for (const char* base : {"golden", "triton-sm90-nofma"}) {
    Contract any = contract_preset(base);
    any.shapes = Shapes::any;
    for (const Contract& contract : single_changes(any)) {
      ++n;
      const second::Recipe recipe =
          recipe_of({2, 4, 70, 36, 4}, types_of(n, true), n % 3 == 0 ? 0 : 4, n % 2 == 0 ? 0 : 500);
      if (undefined_because(contract, recipe.model) != "") continue;  // a fused exchange with wide lanes
      compare(*cuda, recipe, contract, 1, n, 3, total);
      ++ran;
    }
  }
  MESSAGE("contracts: " << ran << ", elements compared: " << total.elements);
  CHECK(total.elements > 10000000);
  CHECK(ran > 150);
}

TEST_CASE("cuda: contracts drawn at random") {
  CUDA_OR_SKIP(cuda);
  Random random(2024);
  Compared total;
  for (unsigned n = 0; n < 300; ++n) {
    const Contract contract = drawn_contract(random);
    const Dims dims{1 + static_cast<int>(random.below(3)), 0, 1 + static_cast<int>(random.below(200)),
                    1 + static_cast<int>(random.below(150)), 2 + static_cast<int>(random.below(4))};
    const Dims whole{dims.H, dims.H * (1 + static_cast<int>(random.below(3))), dims.K, dims.V, dims.W};
    compare(*cuda, recipe_of(whole, types_of(n, true), n, kHostile[n % 2]), contract, 1, n, 3, total);
  }
  MESSAGE("elements compared: " << total.elements);
  CHECK(total.elements > 50000000);
}

TEST_CASE("cuda: real shapes, state carried over steps") {
  CUDA_OR_SKIP(cuda);
  Compared total;
  for (const Dims& dims : {Dims{4, 8, 128, 128, 4}, Dims{16, 32, 128, 128, 4}, Dims{16, 48, 128, 128, 4}})
    for (unsigned n = 0; n < 4; ++n)
      for (const char* name : {"golden", "triton-sm90", "triton-sm90-mixed"})
        compare(*cuda, recipe_of(dims, types_of(n, false), n, 0), contract_preset(name), dims.H == 4 ? 20 : 3, n, 7,
                total);
  MESSAGE("elements compared: " << total.elements);
  CHECK(total.elements > 400000000);
}

TEST_CASE("cuda: long rows, which need more shared memory than a block has unasked") {
  CUDA_OR_SKIP(cuda);
  Compared total;
  for (const char* lane : {"1", "4", "whole"})
    for (const char* group : {"0", "1", "32", "4096"}) {
      Contract contract;
      for (const char* dot : {"qk_dot.", "state_dot.", "norm_dot."}) {
        set_contract_field(contract, std::string(dot) + "lane", lane);
        set_contract_field(contract, std::string(dot) + "group", group);
      }
      compare(*cuda, recipe_of({1, 1, 16384, 2, 2}, {}, 0, 0), contract, 1, 1, 2, total);
      compare(*cuda, recipe_of({1, 1, 2, 16384, 2}, {}, 4, 0), contract, 1, 1, 2, total);
    }
  MESSAGE("elements compared: " << total.elements);
  CHECK(total.elements > 10000000);
}

TEST_CASE("cuda: the pool moves blocks as the host's does") {
  CUDA_OR_SKIP(cuda);
  const second::Recipe recipe = recipe_of(kToy[1], {}, 0, 60);
  OneLayer stream(recipe, 3, 4);
  const auto golden = make_golden({});
  Side got(*cuda, stream), want(*golden, stream);
  Compared total;
  got.outputs.taps.fill({}), want.outputs.taps.fill({});
  for (Side* side : {&got, &want}) {
    side->pool->zero(0, 2);
    side->pool->copy(0, 3, 5);
    side->pool->copy(0, 4, 4);
  }
  compare_sides(got, want, stream.model(), total);
  const auto fresh = cuda->make_pool(stream.model(), {0});
  Block block{Bytes(stream.model().state_bytes(), std::byte{1}), Bytes(stream.model().conv_bytes(), std::byte{1})};
  fresh->read(0, 8, block.recurrent, block.conv);
  CHECK(block == Block{Bytes(stream.model().state_bytes()), Bytes(stream.model().conv_bytes())});
}

TEST_CASE("cuda: a wrong contract is seen, so equality above means something") {
  CUDA_OR_SKIP(cuda);
  const second::Recipe recipe = recipe_of({4, 8, 128, 128, 4}, {}, 0, 0);
  OneLayer stream(recipe, 5, 4);
  const auto golden = make_golden({});
  Side got(*cuda, stream), want(*golden, stream);
  StepInputs inputs;
  stream.inputs(0, 0, inputs);
  const StepPlan plan = stream.plan(0);
  got.backend.step({0, plan, inputs, contract_preset("triton-sm90-mixed")}, *got.pool, got.outputs);
  want.backend.step({0, plan, inputs, contract_preset("triton-sm90")}, *want.pool, want.outputs);
  for (Tap tap : {Tap::q, Tap::k, Tap::dot_k, Tap::u}) {
    CAPTURE(name_of(tap));
    CHECK(first_difference(got.outputs[tap], want.outputs[tap], 4) != "");
  }
  CHECK(got.outputs[Tap::beta] == want.outputs[Tap::beta]);
}

TEST_CASE("cuda: what cannot be run is refused in one clear line") {
  std::string reason;
  const auto cuda = try_cuda(reason);
  if (cuda == nullptr) {
    CHECK(reason.starts_with("cuda: "));
    CHECK(reason.find('\n') == std::string::npos);
    skip_or_fail(reason);
    return;
  }
  CHECK_THROWS_AS(make_cuda({.threads = 0, .device = 4096}), Error);
  CHECK_THROWS_AS(make_cuda({.threads = 0, .device = -1}), Error);
  Model model = recipe_of({16, 32, 128, 128, 4}, {}, 0, 0).model;
  model.num_blocks = 1 << 24;  // 32 TiB of state
  model.layer_ids = {0};
  try {
    cuda->make_pool(model, {0});
    FAIL("a pool of 32 TiB was made");
  } catch (const Error& problem) {
    const std::string text = problem.what();
    CHECK(text.find("MiB free of") != std::string::npos);
    MESSAGE(text);
  }
}
