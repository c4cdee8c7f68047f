// Every f32 input of the vector functions against the scalar ones, at every level of this CPU: 2^32 per function; and of silu as
// the conv of a preset gives it, in bf16 (`silu_golden`, `silu_triton-sm90`). Long suite.
//
//   golden_simd_long [level [function]]
#include <cstdio>
#include <string>
#include <vector>

#include "gdnsim/contract.hpp"
#include "golden/levels.hpp"
#include "support/simd_nearly.hpp"

namespace {

using namespace gdnsim;

constexpr std::uint64_t kBatch = 1 << 16;

std::vector<float> inputs_from(std::uint64_t first) {
  std::vector<float> x(kBatch);
  for (std::uint64_t i = 0; i < kBatch; ++i) x[i] = float_of(static_cast<std::uint32_t>(first + i));
  return x;
}

/// Compares one batch of consecutive inputs; returns how many differ.
std::uint64_t wrong_in(const golden::Kernels& kernels, const test::ScalarFunction& function, std::uint64_t first) {
  const std::vector<float> x = inputs_from(first);
  std::vector<float> y(kBatch);
  kernels.apply(function.function, test::kSlow, x.data(), y.data(), kBatch);
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < kBatch; ++i) wrong += bits_of(y[i]) != bits_of(function.scalar(x[i])) ? 1u : 0u;
  return wrong;
}
std::uint64_t wrong_in(const golden::Kernels& kernels, const Contract& contract, std::uint64_t first) {
  const std::vector<float> x = inputs_from(first);
  return test::differing(test::conv_silu_words(kernels, contract, x), test::silu_words(contract, x));
}

template <class What>
std::uint64_t wrong_of_all(const golden::Kernels& kernels, const What& what) {
  std::uint64_t wrong = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : wrong)
  for (std::uint64_t batch = 0; batch < (std::uint64_t{1} << 32) / kBatch; ++batch)
    wrong += wrong_in(kernels, what, batch * kBatch);
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string level = argc > 1 ? argv[1] : "", name = argc > 2 ? argv[2] : "";
  std::uint64_t ran = 0, wrong = 0;
  const auto check = [&](const golden::Variant& variant, const std::string& function, const auto& what) {
    if (!name.empty() && name != function) return;
    const std::uint64_t differing = wrong_of_all(*variant.kernels, what);
    std::printf("%s %s: 4294967296 inputs, %llu differ\n", std::string(variant.name).c_str(), function.c_str(),
                static_cast<unsigned long long>(differing));
    std::fflush(stdout);
    ++ran, wrong += differing;
  };
  for (const golden::Variant& variant : golden::variants()) {
    if (variant.kernels == nullptr || (!level.empty() && level != variant.name)) continue;
    for (const test::ScalarFunction& function : test::kScalarFunctions) check(variant, function.name, function);
    for (const char* preset : {"golden", "triton-sm90"})
      check(variant, std::string("silu_") + preset, contract_set(preset).decode);
  }
  if (ran == 0) std::fprintf(stderr, "no such level or function here\n");
  return ran == 0 ? 2 : wrong == 0 ? 0 : 1;
}
