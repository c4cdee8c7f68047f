// Contracts as compile-time constants: a fast kernel knows its preset's rules when it is compiled, so that every choice
// folds away. variants.cpp accepts a contract for a book only when its fields are the preset's (src/core/contract.cpp).
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

/// S + u k.
template <Book book>
__device__ inline float updated(float k, float u, float S) {
  return book == Book::triton ? __fmaf_rn(k, u, S) : __fadd_rn(S, __fmul_rn(u, k));
}

// ---- Triton's sigmoid where nothing is scaled ----

/// For |x| up to this, ex2(-x log2 e) and its reciprocal are normal numbers: ex2.approx and its flushing twin agree (rule S4),
/// and div.full is a product with rcp (rule S6).
inline constexpr float kUnscaled = 87.0f;

/// 1 / (1 + e^-x) as rcp gives it: golden's contract wants more, Triton's just this.
__device__ inline float unscaled_sigmoid(float x) {
  return rcp_approx_ftz(__fadd_rn(ex2_approx_ftz(__fmul_rn(x, -float_of(0x3FB8AA3Bu))), 1.0f));
}

// ---- golden's SiLU and gate without double precision ----
//
// What is stored is 16 bits. An approximation that cannot lie on the other side of a rounding boundary has the right 16
// bits; a few in ten thousand are too close to tell and are computed as the contract says.
//
// The quick sigmoid is within 10.7 units of 2^-24 for |x| <= kQuick: of e^-x, 1.4 for the fraction that ex2 cuts off, 3 for
// its table (rule S4), 1 for rounding the correction, 0.4 for what the correction leaves out; of the sum 1; of rcp 3.

inline constexpr float kQuick = 40.0f;
inline constexpr float kLn2 = 0x1.62E430p-1f;

/// From e^-x = 2^t (1 + rest).
__device__ inline float quick_sigmoid(float t, float rest) {
  const float e = ex2_approx_ftz(t);
  return rcp_approx_ftz(__fadd_rn(1.0f, __fmaf_rn(e, rest, e)));
}
/// For any x: t is rounded, and the rest has what was lost.
__device__ inline float quick_sigmoid(float x) {
  const float log2_e = 0x1.715476p+0f, t = __fmul_rn(x, -log2_e), lost = __fmaf_rn(x, -log2_e, -t);
  return quick_sigmoid(t, __fmul_rn(__fmaf_rn(x, -0x1.4AE0C0p-26f, lost), kLn2));
}
/// For a bf16 x: times the first 15 bits of log2 e it is exact.
__device__ inline float quick_sigmoid_of_bf16(float x) {
  return quick_sigmoid(__fmul_rn(x, -0x1.7154p+0f), __fmul_rn(x, -0x1.D94AE0p-18f * kLn2));
}

/// A quick result against the exact chain, in ulps: 10.7 units and 3 for the exact sigmoid's own roundings, and 2 for each of
/// two products (gate, then the product with it; the conv's SiLU has one). An ulp is a unit or two.
inline constexpr std::uint32_t kSlack = 20;

/// True when every float within kSlack ulps of y rounds to the same bf16.
__device__ inline bool certain_in_bf16(float y) { return ((bits_of(y) + kSlack - 0x8000u) & 0xFFFFu) > 2 * kSlack; }

/// The slow ways, kept out of line.
template <Book book>
static __device__ __noinline__ float exact_silu(float x) {
  return silu(rules_in<book>(), x);
}
template <Book book>
static __device__ __noinline__ float exact_sigmoid(float x) {
  return sigmoid(rules_in<book>(), x);
}

/// silu(x) rounded to bf16.
template <Book book>
__device__ inline std::uint16_t silu_bf16(float x) {
  float y;
  if constexpr (book == Book::golden) {
    y = __fmul_rn(x, quick_sigmoid(x));
    if (!(fabsf(x) <= kQuick && certain_in_bf16(y))) y = exact_silu<book>(x);
  } else {
    y = __fmul_rn(x, unscaled_sigmoid(x));
    if (!(fabsf(x) <= kUnscaled)) y = exact_silu<book>(x);
  }
  return bf16_word(y);
}

}  // namespace gdnsim::cuda
