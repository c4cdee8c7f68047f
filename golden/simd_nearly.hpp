// Sigmoids of values that leave as bf16, the shorter way: a word drops sixteen bits, so that single precision with a known error
// decides nearly all of them, whatever the contract's exp and division are. What it leaves open goes the contract's way.
//
// For |x| <= 16 a contract's 1 / (1 + e^-x) is within 17 x 2^-24 of the truth - nearly all of it the rounded argument of
// ex2.approx, the rest its table, the sum and the division - and what is computed here within 18 x 2^-24 of any contract's; the
// products of the gated norm add less than 4. Tests: golden/simd_nearly, and every f32 in golden_simd_long.
#pragma once

#include "simd_functions.hpp"

namespace gdnsim::golden {
namespace {

constexpr std::uint32_t kNearly = 32;  // units of the last place, at most, between a contract's result and ours

/// 1 + e^-x for |x| <= 16; anything beyond.
GDNSIM_LANE F one_plus_exp_nearly(F x) {
  // 2^f for |f| <= 1/2, within a relative 2^-23.6
  constexpr float kPolynomial[] = {0x1.3d0c52p-7f, 0x1.c6b6e4p-5f, 0x1.ebf918p-3f, 0x1.62e428p-1f, 0x1.000002p+0f};
  const F t = x * all(-kLog2E), magic = all(0x1.8p23f), shifted = t + magic, f = t - (shifted - magic);
  F p = all(0x1.5c08e6p-10f);
#pragma GCC unroll 5
  for (float coefficient : kPolynomial) p = near_fma(p, f, all(coefficient));
  return float_bits(bits(p) + (bits(shifted) << 23)) + all(1.0f);
}

/// bf16 words; where the sign of `open` is set, the word is not known.
struct NearlyWords {
  U word;
  I open;
};
/// y with an error of kNearly at most, x what went into its sigmoid.
GDNSIM_LANE NearlyWords nearly_words(F y, F x) {
  const U size = bits(y) & all(0x7FFFFFFFu), from = bits(x) & all(0x7FFFFFFFu);
  // A result near the middle between two words has one of the last 2 kNearly values below a multiple of 2^16 here.
  const U up = bits(y) + all(0x8000u + kNearly), middle = (up & all(0x10000u - 2 * kNearly)) - all(1u);
  const U outside = (all(0x41800000u) - from) | (size - all(0x0D800000u)) | (all(0x71800000u) - size);
  return {up >> 16, (I)(middle | outside)};
}

}  // namespace
}  // namespace gdnsim::golden
