#include "sfu.hpp"

#include <cmath>
#include <limits>

#include "gdnsim/arith.hpp"
#include "sfu_rows.hpp"

namespace gdnsim::golden {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::uint32_t kMantissa = 0x7FFFFF;

// Rule S1: the unit's squarer, about x^2 / 2^19 of a 17-bit x. A square's partial products come in equal pairs, so row j
// (set bit j of x) holds the bits of x below j and a half for x_j^2 itself; rows are cut at the last kept column.
std::uint32_t truncated_square(std::uint32_t x) {
  std::uint32_t sum = 0;
  for (unsigned j = 10; j <= 16; ++j) {
    const std::uint32_t below = (x & ((1u << j) - 1)) + (1u << (j - 1));
    sum += (x >> j & 1) * (below >> (18 - j));
  }
  return sum;
}

// Rule S2: (C0 << (shift - 2)) + C1 * x + (C2 * square << curve) + round, cut below bit `shift`.
std::uint32_t quadratic(const SfuRow& row, std::int64_t x, std::int64_t square, int shift, int curve,
                        std::int64_t round) {
  const std::int64_t sum = (std::int64_t{row.c0} << (shift - 2)) + row.c1 * x + row.c2 * square * (1 << curve) + round;
  return static_cast<std::uint32_t>(sum >> shift);
}

bool below_normal(std::uint32_t magnitude) { return magnitude < 0x00800000; }
std::uint32_t sign_of(std::uint32_t bits) { return bits & 0x80000000u; }

// Index of sqrt and rsqrt: exponent parity, then mantissa (rule S4). Adds half the exponent that was left out to the result.
std::uint32_t root_index(std::uint32_t bits) { return (((bits >> 23) + 1) & 1) << 23 | (bits & kMantissa); }
std::int32_t half_exponent(std::uint32_t bits) { return (static_cast<std::int32_t>(bits >> 23) - 127) >> 1; }

// fma.ftz: denormal operands and results count as zeros of their sign.
float flushed(float x) {
  const std::uint32_t bits = bits_of(x);
  return below_normal(bits & 0x7FFFFFFF) ? float_of(sign_of(bits)) : x;
}
float fma_ftz(float a, float b, float c) { return flushed(std::fma(flushed(a), flushed(b), flushed(c))); }

}  // namespace

std::uint32_t ex2_mantissa(std::uint32_t i) {
  const std::uint32_t x = i & 0x1FFFF;
  return 0x3F000000u + quadratic(kEx2[i >> 17], x, truncated_square(x), 15, 0, 0x77E2);
}

std::uint32_t rcp_mantissa(std::uint32_t i) {
  const std::uint32_t x = i & 0xFFFF;
  return 0x3E800000u + quadratic(kRcp[i >> 16], x, truncated_square(2 * x), 15, 0, 0x47E7);
}

std::uint32_t sqrt_mantissa(std::uint32_t i) {
  const std::uint32_t x = i & 0x1FFFF;
  return 0x3F000000u + quadratic(kSqrt[i >> 17], x, truncated_square(x), 17, 1, 0xFFFF);
}

std::uint32_t rsqrt_mantissa(std::uint32_t i) {
  if (i == 0) return 0x3F800000u;  // 1/sqrt(1) = 1 is a case of its own in the hardware; the quadratic is one ulp below
  const std::uint32_t x = i & 0x1FFFF;
  return 0x3E800000u + quadratic(kRsqrt[i >> 17], x, truncated_square(x), 16, 2, 0x7FFF);
}

// Rule S3: the mantissa alone decides; the exponent only shifts; results below the normal range flush.
float rcp_approx_ftz(float x) {
  const std::uint32_t bits = bits_of(x), magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return kNaN;
  if (below_normal(magnitude)) return float_of(sign_of(bits) | 0x7F800000u);
  if (magnitude == 0x7F800000) return float_of(sign_of(bits));
  const std::int32_t exponent = static_cast<std::int32_t>(magnitude >> 23) - 127;
  const std::int64_t result =
      static_cast<std::int64_t>(rcp_mantissa(magnitude & kMantissa)) - (std::int64_t{exponent} << 23);
  return float_of(sign_of(bits) | (result < 0x00800000 ? 0u : static_cast<std::uint32_t>(result)));
}

// Rule S4.
float sqrt_approx_ftz(float x) {
  const std::uint32_t bits = bits_of(x), magnitude = bits & 0x7FFFFFFF;
  if (below_normal(magnitude)) return float_of(sign_of(bits));
  if (magnitude > 0x7F800000 || sign_of(bits)) return kNaN;
  if (magnitude == 0x7F800000) return kInfinity;
  return float_of(sqrt_mantissa(root_index(bits)) + (static_cast<std::uint32_t>(half_exponent(bits)) << 23));
}

float rsqrt_approx_ftz(float x) {
  const std::uint32_t bits = bits_of(x), magnitude = bits & 0x7FFFFFFF;
  if (below_normal(magnitude)) return float_of(sign_of(bits) | 0x7F800000u);
  if (magnitude > 0x7F800000 || sign_of(bits)) return kNaN;
  if (magnitude == 0x7F800000) return 0.0f;
  return float_of(rsqrt_mantissa(root_index(bits)) - (static_cast<std::uint32_t>(half_exponent(bits)) << 23));
}

// Rule S5: fixed point t = floor(|x| * 2^23); for x < 0 the integer is -t - 1, or -t where t is a whole number.
float ex2_approx_ftz(float x) {
  if (std::isnan(x)) return kNaN;
  if (x >= 128.0f) return kInfinity;
  if (x <= -127.0f) return 0.0f;
  const std::int64_t t = static_cast<std::int64_t>(std::fabs(static_cast<double>(x)) * 8388608.0);
  const std::int64_t fixed = x >= 0 ? t : (t & kMantissa) == 0 ? -t : -t - 1;
  const std::int64_t result = ex2_mantissa(static_cast<std::uint32_t>(fixed) & kMantissa) + (fixed >> 23 << 23);
  return result < 0x00800000 ? 0.0f : float_of(static_cast<std::uint32_t>(result));
}

float ex2_approx(float x) {
  if (!(x < -126.0f)) return ex2_approx_ftz(x);
  const float root = ex2_approx_ftz(x * 0.5f);
  return root * root;
}

// Rule S6: a * rcp(b), both scaled when b is near either end of the range.
float div_full(float a, float b) {
  const float magnitude = std::fabs(b);
  const float scale = magnitude > 0x1p126f ? 0.25f : magnitude < 0x1p-126f ? 0x1p24f : 1.0f;
  return canonical((a * scale) * rcp_approx_ftz(b * scale));
}

// Rule S7.
float log_libdevice(float x) {
  static constexpr std::uint32_t kCoefficients[] = {0x3E1039F6, 0xBDF8CDCC, 0x3E0F2955, 0xBE2AD8B9,
                                                    0x3E4CED0B, 0xBE7FFF22, 0x3EAAAA78, 0xBF000000};
  const bool tiny = x < 0x1p-126f;
  const float scaled = tiny ? x * 0x1p23f : x;
  const std::uint32_t bits = bits_of(scaled);
  const std::uint32_t exponent = (bits - 1059760811u) & 0xFF800000u;
  const float e = fma_ftz(static_cast<float>(static_cast<std::int32_t>(exponent)), 0x1p-23f, tiny ? -23.0f : 0.0f);
  const float f = float_of(bits - exponent) - 1.0f;
  float r = float_of(0xBE055027);
  for (std::uint32_t coefficient : kCoefficients) r = fma_ftz(r, f, float_of(coefficient));
  r = flushed(flushed(f) * flushed(r));
  r = fma_ftz(r, f, f);
  r = fma_ftz(e, float_of(0x3F317218), r);
  if (bits >= 0x7F800000u) r = fma_ftz(scaled, kInfinity, kInfinity);  // +inf, NaN, and negative numbers
  if (scaled == 0.0f) r = -kInfinity;
  return canonical(r);
}

}  // namespace gdnsim::golden
