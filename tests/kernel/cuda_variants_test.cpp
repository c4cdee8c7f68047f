// Every variant of the CUDA kernels against golden, bit for bit, over a grid of cases: each case twice from the same state,
// outputs poisoned and what lies beyond them watched. Without a device the cases are skipped, never passed.
#include <doctest/doctest.h>

#include <gdnsim/backend.hpp>
#include <gdnsim/contract.hpp>
#include <gdnsim/error.hpp>

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/limits.hpp"
#include "cuda/variants.hpp"
#include "kernel/device.hpp"
#include "support/one_layer.hpp"

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

/// A stream and the blocks that every side begins with, made once for all contracts and variants.
struct Case {
  OneLayer stream;
  std::string name;
  std::vector<Block> blocks;

  Case(const second::Recipe& recipe, std::uint64_t seed, int rows) : stream(recipe, seed, rows), name(recipe.name) {
    for (std::int32_t b = 0; b < recipe.model.num_blocks; ++b)
      blocks.push_back(stream.random_block(static_cast<std::uint64_t>(b)));
  }
};

/// One backend with its pool.
struct Side {
  Backend& backend;
  std::unique_ptr<Pool> pool;
  StepOutputs outputs;

  Side(Backend& backend_, const Case& start) : backend(backend_), pool(backend_.make_pool(start.stream.model(), {0})) {
    backend.prepare(start.stream, {0});
    outputs.want = outer_taps();
    for (std::size_t b = 0; b < start.blocks.size(); ++b)
      pool->write(0, static_cast<std::int32_t>(b), start.blocks[b].recurrent, start.blocks[b].conv);
  }
};

void compare_bytes(const Bytes& got, const Bytes& want, DType type, const std::string& what, std::uint64_t& elements) {
  elements += want.size() / size_of(type);
  if (got.size() == want.size() && std::memcmp(got.data(), want.data(), got.size()) == 0) return;
  CAPTURE(what);
  CHECK(first_difference(got, want, size_of(type)) == "");
}

/// Outputs and every block of the pool, also those that no row has.
std::uint64_t compare_sides(const std::vector<const Side*>& sides, const Side& want, const Model& model) {
  std::uint64_t elements = 0;
  for (const Side* got : sides)
    for (Tap tap : {Tap::conv_out, Tap::core_out, Tap::rstd, Tap::norm_out})
      compare_bytes(got->outputs[tap], want.outputs[tap], shape_of(tap, model).type, std::string(name_of(tap)),
                    elements);
  Block a{Bytes(model.state_bytes()), Bytes(model.conv_bytes())}, b = a;
  for (std::int32_t block = 0; block < model.num_blocks; ++block) {
    want.pool->read(0, block, b.recurrent, b.conv);
    for (const Side* got : sides) {
      const std::string which = std::to_string(block);
      got->pool->read(0, block, a.recurrent, a.conv);
      compare_bytes(a.recurrent, b.recurrent, model.state_dtype, "state of block " + which, elements);
      compare_bytes(a.conv, b.conv, model.conv_state_dtype, "conv state of block " + which, elements);
    }
  }
  return elements;
}

/// Steps of golden, and twice the same steps of each variant. Elements compared of one variant.
std::uint64_t compare(const std::vector<Backend*>& variants, Case& start, const Contract& contract, int steps) {
  CAPTURE(start.name);
  CAPTURE(contract.name);
  OneLayer& stream = start.stream;
  if (variants.empty() || undefined_because(contract, stream.model()) != "") return 0;
  const auto golden = make_golden({});
  Side want(*golden, start);
  std::vector<std::unique_ptr<Side>> sides;
  std::vector<const Side*> all;
  for (Backend* backend : variants)
    for (int twice = 0; twice < 2; ++twice)
      all.push_back(sides.emplace_back(std::make_unique<Side>(*backend, start)).get());
  std::uint64_t elements = 0;
  StepInputs inputs;
  const auto step = [&](Side& side, std::int64_t t) {
    side.backend.step({.layer = 0, .plan = stream.plan(t), .inputs = inputs, .contract = contract}, *side.pool,
                      side.outputs);
  };
  for (std::int64_t t = 0; t < steps; ++t) {
    CAPTURE(t);
    stream.inputs(t, 0, inputs);
    step(want, t);
    for (const auto& side : sides) step(*side, t);
    elements += compare_sides(all, want, stream.model());
  }
  return elements / variants.size();
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
std::uint64_t compare_window(Backend& cuda, Case& start, const ContractSet& contracts, int steps) {
  CAPTURE(start.name);
  CAPTURE(contract_name(contracts));
  OneLayer& stream = start.stream;
  if (undefined_because(contracts.decode, stream.model()) != "") return 0;
  const auto golden = make_golden({});
  Side want(*golden, start), got(cuda, start);
  std::uint64_t elements = 0;
  for (int round = 0; round < 2; ++round) {
    const Window window(stream, round * steps, steps, contracts.decode != contracts.mixed);
    const std::vector<WindowStep> expected = window.run(want, contracts);
    elements += compare_windows(window.run(got, contracts), expected, stream.model());
    got.outputs = want.outputs = {};
    elements += compare_sides({&got}, want, stream.model());
  }
  return elements;
}

/// What one row of the table compared under one contract.
struct Tally {
  std::uint64_t elements = 0, refused = 0;
};

/// The rows of the table that this device has, each with its backend; none without a device.
struct Table {
  std::vector<const cuda::Variant*> rows;
  std::vector<std::unique_ptr<Backend>> backends;

  Table() {
    for (const cuda::Variant& variant : cuda::variants()) {
      if (variant.name == "resident") continue;  // its single steps are the fused one's; its windows below
      auto backend = test::try_variant(variant.name, true);
      if (backend == nullptr) continue;  // no device, or one that has the others
      rows.push_back(&variant);
      backends.push_back(std::move(backend));
    }
  }
};

/// Every variant and preset over one case: adds to [variants][presets].
void compare_all(const Table& table, unsigned n, std::vector<std::vector<Tally>>& tallies) {
  const std::span<const Contract> presets = contract_presets();
  Case start(recipe_of(kDims[n % std::size(kDims)], n), n, n % 4 == 3 ? 9 : 4);
  for (std::size_t c = 0; c < presets.size(); ++c) {
    std::vector<Backend*> willing;
    std::vector<Tally*> theirs;
    for (std::size_t r = 0; r < table.rows.size(); ++r) {
      const bool refused = table.rows[r]->refuses(presets[c], start.stream.model()) != "";
      tallies[r][c].refused += refused;
      if (!refused) willing.push_back(table.backends[r].get()), theirs.push_back(&tallies[r][c]);
    }
    const std::uint64_t elements = compare(willing, start, presets[c], 3);
    for (Tally* tally : theirs) tally->elements += elements;
  }
}

}  // namespace

TEST_CASE("cuda variants: every one gives golden's bits, twice") {
  const Table table;
  if (table.rows.empty()) return;
  const std::span<const Contract> presets = contract_presets();
  std::vector<std::vector<Tally>> tallies(table.rows.size(), std::vector<Tally>(presets.size()));
  constexpr unsigned kCases = 60;
  for (unsigned n = 0; n < kCases; ++n) compare_all(table, n, tallies);
  for (std::size_t r = 0; r < table.rows.size(); ++r)
    for (std::size_t c = 0; c < presets.size(); ++c) {
      const Tally& tally = tallies[r][c];
      MESSAGE(table.rows[r]->name << ", " << presets[c].name << ": elements compared " << tally.elements
                                  << ", cases refused " << tally.refused);
      CHECK((tally.elements > 1000000 || tally.refused == kCases));
    }
}

TEST_CASE("cuda variants: a few cases of each, which sanitizers have the time for") {
  const Table table;
  if (table.rows.empty()) return;
  std::vector<std::vector<Tally>> tallies(table.rows.size(), std::vector<Tally>(contract_presets().size()));
  for (const unsigned n : {0u, 1u, 2u, 3u}) compare_all(table, n, tallies);
  for (const std::vector<Tally>& presets : tallies) CHECK(presets[0].elements > 0);
}

TEST_CASE("cuda variants: real shapes, state carried") {
  const auto fused = test::try_variant("fused", true), streamed = test::try_variant("streamed", true);
  if (fused == nullptr) return;
  std::vector<Backend*> backends{fused.get()};
  if (streamed != nullptr) backends.push_back(streamed.get());
  std::uint64_t elements = 0;
  for (const Dims& dims : {Dims{4, 8, 128, 128, 4}, Dims{16, 32, 128, 128, 4}, Dims{16, 48, 128, 128, 4}})
    for (unsigned n : {0u, 1u, 2u, 3u, 12u}) {
      Case start(recipe_of(dims, n), n, 10);
      for (const char* name : {"golden", "triton-sm90", "triton-sm90-mixed"})
        elements += compare(backends, start, contract_preset(name), dims.H == 4 ? 12 : 2);
    }
  MESSAGE("elements compared " << elements);
  CHECK(elements > 1000000000);
}

TEST_CASE("cuda variants: real shapes once, which sanitizers have the time for") {
  const auto resident = test::try_variant("resident", true);
  if (resident == nullptr) return;
  const auto fused = test::try_variant("fused", true), streamed = test::try_variant("streamed", true);
  std::vector<Backend*> backends{fused.get()};
  if (streamed != nullptr) backends.push_back(streamed.get());
  std::uint64_t elements = 0;
  for (unsigned n : {0u, 1u}) {
    Case steps(recipe_of({4, 8, 128, 128, 4}, n), n, 3), windows(recipe_of({16, 32, 128, 128, 4}, n), n, 7);
    for (const char* name : {"golden", "triton-sm90"}) {
      elements += compare(backends, steps, contract_preset(name), 1);
      elements += compare_window(*resident, windows, contract_set(name), 2);
    }
  }
  MESSAGE("elements compared " << elements);
  CHECK(elements > 50000000);
}

TEST_CASE("cuda variants: a window of known steps, with looks, gives golden's bits") {
  const auto backend = test::try_variant("resident", true);
  if (backend == nullptr) return;
  constexpr std::array kNames = {"golden", "triton-sm90", "triton-sm90-tiled-norm"};
  std::array<std::uint64_t, kNames.size()> elements{};
  for (unsigned n = 0; n < 40; ++n) {
    Case start(recipe_of(kDims[n % std::size(kDims)], n), n, n % 4 == 3 ? 9 : 3);
    for (std::size_t c = 0; c < kNames.size(); ++c) {
      if (cuda::variant("resident").refuses(contract_preset(kNames[c]), start.stream.model()) != "") continue;
      elements[c] += compare_window(*backend, start, contract_set(kNames[c]), n % 3 == 0 ? 1 + static_cast<int>(n) : 9);
    }
  }
  for (std::size_t c = 0; c < kNames.size(); ++c) {
    MESSAGE(std::string(kNames[c]) << ": elements compared " << elements[c]);
    CHECK(elements[c] > 1000000);
  }
}

TEST_CASE("cuda variants: a window of real shapes") {
  const auto backend = test::try_variant("resident", true);
  if (backend == nullptr) return;
  std::uint64_t elements = 0;
  for (unsigned n : {0u, 1u, 2u, 3u}) {
    Case wide(recipe_of({16, 32, 128, 128, 4}, n), n, 10), narrow(recipe_of({4, 8, 128, 128, 4}, n), n, 1);
    for (const char* name : {"golden", "triton-sm90"}) {
      elements += compare_window(*backend, wide, contract_set(name), 6);
      elements += compare_window(*backend, narrow, contract_set(name), 24);
    }
  }
  MESSAGE("elements compared " << elements);
  CHECK(elements > 300000000);
}

TEST_CASE("cuda variants: a window with little memory goes in slices, with golden's bits") {
  if (test::try_variant("resident", true) == nullptr) return;
  std::uint64_t elements = 0;
  for (const std::size_t kilobytes : {1u, 100u, 300u, 1000u, 3000u}) {  // a step takes about 100, one with looks more
    CAPTURE(kilobytes);
    const auto backend = cuda::make_limited({}, kilobytes << 10);
    for (unsigned n : {0u, 1u, 4u, 8u}) {
      Case start(recipe_of(kDims[n], n), n, 4);
      elements += compare_window(*backend, start, contract_set("triton-sm90"), 11);
    }
  }
  MESSAGE("elements compared " << elements);
  CHECK(elements > 50000000);
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
  model = good.model, model.K = 64, model.conv_state_dtype = DType::f32;
  CHECK(fused.refuses(golden, model) == "a conv state of f32 with K 64; it has bf16 there");
  model = good.model, model.K = 64;
  CHECK(cuda::variant("streamed").refuses(golden, model) == "K 64; it has 128");
  model = good.model, model.act_dtype = DType::f32;
  CHECK(fused.refuses(golden, model) == "activations of f32; it has bf16");
  CHECK(fused.refuses(contract_preset("triton-sm90-nofma"), good.model) ==
        "contract 'triton-sm90-nofma'; it has golden, triton-sm90 and triton-sm90-mixed");
  CHECK_THROWS_WITH_AS(cuda::variant("quick"),
                       "cuda: variant: expected plain, fused, streamed, resident; found 'quick'", Error);
}
