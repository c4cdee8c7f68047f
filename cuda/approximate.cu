// Asks the device how it computes its approximate functions, so that a contract made of them is never run on a GPU
// whose functions differ: every mantissa of each, digested. The mantissas decide all other results
// (docs/arithmetic.md, rules S3-S5).
#include <array>

#include "approximate_results.hpp"
#include "launch.cuh"
#include "scalar.cuh"

namespace gdnsim::cuda {
namespace {

/// Spreads an (input, result) pair over 64 bits; the sum of these over all inputs does not depend on the order.
__device__ std::uint64_t mixed(std::uint32_t input, std::uint32_t result) {
  std::uint64_t z = static_cast<std::uint64_t>(input) << 32 | result;
  z = (z ^ (z >> 33)) * 0xFF51AFD7ED558CCDull;
  z = (z ^ (z >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return z ^ (z >> 33);
}

/// sums: ex2, rcp, sqrt, rsqrt. Input i is i / 2^23 for ex2, the float with bits 0x3F800000 + i for the others; rcp
/// needs one exponent, the roots two.
__global__ void fingerprint_kernel(unsigned long long* sums) {
  std::uint64_t ex2 = 0, rcp = 0, sqrt = 0, rsqrt = 0;
  for (std::int64_t at = first_thread(); at < 1 << 24; at += all_threads()) {
    const auto i = static_cast<std::uint32_t>(at);
    const float x = float_of(0x3F800000u + i);
    if (i < 1u << 23) {
      ex2 += mixed(i, bits_of(ex2_approx(__fmul_rn(static_cast<float>(i), 0x1p-23f))));
      rcp += mixed(i, bits_of(rcp_approx_ftz(x)));
    }
    sqrt += mixed(i, bits_of(sqrt_approx_ftz(x)));
    rsqrt += mixed(i, bits_of(rsqrt_approx_ftz(x)));
  }
  atomicAdd(&sums[0], ex2);
  atomicAdd(&sums[1], rcp);
  atomicAdd(&sums[2], sqrt);
  atomicAdd(&sums[3], rsqrt);
}

template <class Function>
__device__ void fill(Function function, std::uint32_t first, std::uint32_t* results, std::int64_t count) {
  for (std::int64_t i = first_thread(); i < count; i += all_threads())
    results[i] = bits_of(canonical(function(float_of(first + static_cast<std::uint32_t>(i)))));
}

__global__ void results_kernel(Approximate which, std::uint32_t first, std::uint32_t* results, std::int64_t count) {
  switch (which) {
    case Approximate::ex2:
      return fill(ex2_approx, first, results, count);
    case Approximate::rcp:
      return fill(rcp_approx_ftz, first, results, count);
    case Approximate::sqrt:
      return fill(sqrt_approx_ftz, first, results, count);
    case Approximate::rsqrt:
      return fill(rsqrt_approx_ftz, first, results, count);
  }
}

}  // namespace

void launch_approximate(Approximate which, std::uint32_t first, std::uint32_t* results, std::int64_t count) {
  results_kernel<<<1024, kThreads, 0, cudaStreamPerThread>>>(which, first, results, count);
  GDNSIM_CUDA(cudaGetLastError());
}

Fingerprint approximate_fingerprint() {
  Buffer sums;
  std::array<unsigned long long, 4> result{};
  sums.zero(sizeof result);
  fingerprint_kernel<<<1024, kThreads, 0, cudaStreamPerThread>>>(sums.as<unsigned long long>());
  GDNSIM_CUDA(cudaGetLastError());
  copy_now(result.data(), sums.data(), sizeof result);
  return {result[0], result[1], result[2], result[3]};
}

}  // namespace gdnsim::cuda
