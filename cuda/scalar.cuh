// The scalar functions of a contract on the device: which exp, which division, which root; and stored words. The
// approximate functions are the hardware's own instructions. Every operation that must not be fused is spelled with its
// rounding.
#pragma once

#include <cstdint>

#include "gdnsim/arith.hpp"
#include "kernels.hpp"

namespace gdnsim::cuda {

// ---- the hardware's approximate functions (docs/arithmetic.md, rules S3-S6) ----

#define GDNSIM_PTX_UNARY(name, instruction)         \
  __device__ inline float name(float x) {           \
    float y;                                        \
    asm(instruction " %0, %1;" : "=f"(y) : "f"(x)); \
    return y;                                       \
  }
GDNSIM_PTX_UNARY(ex2_approx, "ex2.approx.f32")
GDNSIM_PTX_UNARY(ex2_approx_ftz, "ex2.approx.ftz.f32")
GDNSIM_PTX_UNARY(rcp_approx_ftz, "rcp.approx.ftz.f32")
GDNSIM_PTX_UNARY(sqrt_approx_ftz, "sqrt.approx.ftz.f32")
GDNSIM_PTX_UNARY(rsqrt_approx_ftz, "rsqrt.approx.ftz.f32")
#undef GDNSIM_PTX_UNARY

__device__ inline float div_full(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

__device__ inline float fma_ftz(float a, float b, float c) {
  float y;
  asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
  return y;
}

__device__ inline float multiply_ftz(float a, float b) {
  float y;
  asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/// libdevice's f32 log in its flush-to-zero form, as Triton compiles it (rule S7).
__device__ inline float log_libdevice(float x) {
  const bool tiny = x < 0x1p-126f;
  const float y = tiny ? __fmul_rn(x, 0x1p23f) : x;
  const std::uint32_t bits = bits_of(y);
  const std::uint32_t exponent = (bits - 1059760811u) & 0xFF800000u;
  const float e = fma_ftz(static_cast<float>(static_cast<std::int32_t>(exponent)), 0x1p-23f, tiny ? -23.0f : 0.0f);
  const float f = __fsub_rn(float_of(bits - exponent), 1.0f);
  float r = float_of(0xBE055027u);
  r = fma_ftz(r, f, float_of(0x3E1039F6u));
  r = fma_ftz(r, f, float_of(0xBDF8CDCCu));
  r = fma_ftz(r, f, float_of(0x3E0F2955u));
  r = fma_ftz(r, f, float_of(0xBE2AD8B9u));
  r = fma_ftz(r, f, float_of(0x3E4CED0Bu));
  r = fma_ftz(r, f, float_of(0xBE7FFF22u));
  r = fma_ftz(r, f, float_of(0x3EAAAA78u));
  r = fma_ftz(r, f, float_of(0xBF000000u));
  r = multiply_ftz(f, r);
  r = fma_ftz(r, f, f);
  r = fma_ftz(e, float_of(0x3F317218u), r);
  const float infinity = float_of(0x7F800000u);
  if (bits >= 0x7F800000u) r = fma_ftz(y, infinity, infinity);  // +inf, NaN, and negative numbers
  return y == 0.0f ? -infinity : r;
}

// ---- the functions a contract chooses from ----

__device__ inline float exp_of(const Rules& rules, float x) {
  const float log2_e = float_of(0x3FB8AA3Bu);
  return rules.exp == Exp::exact ? exp_cr(x) : ex2_approx(__fmul_rn(x, log2_e));
}

__device__ inline float divide(const Rules& rules, float a, float b) {
  if (rules.div == Div::full) return div_full(a, b);
  if (rules.div == Div::reciprocal) return __fmul_rn(a, rcp_approx_ftz(b));
  return __fdiv_rn(a, b);
}

__device__ inline float root(const Rules& rules, float x) {
  return rules.sqrt == Sqrt::ieee ? __fsqrt_rn(x) : sqrt_approx_ftz(x);
}

__device__ inline float reciprocal_root(const Rules& rules, float x) {
  return rules.sqrt == Sqrt::ieee ? __fdiv_rn(1.0f, __fsqrt_rn(x)) : rsqrt_approx_ftz(x);
}

__device__ inline float negated(const Rules& rules, float x) {
  return rules.negate == Negate::sign ? -x : __fsub_rn(0.0f, x);
}

/// a / (1 + e^-x): the sigmoid with a = 1, the conv's SiLU with a = x.
__device__ inline float over_one_plus_exp(const Rules& rules, float a, float x) {
  return divide(rules, a, __fadd_rn(exp_of(rules, negated(rules, x)), 1.0f));
}
__device__ inline float sigmoid(const Rules& rules, float x) { return over_one_plus_exp(rules, 1.0f, x); }
__device__ inline float silu(const Rules& rules, float x) { return over_one_plus_exp(rules, x, x); }

__device__ inline float softplus(const Rules& rules, float s) {
  if (!(s <= 20.0f)) return s;
  const float e = exp_of(rules, s);
  if (rules.softplus == Softplus::log1p) return log1p_cr(e);
  const float sum = __fadd_rn(e, 1.0f);
  return rules.softplus == Softplus::log ? log_cr(sum) : log_libdevice(sum);
}

// ---- stored words ----

/// Element `i`, widened. Exact; keeps NaN payloads.
__device__ inline float load(DType type, const void* words, std::int64_t i) {
  if (type == DType::f32) return static_cast<const float*>(words)[i];
  const std::uint16_t word = static_cast<const std::uint16_t*>(words)[i];
  return type == DType::bf16 ? f32_from_bf16(word) : f32_from_f16(word);
}

/// Rounds x into element `i`.
__device__ inline void store(DType type, void* words, std::int64_t i, float x) {
  if (type == DType::f32)
    static_cast<float*>(words)[i] = canonical(x);
  else
    static_cast<std::uint16_t*>(words)[i] = type == DType::bf16 ? bf16_from_f32(x) : f16_from_f32(x);
}

/// x rounded to the type and widened again.
__device__ inline float rounded_to(DType type, float x) {
  if (type == DType::f32) return canonical(x);
  return type == DType::bf16 ? f32_from_bf16(bf16_from_f32(x)) : f32_from_f16(f16_from_f32(x));
}

}  // namespace gdnsim::cuda
