// Sigmoids that leave as bf16 (simd_nearly.hpp): the words are those of the contract's own functions, in the conv and in the gated
// norm, at every level. golden_simd_long takes every float.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "support/simd_nearly.hpp"
#include "support/sweep.hpp"

using namespace gdnsim;
using golden::Variant;

namespace {

/// Every exp and division that a contract can have.
std::vector<Contract> contracts() {
  std::vector<Contract> all;
  for (Exp exp : {Exp::exact, Exp::ex2})
    for (Div div : {Div::ieee, Div::full, Div::reciprocal}) {
      Contract& contract = all.emplace_back();
      contract.exp = exp, contract.div = div;
      contract.negate = div == Div::full ? Negate::subtract : Negate::sign;
      contract.norm = all.size() % 2 == 0 ? Norm::hf : Norm::vllm;
      contract.name = "contract " + std::to_string(all.size());
    }
  return all;
}

std::vector<const Variant*> vector_variants() {
  std::vector<const Variant*> result;
  for (const Variant& variant : golden::variants())
    if (variant.kernels != nullptr) result.push_back(&variant);
  return result;
}

/// Floats around each x between `low` and `high` whose silu lies in the middle between two words; silu rises or falls there.
void add_middles(float low, float high, std::vector<float>& x) {
  const auto silu = [](double at) { return at / (1 + std::exp(-at)); };
  const double least = std::min(std::fabs(silu(low)), std::fabs(silu(high)));
  const double most = std::max(std::fabs(silu(low)), std::fabs(silu(high)));
  const bool rises = std::fabs(silu(high)) == most;
  for (std::uint32_t word = bits_of(static_cast<float>(least)) >> 16; word < bits_of(static_cast<float>(most)) >> 16;
       ++word) {
    double from = low, to = high;
    for (int i = 0; i < 60; ++i) {
      const double half = (from + to) / 2;
      ((std::fabs(silu(half)) < float_of(word << 16 | 0x8000)) == rises ? from : to) = half;
    }
    for (int ulp = -40; ulp <= 40; ++ulp)
      x.push_back(float_of(bits_of(static_cast<float>(from)) + static_cast<std::uint32_t>(ulp)));
  }
}

std::vector<float> floats() {
  std::vector<float> x;
  for (std::uint32_t input : second::boundary_inputs(4)) x.push_back(float_of(input));
  for (std::uint64_t at = 0; at < std::uint64_t{1} << 32; at += 29959)
    x.push_back(float_of(static_cast<std::uint32_t>(at)));
  add_middles(0x1p-10f, 17, x);
  add_middles(-17, -1.3f, x);
  return x;
}

}  // namespace

TEST_CASE("simd nearly: silu in the conv, a stride of all floats and those that make a middle") {
  const std::vector<float> x = floats();
  CHECK(x.size() > 500000);
  for (const Contract& contract : contracts()) {
    CAPTURE(contract.name);
    const std::vector<std::uint16_t> want = test::silu_words(contract, x);
    for (const Variant* variant : vector_variants()) {
      CAPTURE(std::string(variant->name));
      CHECK(test::differing(test::conv_silu_words(*variant->kernels, contract, x), want) == 0);
    }
  }
}

TEST_CASE("simd nearly: it is the contract that decides where the shorter way does not") {
  const std::vector<float> x = floats();
  const std::vector<Contract> all = contracts();
  for (const Variant* variant : vector_variants()) {
    const std::vector<std::uint16_t> exact = test::conv_silu_words(*variant->kernels, all[0], x);
    CHECK(test::differing(test::conv_silu_words(*variant->kernels, all[3], x), exact) > 300);
  }
}

TEST_CASE("simd nearly: the gate of the norm, every word of z") {
  for (const Contract& contract : contracts())
    for (NormGate gate : {NormGate::silu, NormGate::sigmoid})
      for (const Variant* variant : vector_variants()) {
        CAPTURE(contract.name);
        CAPTURE(std::string(variant->name));
        const test::Gated gated = test::gate_words(*variant->kernels, contract, gate);
        CHECK(gated.got.size() == 65536);
        CHECK(test::differing(gated.got, gated.want) == 0);
      }
}
