// One element and one root of a norm (docs/arithmetic.md, rules N2-N8): the same functions for every kernel that has a norm.
#pragma once

#include "scalar.cuh"

namespace gdnsim::cuda {

/// From the sum of n squares (rule N5).
__device__ inline float rstd_of(const Rules& rules, Rstd rstd, float sum, int n, float eps) {
  const float under_root = __fadd_rn(divide(rules, sum, static_cast<float>(n)), eps);
  if (rstd == Rstd::rsqrt) return reciprocal_root(rules, under_root);
  return divide(rules, 1.0f, root(rules, under_root));
}

/// z * sigmoid(z), or sigmoid(z) alone.
__device__ inline float gate_of(bool silu, float z, float sigmoid) { return silu ? __fmul_rn(z, sigmoid) : sigmoid; }

/// The widened weight with its offset; adding none keeps -0 (rule N7).
__device__ inline float with_offset(float weight, float offset) {
  return offset == 0.0f ? weight : __fadd_rn(weight, offset);
}

/// x * rstd * weight in the convention's order of rounding; the gate, if any, comes after.
__device__ inline float weighted(Norm norm, DType act, float x, float rstd, float weight) {
  const float scaled = __fmul_rn(x, rstd);
  if (norm != Norm::hf) return __fmul_rn(scaled, weight);
  return rounded_to(act, __fmul_rn(rounded_to(act, scaled), weight));
}

}  // namespace gdnsim::cuda
