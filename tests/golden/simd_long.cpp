// Every f32 input of the vector functions against the scalar ones, at every level of this CPU: 2^32 per function. Long suite.
//
//   golden_simd_long [level [function]]
#include <cstdio>
#include <string>
#include <vector>

#include "golden/levels.hpp"
#include "support/simd_functions.hpp"

namespace {

using namespace gdnsim;

constexpr std::uint64_t kBatch = 1 << 16;

/// Compares one batch of consecutive inputs; returns how many differ.
std::uint64_t wrong_in(const golden::Kernels& kernels, const test::ScalarFunction& function, std::uint64_t first) {
  std::vector<float> x(kBatch), y(kBatch);
  for (std::uint64_t i = 0; i < kBatch; ++i) x[i] = float_of(static_cast<std::uint32_t>(first + i));
  kernels.apply(function.function, test::kSlow, x.data(), y.data(), kBatch);
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < kBatch; ++i) wrong += bits_of(y[i]) != bits_of(function.scalar(x[i])) ? 1u : 0u;
  return wrong;
}

std::uint64_t wrong_of_all(const golden::Kernels& kernels, const test::ScalarFunction& function) {
  std::uint64_t wrong = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : wrong)
  for (std::uint64_t batch = 0; batch < (std::uint64_t{1} << 32) / kBatch; ++batch)
    wrong += wrong_in(kernels, function, batch * kBatch);
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string level = argc > 1 ? argv[1] : "", name = argc > 2 ? argv[2] : "";
  std::uint64_t ran = 0, wrong = 0;
  for (const golden::Variant& variant : golden::variants())
    for (const test::ScalarFunction& function : test::kScalarFunctions) {
      if (variant.kernels == nullptr || (!level.empty() && level != variant.name) ||
          (!name.empty() && name != function.name))
        continue;
      const std::uint64_t differing = wrong_of_all(*variant.kernels, function);
      std::printf("%s %s: 4294967296 inputs, %llu differ\n", std::string(variant.name).c_str(), function.name,
                  static_cast<unsigned long long>(differing));
      std::fflush(stdout);
      ++ran, wrong += differing;
    }
  if (ran == 0) std::fprintf(stderr, "no such level or function here\n");
  return ran == 0 ? 2 : wrong == 0 ? 0 : 1;
}
