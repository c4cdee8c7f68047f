// The fingerprint by which the CUDA backend knows sm_90's approximate functions, computed again from golden's.
#include <doctest/doctest.h>

#include <gdnsim/approximate.hpp>
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

TEST_CASE("fingerprint: a device that computes one result otherwise is found out, and where") {
  constexpr std::uint64_t kFirst = (std::uint64_t{1} << 30) - 1000, kCount = 5000;
  std::uint32_t odd = 0;  // the input whose result is off by one
  const ApproximateResults device = [&](Approximate which, std::uint32_t first, std::span<std::uint32_t> results) {
    approximate_meant(which, first, results);
    if (odd - first < results.size()) ++results[odd - first];
  };
  for (const Approximate which : kApproximate) {
    CAPTURE(name_of(which));
    odd = 0;
    const ApproximateCheck same = check_approximate(which, device, kFirst, kCount);
    CHECK((same.inputs == kCount && same.differing == 0));
    odd = kFirst + 3210;
    const ApproximateCheck other = check_approximate(which, device, kFirst, kCount);
    CHECK((other.differing == 1 && other.first_input == odd && other.got == other.meant + 1));
  }
  CHECK(bits_of(golden::rcp_approx_ftz(3.0f)) == [] {
    std::uint32_t result = 0;
    approximate_meant(Approximate::rcp, bits_of(3.0f), {&result, 1});
    return result;
  }());
}

TEST_CASE("fingerprint: more inputs than are compared at once, the last one of all among them") {
  const ApproximateResults device = [&](Approximate which, std::uint32_t first, std::span<std::uint32_t> results) {
    approximate_meant(which, first, results);
    if (first + static_cast<std::uint32_t>(results.size()) == 0) results.back() ^= 1;  // the last input
  };
  constexpr std::uint64_t kCount = (std::uint64_t{1} << 21) + 10;
  std::uint64_t heard = 0;
  const ApproximateCheck check = check_approximate(Approximate::rcp, device, kAllInputs - kCount, kCount,
                                                   [&](std::uint64_t done) { heard = done; });
  CHECK((check.inputs == kCount && heard == kCount));
  CHECK((check.differing == 1 && check.first_input == 0xFFFFFFFF));
}
