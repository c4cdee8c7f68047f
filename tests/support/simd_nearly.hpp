// Sigmoids that leave as bf16, from the vector kernels and from the scalar functions: for the normal and the long test.
#pragma once

#include <cmath>
#include <vector>

#include "gdnsim/arith.hpp"
#include "golden/levels.hpp"
#include "golden/scalar.hpp"
#include "support/simd_functions.hpp"

namespace gdnsim::test {

using HalfWords = std::vector<std::uint16_t>;

inline std::uint64_t differing(const HalfWords& a, const HalfWords& b) {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < b.size(); ++i) count += a[i] != b[i] ? 1u : 0u;
  return count;
}

inline HalfWords silu_words(const Contract& contract, const std::vector<float>& x) {
  const golden::Scalar scalar(contract);
  HalfWords words;
  for (float value : x) words.push_back(bf16_from_f32(scalar.silu(value + 0.0f)));
  return words;
}

/// x goes in as the conv's bias, beside weights of zero.
inline HalfWords conv_silu_words(const golden::Kernels& kernels, const Contract& contract,
                                 const std::vector<float>& x) {
  Model model;
  model.W = 2, model.act_dtype = DType::bf16, model.conv_state_dtype = DType::bf16;
  const golden::Rules rules{&model, &contract, &kSlow, {}, {}, {}, 0};
  HalfWords inputs(x.size()), window(x.size()), words(x.size());
  const std::vector<float> weight(2 * x.size());
  const golden::ConvStep step{&rules, reinterpret_cast<const std::byte*>(inputs.data()), nullptr,
                              reinterpret_cast<std::byte*>(words.data()), nullptr};
  const std::int64_t dim = static_cast<std::int64_t>(x.size());
  kernels.conv({dim, 0, dim, weight.data(), x.data(), reinterpret_cast<std::byte*>(window.data()), &step, 1});
  return words;
}

struct Gated {
  HalfWords got, want;
};

/// Every word of z once, beside an o and a weight that change from element to element.
inline Gated gate_words(const golden::Kernels& kernels, const Contract& contract, NormGate gate) {
  constexpr int kHeads = 4, V = 128, kElements = kHeads * V;  // no level has fewer lanes than heads
  Model model;
  model.V = V, model.act_dtype = DType::bf16, model.norm_gate = gate;
  const golden::Rules rules{&model, &contract, &kSlow, {}, {}, resolve(contract.norm_dot, V, {}), 1e-6f};
  std::vector<float> weight(V), scratch(static_cast<std::size_t>(kernels.scratch(rules)) + 16), rstd(kHeads);
  for (int i = 0; i < V; ++i) weight[static_cast<std::size_t>(i)] = 0.5f + static_cast<float>(i * i % 101) * 0.0137f;
  float* aligned = scratch.data();
  while (reinterpret_cast<std::uintptr_t>(aligned) % 64 != 0) ++aligned;
  const golden::Scalar scalar(contract);
  Gated gated;
  for (std::uint32_t first = 0; first < 65536; first += kElements) {
    HalfWords o(kElements), z(kElements), out(kElements);
    for (std::uint32_t i = 0; i < kElements; ++i) {
      o[i] = static_cast<std::uint16_t>(0x3C00 + first % 193 + i * 7 % 251 + (i % 3 == 0 ? 0x8000 : 0));
      z[i] = static_cast<std::uint16_t>(first + i);
    }
    kernels.norm({&rules, kHeads, reinterpret_cast<const std::byte*>(o.data()),
                  reinterpret_cast<const std::byte*>(z.data()), weight.data(), rstd.data(),
                  reinterpret_cast<std::byte*>(out.data()), aligned});
    for (std::size_t i = 0; i < kElements; ++i) {
      const float x = f32_from_bf16(z[i]), sigmoid = scalar.sigmoid(x);
      const auto rounded = [&](float y) { return contract.norm == Norm::hf ? f32_from_bf16(bf16_from_f32(y)) : y; };
      const float y = rounded(rounded(f32_from_bf16(o[i]) * rstd[i / V]) * weight[i % V]);
      gated.want.push_back(bf16_from_f32(y * (gate == NormGate::silu ? x * sigmoid : sigmoid)));
    }
    gated.got.insert(gated.got.end(), out.begin(), out.end());
  }
  return gated;
}

}  // namespace gdnsim::test
