// Every variant of the CUDA kernels against golden, bit for bit, over a grid of cases: each case twice from the same state,
// outputs poisoned and what lies beyond them watched. Without a device the cases are skipped, never passed.
#include <doctest/doctest.h>

#include <gdnsim/backend.hpp>
#include <gdnsim/contract.hpp>
#include <gdnsim/error.hpp>

#include <memory>
#include <string>
#include <vector>

#include "cuda/variants.hpp"
#include "support/one_layer.hpp"
#include "support/skip.hpp"

using namespace gdnsim;
using namespace gdnsim::second;

namespace {

struct Dims {
  int H, HV, K, V, W;
};

constexpr Dims kDims[] = {{2, 4, 128, 128, 4}, {1, 3, 64, 64, 3},  {2, 2, 32, 256, 2},  {1, 2, 256, 64, 5},
                          {1, 1, 64, 32, 4},   {2, 6, 128, 32, 4}, {1, 2, 256, 256, 4}, {3, 3, 32, 32, 3},
                          {1, 4, 128, 256, 2}, {4, 4, 64, 128, 5}};
constexpr std::uint32_t kHostile[] = {0, 3000, 60};

second::Recipe recipe_of(const Dims& dims, unsigned n) {
  second::Recipe recipe;
  Model& m = recipe.model;
  m.H = dims.H, m.HV = dims.HV, m.K = dims.K, m.V = dims.V, m.W = dims.W;
  m.scale = dims.K == 128 ? 0.088388346f : 0.3f;
  m.num_blocks = 12;
  m.norm_eps = 1e-6f;
  m.state_dtype = n % 2 == 0 ? DType::f32 : DType::bf16;
  m.conv_state_dtype = n / 2 % 2 == 0 ? DType::bf16 : DType::f32;
  m.activation = n % 5 == 4 ? Activation::none : Activation::silu;
  m.sentinel = static_cast<Sentinel>(n % 3);
  m.norm_gate = n % 7 < 5 ? NormGate::silu : NormGate::sigmoid;
  m.use_qk_l2norm = n % 11 != 7;
  recipe.bias = n / 4 % 2 == 1;
  recipe.hostile_in = kHostile[n / 3 % 3];
  recipe.name = "recipe " + std::to_string(n);
  return recipe;
}

/// What every variant gives.
TapSet outer_taps() { return {Tap::conv_out, Tap::core_out, Tap::rstd, Tap::norm_out}; }

/// One backend with its pool, filled as the stream says.
struct Side {
  Backend& backend;
  std::unique_ptr<Pool> pool;
  StepOutputs outputs;

  Side(Backend& backend_, OneLayer& stream) : backend(backend_), pool(backend_.make_pool(stream.model(), {0})) {
    backend.prepare(stream, {0});
    outputs.want = outer_taps();
    for (std::int32_t b = 0; b < stream.model().num_blocks; ++b) {
      const Block block = stream.random_block(static_cast<std::uint64_t>(b));
      pool->write(0, b, block.recurrent, block.conv);
    }
  }
};

std::uint64_t compare_sides(const Side& got, const Side& want, const Model& model) {
  std::uint64_t elements = 0;
  const auto compare = [&](const Bytes& a, const Bytes& b, DType type, const std::string& what) {
    CAPTURE(what);
    CHECK(first_difference(a, b, size_of(type)) == "");
    elements += b.size() / size_of(type);
  };
  for (Tap tap : {Tap::conv_out, Tap::core_out, Tap::rstd, Tap::norm_out})
    compare(got.outputs[tap], want.outputs[tap], shape_of(tap, model).type, std::string(name_of(tap)));
  Block a{Bytes(model.state_bytes()), Bytes(model.conv_bytes())}, b = a;
  for (std::int32_t block = 0; block < model.num_blocks; ++block) {
    got.pool->read(0, block, a.recurrent, a.conv);
    want.pool->read(0, block, b.recurrent, b.conv);
    compare(a.recurrent, b.recurrent, model.state_dtype, "state of block " + std::to_string(block));
    compare(a.conv, b.conv, model.conv_state_dtype, "conv state of block " + std::to_string(block));
  }
  return elements;
}

std::uint64_t compare(Backend& cuda, const second::Recipe& recipe, const Contract& contract, int steps,
                      std::uint64_t seed, int rows) {
  CAPTURE(recipe.name);
  CAPTURE(contract.name);
  OneLayer stream(recipe, seed, rows);
  if (undefined_because(contract, stream.model()) != "") return 0;
  const auto golden = make_golden({});
  std::uint64_t elements = 0;
  Side want(*golden, stream), first(cuda, stream), second(cuda, stream);
  StepInputs inputs;
  for (std::int64_t t = 0; t < steps; ++t) {
    CAPTURE(t);
    const StepPlan plan = stream.plan(t);
    stream.inputs(t, 0, inputs);
    for (Side* side : {&want, &first, &second})
      side->backend.step({.layer = 0, .plan = plan, .inputs = inputs, .contract = contract}, *side->pool,
                         side->outputs);
    elements += compare_sides(first, want, stream.model());
    elements += compare_sides(second, want, stream.model());
  }
  return elements;
}

/// Looks at blocks after each step: some steps none, some blocks that no step touches, bytes here and there.
std::vector<Look> looks_of(Random& random, const Model& model) {
  std::vector<Look> looks;
  if (random.below(3) == 0) return looks;
  for (std::int32_t block = 0; block < model.num_blocks; ++block)
    if (random.below(3) == 0) looks.push_back({block, random.below(2) == 0});
  return looks;
}

/// A window of steps on golden, one after another, and on the device at once.
struct Window {
  std::vector<StepPlan> plans;
  std::vector<StepInputs> inputs;
  std::vector<std::vector<Look>> looks;

  Window(OneLayer& stream, std::int64_t first, int steps, bool mixed) : inputs(static_cast<std::size_t>(steps)) {
    Random random(static_cast<std::uint64_t>(first) + 77);
    for (int t = 0; t < steps; ++t) {
      plans.push_back(stream.plan(first + t));
      if (mixed && random.below(2) == 0) plans.back().path = Path::mixed;
      stream.inputs(first + t, 0, inputs[static_cast<std::size_t>(t)]);
      looks.push_back(looks_of(random, stream.model()));
    }
  }

  std::vector<WindowStep> run(Side& side, const ContractSet& contracts) const {
    std::vector<WindowStep> steps(plans.size());
    for (WindowStep& step : steps) step.outputs.want = outer_taps();
    side.backend.steps({0, plans, inputs, contracts, looks}, *side.pool, steps);
    return steps;
  }
};

std::uint64_t compare_kept(const KeptBlock& got, const KeptBlock& want, const Model& model) {
  CAPTURE(want.block);
  CHECK(got.block == want.block);
  CHECK(got.digest.heads == want.digest.heads);
  CHECK(got.digest.conv == want.digest.conv);
  CHECK(got.digest.block == want.digest.block);
  CHECK(first_difference(got.recurrent, want.recurrent, size_of(model.state_dtype)) == "");
  CHECK(first_difference(got.conv, want.conv, size_of(model.conv_state_dtype)) == "");
  return want.recurrent.size() + want.conv.size();
}

std::uint64_t compare_windows(const std::vector<WindowStep>& got, const std::vector<WindowStep>& want,
                              const Model& model) {
  std::uint64_t elements = 0;
  for (std::size_t t = 0; t < want.size(); ++t) {
    CAPTURE(t);
    for (Tap tap : {Tap::conv_out, Tap::core_out, Tap::rstd, Tap::norm_out}) {
      CAPTURE(name_of(tap));
      const Bytes& bytes = want[t].outputs[tap];
      CHECK(first_difference(got[t].outputs[tap], bytes, size_of(shape_of(tap, model).type)) == "");
      elements += bytes.size() / size_of(shape_of(tap, model).type);
    }
    REQUIRE(got[t].kept.size() == want[t].kept.size());
    for (std::size_t i = 0; i < want[t].kept.size(); ++i)
      elements += compare_kept(got[t].kept[i], want[t].kept[i], model);
  }
  return elements;
}

/// Two windows, one after the other, against golden.
std::uint64_t compare_window(Backend& cuda, const second::Recipe& recipe, const ContractSet& contracts, int steps,
                             std::uint64_t seed, int rows) {
  CAPTURE(recipe.name);
  CAPTURE(contract_name(contracts));
  OneLayer stream(recipe, seed, rows);
  if (undefined_because(contracts.decode, stream.model()) != "") return 0;
  const auto golden = make_golden({});
  Side want(*golden, stream), got(cuda, stream);
  std::uint64_t elements = 0;
  for (int round = 0; round < 2; ++round) {
    const Window window(stream, round * steps, steps, contracts.decode != contracts.mixed);
    const std::vector<WindowStep> expected = window.run(want, contracts);
    elements += compare_windows(window.run(got, contracts), expected, stream.model());
    got.outputs = want.outputs = {};
    elements += compare_sides(got, want, stream.model());
  }
  return elements;
}

/// A backend held to a variant, or nullptr and why not.
std::unique_ptr<Backend> try_variant(std::string_view name, std::string& reason) {
  try {
    return cuda::make_variant({}, name, true);
  } catch (const Error& problem) {
    reason = problem.what();
    return nullptr;
  }
}

}  // namespace

TEST_CASE("cuda variants: every one gives golden's bits, twice") {
  for (const cuda::Variant& variant : cuda::variants()) {
    CAPTURE(variant.name);
    if (variant.name == "resident") continue;  // its single steps are the fused one's; its windows below
    std::string reason;
    const auto backend = try_variant(variant.name, reason);
    if (backend == nullptr) {
      MESSAGE(reason);
      GDNSIM_SKIP(test::kNoGpu);
    }
    for (const Contract& contract : contract_presets()) {
      std::uint64_t elements = 0, refused = 0;
      for (unsigned n = 0; n < 60; ++n) {
        const second::Recipe recipe = recipe_of(kDims[n % std::size(kDims)], n);
        if (variant.refuses(contract, recipe.model) != "") {
          ++refused;
          continue;
        }
        elements += compare(*backend, recipe, contract, 3, n, n % 4 == 3 ? 9 : 4);
      }
      MESSAGE(variant.name << ", " << contract.name << ": elements compared " << elements << ", cases refused "
                           << refused);
      CHECK((elements > 1000000 || refused == 60));
    }
  }
}

TEST_CASE("cuda variants: real shapes, state carried") {
  std::string reason;
  const auto backend = try_variant("fused", reason);
  if (backend == nullptr) GDNSIM_SKIP(test::kNoGpu);
  std::uint64_t elements = 0;
  for (const Dims& dims : {Dims{4, 8, 128, 128, 4}, Dims{16, 32, 128, 128, 4}, Dims{16, 48, 128, 128, 4}})
    for (unsigned n : {0u, 1u, 2u, 3u, 12u})
      for (const char* name : {"golden", "triton-sm90", "triton-sm90-mixed"})
        elements += compare(*backend, recipe_of(dims, n), contract_preset(name), dims.H == 4 ? 12 : 2, n, 10);
  MESSAGE("elements compared " << elements);
}

TEST_CASE("cuda variants: a window of known steps, with looks, gives golden's bits") {
  std::string reason;
  const auto backend = try_variant("resident", reason);
  if (backend == nullptr) GDNSIM_SKIP(test::kNoGpu);
  for (const char* name : {"golden", "triton-sm90", "triton-sm90-tiled-norm"}) {
    std::uint64_t elements = 0;
    for (unsigned n = 0; n < 40; ++n) {
      const second::Recipe recipe = recipe_of(kDims[n % std::size(kDims)], n);
      if (cuda::variant("resident").refuses(contract_preset(name), recipe.model) != "") continue;
      elements += compare_window(*backend, recipe, contract_set(name), n % 3 == 0 ? 1 + static_cast<int>(n) : 9, n,
                                 n % 4 == 3 ? 9 : 3);
    }
    MESSAGE(name << ": elements compared " << elements);
    CHECK(elements > 1000000);
  }
}

TEST_CASE("cuda variants: a window of real shapes") {
  std::string reason;
  const auto backend = try_variant("resident", reason);
  if (backend == nullptr) GDNSIM_SKIP(test::kNoGpu);
  std::uint64_t elements = 0;
  for (unsigned n : {0u, 1u, 2u, 3u})
    for (const char* name : {"golden", "triton-sm90"}) {
      elements += compare_window(*backend, recipe_of({16, 32, 128, 128, 4}, n), contract_set(name), 6, n, 10);
      elements += compare_window(*backend, recipe_of({4, 8, 128, 128, 4}, n), contract_set(name), 24, n, 1);
    }
  MESSAGE("elements compared " << elements);
}

TEST_CASE("cuda variants: what one cannot run is refused by name") {
  const second::Recipe good = recipe_of({2, 4, 128, 128, 4}, 0);
  const cuda::Variant& fused = cuda::variant("fused");
  const Contract& golden = contract_preset("golden");
  CHECK(fused.refuses(golden, good.model) == "");
  CHECK(cuda::variant("plain").refuses(golden, good.model) == "");
  Model model = good.model;
  model.K = 96;
  CHECK(fused.refuses(golden, model) == "K 96; it has 32, 64, 128 and 256");
  model = good.model, model.W = 9;
  CHECK(fused.refuses(golden, model) == "W 9; it has 2 to 5");
  model = good.model, model.act_dtype = DType::f32;
  CHECK(fused.refuses(golden, model) == "activations of f32; it has bf16");
  CHECK(fused.refuses(contract_preset("triton-sm90-nofma"), good.model) ==
        "contract 'triton-sm90-nofma'; it has golden, triton-sm90 and triton-sm90-mixed");
  CHECK_THROWS_WITH_AS(cuda::variant("quick"), "cuda: variant: expected plain, fused, resident; found 'quick'", Error);
}
