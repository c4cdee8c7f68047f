// The fingerprint by which the CUDA backend knows sm_90's approximate functions, computed again from golden's.
#include <doctest/doctest.h>

#include <gdnsim/arith.hpp>

#include <cstdint>

#include "cuda/kernels.hpp"
#include "golden/sfu.hpp"

using namespace gdnsim;

namespace {

/// One (input, result) pair, spread over 64 bits as cuda/approximate.cu does; a fingerprint is the sum over all inputs.
std::uint64_t mixed(std::uint32_t input, float result) {
  std::uint64_t z = static_cast<std::uint64_t>(input) << 32 | bits_of(result);
  z = (z ^ (z >> 33)) * 0xFF51AFD7ED558CCDull;
  z = (z ^ (z >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return z ^ (z >> 33);
}

}  // namespace

TEST_CASE("fingerprint: what the CUDA backend asks a device for is what golden computes") {
  cuda::Fingerprint found{};
  for (std::uint32_t i = 0; i < 1u << 24; ++i) {
    const float x = float_of(0x3F800000u + i);
    if (i < 1u << 23) {
      found.ex2 += mixed(i, golden::ex2_approx(static_cast<float>(i) * 0x1p-23f));
      found.rcp += mixed(i, golden::rcp_approx_ftz(x));
    }
    found.sqrt += mixed(i, golden::sqrt_approx_ftz(x));
    found.rsqrt += mixed(i, golden::rsqrt_approx_ftz(x));
  }
  CHECK(found.ex2 == cuda::kMeasured.ex2);
  CHECK(found.rcp == cuda::kMeasured.rcp);
  CHECK(found.sqrt == cuda::kMeasured.sqrt);
  CHECK(found.rsqrt == cuda::kMeasured.rsqrt);
}
