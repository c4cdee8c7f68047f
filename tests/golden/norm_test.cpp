// The norm as an operator: the decode step's bits for any contract; its offset; any width; one root with the plain norm; and what
// it refuses.
#include <doctest/doctest.h>

#include <gdnsim/backend.hpp>
#include <gdnsim/error.hpp>
#include <gdnsim/norm.hpp>

#include <cmath>
#include <cstring>
#include <string>

#include "gdnsim/arith.hpp"
#include "support/one_layer.hpp"

using namespace gdnsim;
using namespace gdnsim::second;

namespace {

NormOutputs run(Backend& backend, const NormSpec& spec, const Contract& contract, std::int64_t rows, const Bytes& x,
                const Bytes& z, const Bytes& weight) {
  NormOutputs outputs;
  backend.norm({spec, contract, rows, x, z, weight}, outputs);
  return outputs;
}

NormOutputs run_golden(const NormSpec& spec, std::int64_t rows, const Bytes& x, const Bytes& z, const Bytes& weight) {
  return run(*make_golden({}), spec, contract_preset("golden"), rows, x, z, weight);
}

second::Recipe recipe_of(DType act, int V, NormGate gate) {
  second::Recipe recipe;
  recipe.name = "norm";
  Model& m = recipe.model;
  m.H = 1, m.HV = 3, m.K = 32, m.V = V, m.W = 4;
  m.scale = 0.176776695f;
  m.num_blocks = 10;
  m.norm_eps = 1e-6f;
  m.norm_gate = gate;
  m.act_dtype = act;
  m.conv_state_dtype = act == DType::f16 ? DType::f32 : act;
  recipe.hostile_in = 500;
  return recipe;
}

/// Steps of one backend, whose norms the operator must give again. Returns how many elements were compared.
std::size_t compare_steps(Backend& backend, const second::Recipe& recipe, const Contract& contract,
                          std::uint64_t seed) {
  OneLayer stream(recipe, seed, 5);
  const Model& m = stream.model();
  const auto pool = backend.make_pool(m, {0});
  backend.prepare(stream, {0});
  std::size_t compared = 0;
  for (std::int64_t step = 0; step < 2; ++step) {
    const StepPlan plan = stream.plan(step);
    StepInputs inputs;
    StepOutputs outputs;
    outputs.want = {Tap::core_out, Tap::rstd, Tap::norm_out};
    stream.inputs(step, 0, inputs);
    backend.step({0, plan, inputs, contract}, *pool, outputs);
    const NormSpec spec{m.V, m.act_dtype, true, m.norm_gate, *m.norm_eps, 0};
    const NormOutputs alone = run(backend, spec, contract, plan.rows() * m.HV, outputs[Tap::core_out], inputs.z,
                                  stream.params(0).norm_weight);
    CHECK(first_difference(alone.out, outputs[Tap::norm_out], size_of(m.act_dtype)) == "");
    REQUIRE(alone.rstd.size() * 4 == outputs[Tap::rstd].size());
    CHECK(std::memcmp(alone.rstd.data(), outputs[Tap::rstd].data(), alone.rstd.size() * 4) == 0);
    compared += alone.out.size() / size_of(m.act_dtype);
  }
  return compared;
}

Bytes words_of(DType type, std::initializer_list<float> values) {
  Bytes words(values.size() * size_of(type));
  std::size_t i = 0;
  for (const float x : values) {
    const std::uint32_t word = type == DType::f32    ? std::bit_cast<std::uint32_t>(x)
                               : type == DType::bf16 ? bf16_from_f32(x)
                                                     : f16_from_f32(x);
    std::memcpy(words.data() + i++ * size_of(type), &word, size_of(type));
  }
  return words;
}

float value(DType type, const Bytes& words, std::size_t i) {
  std::uint32_t word = 0;
  std::memcpy(&word, words.data() + i * size_of(type), size_of(type));
  return type == DType::f32    ? std::bit_cast<float>(word)
         : type == DType::bf16 ? f32_from_bf16(static_cast<std::uint16_t>(word))
                               : f32_from_f16(static_cast<std::uint16_t>(word));
}

std::string reason(const NormSpec& spec, const Contract& contract, std::size_t x, std::size_t z, std::size_t weight) {
  try {
    run(*make_golden({}), spec, contract, 1, Bytes(x), Bytes(z), Bytes(weight));
  } catch (const Error& problem) {
    return problem.what();
  }
  return "";
}

}  // namespace

TEST_CASE("norm: alone it has the bits of the step, under every preset and drawn contracts, at every level") {
  Random random(5);
  std::size_t compared = 0;
  for (const char* level : {"plain", ""}) {
    const auto backend = make_golden({.threads = 1, .cpu_level = level});
    for (const Contract& preset : contract_presets())
      compared += compare_steps(*backend, recipe_of(DType::bf16, 128, NormGate::silu), preset, 1);
    for (int i = 0; i < 30; ++i) {
      Contract contract = drawn_contract(random);
      if (contract.norm_dot.lane == Lane::bytes16) contract.norm_dot.lane = Lane::two;
      const DType act = i % 3 == 0 ? DType::f32 : i % 3 == 1 ? DType::f16 : DType::bf16;
      compared +=
          compare_steps(*backend, recipe_of(act, i % 2 == 0 ? 33 : 64, i % 4 < 2 ? NormGate::silu : NormGate::sigmoid),
                        contract, static_cast<std::uint64_t>(i));
    }
  }
  CHECK(compared > 80000);
}

TEST_CASE("norm: an offset of 0 leaves -0, any other is added in f32") {
  for (DType act : {DType::f32, DType::bf16, DType::f16}) {
    const Bytes x = words_of(act, {1, 1, -1, 2}), z = words_of(act, {1, 1, 1, 1});
    for (bool gated : {true, false}) {
      NormSpec spec{4, act, gated};
      const Bytes weight = words_of(act, {-0.0f, 0.0f, -0.0f, 0.0078125f});
      const NormOutputs zero = run_golden(spec, 1, x, gated ? z : Bytes(), weight);
      CHECK((value(act, zero.out, 0) == 0 && std::signbit(value(act, zero.out, 0))));
      CHECK(!std::signbit(value(act, zero.out, 1)));
      CHECK(!std::signbit(value(act, zero.out, 2)));
      spec.weight_offset = 1;
      const NormOutputs one = run_golden(spec, 1, x, gated ? z : Bytes(), weight);
      CHECK(value(act, one.out, 0) > 0);
      CHECK(one.rstd == zero.rstd);
      // 1 + 2^-7 is no bf16 number when a larger one is added first: the sum is f32's, rounded once at the end.
      const NormOutputs weighted = run_golden({4, act, gated}, 1, x, gated ? z : Bytes(), words_of(act, {1, 1, 1, 1}));
      CHECK(value(act, one.out, 3) == doctest::Approx(1.0078125 * value(act, weighted.out, 3)).epsilon(0.01));
      CHECK(value(act, one.out, 0) == value(act, weighted.out, 0));
    }
  }
}

TEST_CASE("norm: the offset is added before anything is rounded") {
  // 1 + 2^-9 needs ten digits: as bf16 it would be 1, and 3 * 1 is not 3 * (1 + 2^-9) = 3.005859375 in f32.
  const NormSpec spec{2, DType::f32, false, NormGate::silu, 0, 1};
  const Bytes x = words_of(DType::f32, {3, 3});
  const NormOutputs got = run_golden(spec, 1, x, {}, words_of(DType::f32, {0x1p-9f, 0}));
  CHECK(got.rstd[0] == 1.0f / 3.0f);
  CHECK(value(DType::f32, got.out, 0) == (3.0f * (1.0f / 3.0f)) * (1 + 0x1p-9f));
}

TEST_CASE("norm: any width, and one root whether gated or not") {
  Random random(9);
  for (int width : {1, 2, 31, 33, 100, 257, 2048, 8192, 16384})
    for (DType act : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(width);
      constexpr std::int64_t rows = 3;
      const Bytes x = random_values(random, rows * width, act, 0, 1, 0),
                  z = random_values(random, rows * width, act, 0, 1, 0),
                  weight = random_values(random, width, act, 0, 0.1f, 0);
      const NormOutputs gated = run_golden({width, act, true, NormGate::silu, 1e-6f, 1}, rows, x, z, weight),
                        plain = run_golden({width, act, false, NormGate::silu, 1e-6f, 1}, rows, x, {}, weight);
      CHECK(gated.rstd == plain.rstd);
      for (std::int64_t row = 0; row < rows; ++row) {
        double sum = 0;
        for (int i = 0; i < width; ++i) sum += std::pow(value(act, x, static_cast<std::size_t>(row * width + i)), 2);
        const double root = 1 / std::sqrt(sum / width + 1e-6);
        CHECK(plain.rstd[static_cast<std::size_t>(row)] == doctest::Approx(root).epsilon(1e-6));
        const auto last = static_cast<std::size_t>(row * width + width - 1);
        const double want = value(act, x, last) * root * (1 + value(act, weight, static_cast<std::size_t>(width - 1)));
        CHECK(value(act, plain.out, last) == doctest::Approx(want).epsilon(0.005));
        const double gate = value(act, z, last) / (1 + std::exp(-value(act, z, last)));
        CHECK(value(act, gated.out, last) == doctest::Approx(want * gate).epsilon(0.005));
      }
    }
}

TEST_CASE("norm: neither threads nor rows change a bit, but where the contract says so") {
  Random random(3);
  const NormSpec spec{128, DType::bf16};
  const Bytes x = random_values(random, 300 * 128, spec.act, 0, 1, 100),
              z = random_values(random, 300 * 128, spec.act, 0, 1, 100),
              weight = random_values(random, 128, spec.act, 1, 0.1f, 0);
  const auto differing = [&](const char* preset) {
    const NormOutputs all = run(*make_golden({.threads = 3}), spec, contract_preset(preset), 300, x, z, weight);
    int count = 0;
    for (std::size_t row = 0; row < 300; ++row) {
      const auto part = [&](const Bytes& from) {
        const auto at = from.begin() + static_cast<std::ptrdiff_t>(row * 256);
        return Bytes(at, at + 256);
      };
      const NormOutputs one =
          run(*make_golden({.threads = 1}), spec, contract_preset(preset), 1, part(x), part(z), weight);
      count += std::memcmp(&one.rstd[0], &all.rstd[row], 4) != 0 || one.out != part(all.out);
    }
    return count;
  };
  CHECK(differing("golden") == 0);
  CHECK(differing("triton-sm90") == 0);
  CHECK(differing("triton-sm90-tiled-norm") > 20);
}

TEST_CASE("norm: what is not defined is refused by name") {
  const Contract &golden = contract_preset("golden"), &triton = contract_preset("triton-sm90");
  const auto has = [](const std::string& text, const std::string& words) {
    CAPTURE(text);
    CHECK(text.find(words) != std::string::npos);
  };
  has(reason({0, DType::bf16}, golden, 0, 0, 0), "width: expected 1 to 16384, found 0");
  has(reason({16385, DType::bf16}, golden, 32770, 32770, 32770), "found 16385");
  has(reason({8, DType::bf16}, golden, 16, 0, 16), "z: expected 16 bytes, found 0");
  has(reason({8, DType::bf16, false}, golden, 16, 16, 16), "z: expected 0 bytes, found 16");
  has(reason({8, DType::f32}, golden, 32, 32, 16), "weight: expected 32 bytes, found 16");
  has(reason({8, DType::f32}, golden, 30, 32, 32), "x: expected 32 bytes, found 30");
  has(reason({100, DType::bf16}, triton, 200, 200, 200), "'triton-sm90' is defined for K and V of 32, 64, 128 or 256");
  has(reason({128, DType::f16}, triton, 256, 256, 256), "bf16 activations");
  has(reason({128, DType::bf16, false}, triton, 256, 0, 256), "not for the decoder's");
  Contract state_lanes = golden;
  state_lanes.norm_dot.lane = Lane::bytes16;
  has(reason({128, DType::bf16}, state_lanes, 256, 256, 256), "a norm alone has no state");
  CHECK(reason({128, DType::bf16}, triton, 256, 256, 256) == "");
}
