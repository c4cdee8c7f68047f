// Contracts as compile-time constants: a fast kernel knows its preset's rules when it is compiled, so that every choice
// folds away. variants.cpp accepts a contract for a book only when its fields are the preset's (src/contract.cpp).
#pragma once

#include "scalar.cuh"
#include "words.cuh"

namespace gdnsim::cuda {

/// The rules of `golden`, or those that `triton-sm90` and `triton-sm90-mixed` share (their q/k norms differ).
enum class Book { golden, triton };

template <Book book>
__device__ constexpr Rules rules_in() {
  Rules rules{};  // every field's first word: golden
  if (book == Book::triton) {
    rules.conv_product = ConvProduct::rounded_or_fma;
    rules.exp = Exp::ex2;
    rules.div = Div::full;
    rules.sqrt = Sqrt::approx;
    rules.negate = Negate::subtract;
    rules.softplus = Softplus::log_libdevice;
    rules.update = Update::fma;
  }
  return rules;
}

// ---- golden's SiLU and gate without double precision ----
//
// What is stored is 16 bits. An approximation that cannot lie on the other side of a rounding boundary has the right 16
// bits; one in a thousand is too close to tell and is computed as the contract says.

/// True when every float within `slack` ulps of y rounds to the same bf16.
__device__ inline bool certain_in_bf16(float y, std::uint32_t slack) {
  return ((bits_of(y) + slack - 0x8000u) & 0xFFFFu) > 2 * slack;
}

/// 1 / (1 + e^-x) within 2^-19.3 for |x| <= kQuick: 12 * log2(e) < 17.4 rounds to 2^-20 (11.1 units of 2^-24 in e^-x), log2(e)
/// itself is off by 2^-26.1 (2.9), ex2 (rule S4) by 3, the sum by 1, rcp by 3.
inline constexpr float kQuick = 12.0f;
__device__ inline float quick_sigmoid(float x) {
  return rcp_approx_ftz(__fadd_rn(1.0f, ex2_approx(__fmul_rn(x, -float_of(0x3FB8AA3Bu)))));
}
/// For a product of the quick sigmoid with two or three factors against the exact chain: 21 + 8 roundings of at most an ulp.
inline constexpr std::uint32_t kSlack = 40;
inline constexpr float kSmallest = 0x1p-100f, kLargest = 0x1p100f;  // of a result that no denormal or infinity touched

/// True when a quick result may be trusted. `x` went into the sigmoid.
__device__ inline bool trusted(float x, float y) {
  return fabsf(x) <= kQuick && fabsf(y) >= kSmallest && fabsf(y) <= kLargest && certain_in_bf16(y, kSlack);
}

/// The slow ways, kept out of line.
static __device__ __noinline__ float exact_silu(float x) { return silu(rules_in<Book::golden>(), x); }
static __device__ __noinline__ float exact_sigmoid(float x) { return sigmoid(rules_in<Book::golden>(), x); }

/// silu(x) rounded to bf16.
template <Book book>
__device__ inline std::uint16_t silu_bf16(float x) {
  if constexpr (book == Book::golden) {
    const float y = __fmul_rn(x, quick_sigmoid(x));
    return bf16_word(trusted(x, y) ? y : exact_silu(x));
  } else {
    return bf16_word(silu(rules_in<book>(), x));
  }
}

}  // namespace gdnsim::cuda
