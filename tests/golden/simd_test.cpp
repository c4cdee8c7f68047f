// Every vector variant of the golden step against the plain one, bit for bit: functions over a stride of all floats; every
// contract, shape, type and hostile value, step by step and in windows with blocks looked at on the way.
#include <doctest/doctest.h>

#include <gdnsim/backend.hpp>
#include <gdnsim/contract.hpp>
#include <gdnsim/error.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>

#include "golden/levels.hpp"
#include "support/one_layer.hpp"
#include "support/simd_functions.hpp"
#include "support/sweep.hpp"

using namespace gdnsim;
using namespace gdnsim::second;
using golden::Function;
using golden::Variant;
using test::kScalarFunctions;
using test::kSlow;
using test::ScalarFunction;

namespace {

std::vector<const Variant*> vector_variants() {
  std::vector<const Variant*> result;
  for (const Variant& variant : golden::variants())
    if (variant.kernels != nullptr) result.push_back(&variant);
  return result;
}

// ---- functions ----

/// How many results of `x` differ from the scalar function's.
std::uint64_t wrong_results(const Variant& variant, const ScalarFunction& scalar, const std::vector<float>& x,
                            const golden::Slow& slow = kSlow, bool loud = true) {
  std::vector<float> y(x.size());
  variant.kernels->apply(scalar.function, slow, x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (gdnsim::bits_of(y[i]) == gdnsim::bits_of(scalar.scalar(x[i]))) continue;
    if (++wrong <= 3 && loud)
      std::fprintf(stderr, "%s %s(%08X) got %08X want %08X\n", std::string(variant.name).c_str(), scalar.name,
                   gdnsim::bits_of(x[i]), gdnsim::bits_of(y[i]), gdnsim::bits_of(scalar.scalar(x[i])));
  }
  return wrong;
}

std::vector<float> function_inputs() {
  std::vector<float> inputs;
  for (std::uint32_t input : boundary_inputs(4)) inputs.push_back(gdnsim::float_of(input));
  for (std::uint64_t at = 0; at < std::uint64_t{1} << 32; at += 9973)
    inputs.push_back(gdnsim::float_of(static_cast<std::uint32_t>(at)));
  for (int i = -2000; i <= 2000; ++i) inputs.push_back(static_cast<float>(i) * 0.0625f);
  return inputs;
}

// ---- steps ----

struct Shape {
  int H, HV, K, V, W;
};
constexpr Shape kShapes[] = {{1, 1, 8, 8, 2},     {2, 4, 64, 64, 4}, {1, 3, 33, 40, 3},  {2, 4, 128, 128, 4},
                             {3, 6, 32, 65, 5},   {2, 2, 96, 31, 4}, {1, 2, 256, 32, 4}, {2, 8, 128, 64, 4},
                             {17, 34, 32, 16, 4}, {1, 1, 300, 3, 9}, {1, 2, 64, 256, 2}, {2, 4, 7, 5, 3}};
constexpr Shape kTritonShapes[] = {
    {2, 4, 64, 64, 4}, {1, 2, 128, 128, 4}, {2, 4, 128, 128, 4}, {1, 3, 256, 32, 3}, {2, 4, 32, 256, 2}};
constexpr Shape kTiledShapes[] = {{2, 4, 64, 128, 4}, {1, 2, 128, 128, 4}};
constexpr std::uint32_t kHostile[] = {0, 700, 60};

Recipe recipe_of(const Shape& shape, unsigned n, bool any_act, std::uint32_t hostile_in) {
  Recipe recipe;
  Model& m = recipe.model;
  m.H = shape.H, m.HV = shape.HV, m.K = shape.K, m.V = shape.V, m.W = shape.W;
  m.scale = shape.K == 128 ? 0.088388346f : 0.3f;
  m.num_blocks = 7;
  m.norm_eps = 1e-6f;
  m.state_dtype = static_cast<DType>(n % 3);
  m.conv_state_dtype = static_cast<DType>((n + n / 3) % 3);
  if (any_act) m.act_dtype = static_cast<DType>(n / 2 % 3);
  m.activation = n / 4 % 3 != 0 ? Activation::silu : Activation::none;
  m.sentinel = static_cast<Sentinel>(n % 3);
  m.norm_gate = n % 5 < 3 ? NormGate::silu : NormGate::sigmoid;
  m.use_qk_l2norm = n % 7 != 3;
  recipe.bias = n / 3 % 2 == 1;
  recipe.norm = n % 8 != 5;
  recipe.hostile_in = hostile_in;
  recipe.name = "recipe " + std::to_string(n);
  return recipe;
}

/// Types that the triton contracts allow.
Recipe triton_recipe(const Shape& shape, unsigned n, std::uint32_t hostile_in) {
  Recipe recipe = recipe_of(shape, n, false, hostile_in);
  recipe.model.state_dtype = n % 2 == 0 ? DType::f32 : DType::bf16;
  recipe.model.conv_state_dtype = n / 2 % 2 == 0 ? DType::bf16 : DType::f32;
  return recipe;
}

TapSet taps_of(unsigned n) {
  TapSet taps;
  for (std::size_t t = 0; t < kTaps; ++t)
    if (n % 3 != 1 || t % (2 + n / 3 % 3) == 0) taps.add(static_cast<Tap>(t));
  return taps;
}

/// What one run is made of; the same for every variant.
struct Work {
  Work(const Recipe& recipe, std::uint64_t seed, int rows, int steps, const ContractSet& contracts_)
      : stream(recipe, seed, rows), contracts(contracts_), taps(taps_of(static_cast<unsigned>(seed))) {
    Random random(seed);
    for (std::int64_t t = 0; t < steps; ++t) {
      plans.push_back(stream.plan(t));
      if (t % 3 == 1) plans.back().path = Path::mixed;
      if (t % 3 == 2) plans.back().launch_tokens = rows + random.below(300);  // a prefill's tokens among them
      stream.inputs(t, 0, inputs.emplace_back());
      std::vector<Look>& look = looks.emplace_back();
      for (std::int32_t block = 0; block < stream.model().num_blocks; ++block)
        if (random.below(4) == 0) look.push_back({block, random.below(2) == 0});
    }
  }
  OneLayer stream;
  ContractSet contracts;
  TapSet taps;
  std::vector<StepPlan> plans;
  std::vector<StepInputs> inputs;
  std::vector<std::vector<Look>> looks;
};

/// Everything that came out.
struct Result {
  std::vector<WindowStep> steps;
  std::vector<Block> pool;
};

/// In windows of that many steps; 0: step by step through `step`, without looks.
Result run(Work& work, const std::string& level, int window, int threads) {
  const auto backend = make_golden({.threads = threads, .cpu_level = level});
  const Model& model = work.stream.model();
  const auto pool = backend->make_pool(model, {0});
  backend->prepare(work.stream, {0});
  for (std::int32_t b = 0; b < model.num_blocks; ++b) {
    const Block block = work.stream.random_block(static_cast<std::uint64_t>(b));
    pool->write(0, b, block.recurrent, block.conv);
  }
  Result result;
  const std::size_t steps = work.plans.size();
  result.steps.resize(steps);
  for (WindowStep& step : result.steps) {
    step.outputs.want = work.taps;
    for (Bytes& tap : step.outputs.taps) tap.assign(level == "plain" ? 0 : 777, std::byte{0xA5});
    step.kept.resize(level == "plain" ? 0 : 3);
  }
  for (std::size_t at = 0; at < steps; at += static_cast<std::size_t>(std::max(window, 1))) {
    const std::size_t count = std::min(steps - at, static_cast<std::size_t>(std::max(window, 1)));
    if (window == 0)
      backend->step({0, work.plans[at], work.inputs[at], work.contracts.of(work.plans[at].path)}, *pool,
                    result.steps[at].outputs);
    else
      backend->steps({0, std::span(work.plans).subspan(at, count), std::span(work.inputs).subspan(at, count),
                      work.contracts, std::span(work.looks).subspan(at, count)},
                     *pool, std::span(result.steps).subspan(at, count));
  }
  for (std::int32_t b = 0; b < model.num_blocks; ++b) {
    Block& block = result.pool.emplace_back(Block{Bytes(model.state_bytes()), Bytes(model.conv_bytes())});
    pool->read(0, b, block.recurrent, block.conv);
  }
  return result;
}

struct Compared {
  std::uint64_t elements = 0, kept = 0, different = 0;
};

/// Quiet: counts differences, for runs that are meant to differ.
void compare_bytes(const Bytes& got, const Bytes& want, DType type, bool quiet, Compared& total) {
  total.elements += want.size() / size_of(type);
  total.different += got == want ? 0u : 1u;
  if (!quiet && got != want) CHECK(first_difference(got, want, size_of(type)) == "");
}

void compare_kept(const KeptBlock& got, const KeptBlock& want, const Model& model, bool quiet, Compared& total) {
  const bool same = got.block == want.block && got.digest.heads == want.digest.heads &&
                    got.digest.conv == want.digest.conv && got.digest.block == want.digest.block;
  total.different += same ? 0u : 1u;
  if (!quiet) CHECK(same);
  compare_bytes(got.recurrent, want.recurrent, model.state_dtype, quiet, total);
  compare_bytes(got.conv, want.conv, model.conv_state_dtype, quiet, total);
  ++total.kept;
}

void compare(const Result& got, const Result& want, const Work& work, bool looks, bool quiet, Compared& total) {
  const Model& model = work.stream.model();
  for (std::size_t step = 0; step < want.steps.size(); ++step) {
    CAPTURE(step);
    for (std::size_t t = 0; t < kTaps; ++t) {
      const Tap tap = static_cast<Tap>(t);
      CAPTURE(name_of(tap));
      if (!work.taps.has(tap) || tap == Tap::state || tap == Tap::conv_state) continue;
      compare_bytes(got.steps[step].outputs[tap], want.steps[step].outputs[tap], shape_of(tap, model).type, quiet,
                    total);
    }
    if (!looks) continue;
    REQUIRE(got.steps[step].kept.size() == want.steps[step].kept.size());
    for (std::size_t i = 0; i < want.steps[step].kept.size(); ++i)
      compare_kept(got.steps[step].kept[i], want.steps[step].kept[i], model, quiet, total);
  }
  for (std::size_t b = 0; b < want.pool.size(); ++b) {
    CAPTURE(b);
    compare_bytes(got.pool[b].recurrent, want.pool[b].recurrent, model.state_dtype, quiet, total);
    compare_bytes(got.pool[b].conv, want.pool[b].conv, model.conv_state_dtype, quiet, total);
  }
}

/// Every variant against plain on one work, step by step (0) or in windows.
void check(Work& work, std::initializer_list<int> windows, Compared& total) {
  CAPTURE(work.stream.source());
  CAPTURE(to_text(work.contracts));
  const Result want = run(work, "plain", 1, 1);
  for (const Variant* variant : vector_variants())
    for (int window : windows) {
      CAPTURE(std::string(variant->name));
      CAPTURE(window);
      compare(run(work, std::string(variant->name), window, window == 3 ? 2 : 1), want, work, window > 0, false, total);
    }
}

}  // namespace

#if defined(__x86_64__) && defined(__linux__)
TEST_CASE("simd: the levels are those that the system says this CPU has") {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && line.rfind("flags", 0) != 0) continue;
  REQUIRE(line.rfind("flags", 0) == 0);
  line += ' ';
  const auto has = [&line](std::initializer_list<const char*> flags) {
    return std::all_of(flags.begin(), flags.end(),
                       [&](const char* flag) { return line.find(" " + std::string(flag) + " ") != std::string::npos; });
  };
  CHECK(golden::variants()[1].available);
  CHECK(golden::variants()[2].available == has({"avx2", "fma"}));
  CHECK(golden::variants()[3].available == has({"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"}));
}
#endif

TEST_CASE("simd: the table of variants") {
  CHECK(golden::variants().size() == 4);
  CHECK(golden::variants()[0].name == "plain");
  CHECK(golden::choose_variant("").level == golden::best_level());
  for (const Variant& variant : golden::variants()) {
    const std::string name(variant.name);
    CHECK(golden::level_from(name) == variant.level);
    if (variant.available) {
      CHECK(make_golden({.threads = 3, .cpu_level = name})->description() == "CPU, 3 threads, " + name);
    } else {
      CHECK_THROWS_WITH_AS(make_golden({.cpu_level = name}), doctest::Contains(name.c_str()), Error);
      MESSAGE("this CPU, or this build, has no " << name);
    }
  }
  CHECK_THROWS_WITH_AS(make_golden({.cpu_level = "sse9"}),
                       "cpu level: expected one of plain, sse2, avx2, avx512, found 'sse9'", Error);
#if defined(__x86_64__)
  CHECK(!vector_variants().empty());
#endif
}

TEST_CASE("simd: functions, every exponent's ends and a stride of all floats") {
  const std::vector<float> inputs = function_inputs();
  CHECK(inputs.size() > 440000);
  for (const Variant* variant : vector_variants())
    for (const ScalarFunction& scalar : kScalarFunctions) {
      CAPTURE(std::string(variant->name));
      CAPTURE(std::string(scalar.name));
      CHECK(wrong_results(*variant, scalar, inputs) == 0);
    }
}

TEST_CASE("simd: lanes that double precision leaves open go to the scalar function") {
  static std::uint64_t asked;
  const auto counted = [](float x) { return ++asked, exp_cr(x); };
  std::vector<float> inputs;
  for (std::uint32_t at = 0x3F000000; at < 0x3F000000 + (1u << 21); ++at) inputs.push_back(gdnsim::float_of(at));
  for (const Variant* variant : vector_variants()) {
    asked = 0;
    CHECK(wrong_results(*variant, kScalarFunctions[0], inputs, {counted, log_cr, log1p_cr}) == 0);
    CHECK(asked < 100);
    CHECK(wrong_results(*variant, {Function::ex2, "ex2 for exp", exp_cr}, {0.7f, 1.3f, 2.2f, 3.1f}, kSlow, false) > 0);
  }
}

TEST_CASE("simd: golden contract, any shape and type, step by step and in windows") {
  Compared total;
  for (unsigned n = 0; n < 40; ++n) {
    Work work(recipe_of(kShapes[n % std::size(kShapes)], n, true, kHostile[n / 2 % 3]), n, 3, 4,
              contract_set("golden"));
    check(work, {0, 3}, total);
  }
  MESSAGE("elements compared: " << total.elements << ", blocks looked at: " << total.kept);
  CHECK(total.elements > 1000000);
}

TEST_CASE("simd: every preset, the shapes it is defined for") {
  Compared total;
  for (const Contract& preset : contract_presets())
    for (unsigned n = 0; n < 12; ++n) {
      const bool tiled = preset.shapes == Shapes::triton_v128;
      const Shape& shape =
          tiled ? kTiledShapes[n % std::size(kTiledShapes)] : kTritonShapes[n % std::size(kTritonShapes)];
      ContractSet contracts = contract_set(preset.name);
      if (tiled && n % 3 != 0) contracts.decode.multiprocessors = n % 3 == 1 ? 4 : 1;
      Work work(triton_recipe(shape, n, kHostile[n / 4 % 3]), n, 3, 3, contracts);
      const bool defined = undefined_because(preset, work.stream.model()) == "";
      REQUIRE((defined || shape.K == 256));  // a gating kernel's row of 256 f32 takes two warps
      if (defined) check(work, {0, 17}, total);
    }
  MESSAGE("elements compared: " << total.elements);
  CHECK(total.elements > 1000000);
}

TEST_CASE("simd: lanes by rows go by the engine's launch where it is known, in every variant") {
  Contract by_rows = contract_preset("triton-sm90-tiled-norm"), fours = by_rows, eights = by_rows;
  fours.norm_dot.lane = Lane::four, eights.norm_dot.lane = Lane::eight;
  for (const Variant& variant : golden::variants()) {
    if (!variant.available) continue;
    const auto rstd = [&](const Contract& contract, std::int64_t tokens) {
      Work work(triton_recipe(kTiledShapes[1], 0, 0), 4, 3, 1, {contract, contract});
      work.taps.add(Tap::rstd);
      work.plans[0].launch_tokens = tokens;
      return run(work, std::string(variant.name), 1, 1).steps[0].outputs[Tap::rstd];
    };
    CAPTURE(std::string(variant.name));
    CHECK(rstd(by_rows, 0) == rstd(fours, 0));
    CHECK(rstd(by_rows, 132) == rstd(fours, 0));  // 264 rows of two heads: one a block
    CHECK(rstd(by_rows, 133) == rstd(eights, 0));
    CHECK(rstd(fours, 0) != rstd(eights, 0));
  }
}

TEST_CASE("simd: windows of 1, 3 and 17 steps, looks at random") {
  Compared total;
  unsigned n = 0;
  for (const char* name : {"golden", "triton-sm90", "triton-sm90-tiled-norm"})
    for (int rows : {1, 5}) {
      Work work(triton_recipe(kTiledShapes[1], n, kHostile[n % 2]), n, rows, 20, contract_set(name));
      ++n;
      check(work, {1, 3, 17}, total);
    }
  MESSAGE("elements compared: " << total.elements << ", blocks looked at: " << total.kept);
  CHECK(total.kept > 1000);
}

TEST_CASE("simd: every value of every contract field, alone") {
  Compared total;
  unsigned n = 0, ran = 0;
  for (const char* base : {"golden", "triton-sm90-nofma"})
    for (const auto& [field, value] : contract_fields(contract_preset(base))) {
      std::vector<std::string> words = contract_field_values(field);
      if (words.empty()) words = {"1", "3", "8", "33", "128"};
      for (const std::string& word : words) {
        Contract contract = contract_preset(base);
        contract.shapes = Shapes::any;
        set_contract_field(contract, field, word);
        ++n;
        Work work(recipe_of(kShapes[n % 2 == 0 ? 2 : 4], n, true, n % 2 == 0 ? 0 : 300), n, 3, 2, {contract, contract});
        if (undefined_because(contract, work.stream.model()) != "") continue;  // a fused exchange with wide lanes
        check(work, {2}, total);
        ++ran;
      }
    }
  MESSAGE("contracts: " << ran << ", elements compared: " << total.elements);
  CHECK(ran > 150);
}

TEST_CASE("simd: contracts drawn at random") {
  Random random(2025);
  Compared total;
  for (unsigned n = 0; n < 80; ++n) {
    const ContractSet contracts{drawn_contract(random), drawn_contract(random)};
    Shape shape{1 + static_cast<int>(random.below(3)), 0, 1 + static_cast<int>(random.below(140)),
                1 + static_cast<int>(random.below(80)), 2 + static_cast<int>(random.below(4))};
    shape.HV = shape.H * (1 + static_cast<int>(random.below(3)));
    Work work(recipe_of(shape, n, true, kHostile[n % 3]), n, 3, 2, contracts);
    check(work, {2}, total);
  }
  MESSAGE("elements compared: " << total.elements);
}

TEST_CASE("simd: a wrong order, a stray FMA, a swapped head map and a skipped rounding are caught in every variant") {
  const std::pair<const char*, const char*> mutants[] = {{"state_dot.tree", "narrowest"},
                                                         {"state_dot.lane", "2"},
                                                         {"update", "fma"},
                                                         {"qk_dot.tree", "narrowest"},
                                                         {"norm_dot.tree", "narrowest"},
                                                         {"conv_product", "f32"},
                                                         {"head_map", "tiled"},
                                                         {"state_store", "bf16"},
                                                         {"exp", "ex2"},
                                                         {"div", "full"},
                                                         {"sqrt", "approx"},
                                                         {"norm", "hf"},
                                                         {"conv_taps", "newest-first"},
                                                         {"qk_norm", "multiply"},
                                                         {"softplus", "log"},
                                                         {"beta", "bf16"},
                                                         {"params", "bf16"},
                                                         {"decay", "none"},
                                                         {"qk_eps", "mean"},
                                                         {"scale", "before"}};
  for (const auto& mutation : mutants) {
    const std::string field = mutation.first, word = mutation.second;
    CAPTURE(field);
    Contract mutant;
    set_contract_field(mutant, field, word);
    // Sums of products that were rounded to bf16 are nearly always exact: the order of the taps shows with an f32 conv state.
    const Recipe recipe = triton_recipe({2, 4, 128, 128, 4}, field == "conv_taps" ? 6 : 4, 0);
    Work right(recipe, 30, 3, 2, contract_set("golden")), wrong(recipe, 30, 3, 2, {mutant, mutant});
    const Result want = run(right, "plain", 1, 1);
    for (const Variant* variant : vector_variants()) {
      CAPTURE(std::string(variant->name));
      Compared total;
      compare(run(wrong, std::string(variant->name), 2, 1), want, right, true, true, total);
      CHECK(total.different > 0);
    }
  }
}

TEST_CASE("simd: a changed bit anywhere in what comes out is seen") {
  Work work(triton_recipe(kTiledShapes[1], 0, 0), 3, 3, 3, contract_set("golden"));
  const Result want = run(work, "plain", 1, 1);
  const std::string best(golden::name_of(golden::best_level()));
  const auto differs = [&](const auto& change) {
    Result changed = run(work, best, 3, 1);
    change(changed);
    Compared total;
    compare(changed, want, work, true, true, total);
    return total.different;
  };
  CHECK(differs([](Result&) {}) == 0);
  CHECK(differs([](Result& r) { r.pool[3].recurrent.back() ^= std::byte{1}; }) == 1);
  CHECK(differs([](Result& r) { r.pool[0].conv[0] ^= std::byte{1}; }) == 1);
  CHECK(differs([](Result& r) { r.steps[2].outputs[Tap::norm_out].back() ^= std::byte{1}; }) == 1);
  CHECK(differs([](Result& r) {
          for (WindowStep& step : r.steps)
            for (KeptBlock& kept : step.kept) kept.digest.heads[0] ^= 1;
        }) > 0);
}
