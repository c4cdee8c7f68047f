// The norm of one head of q or k by one warp, in the presets' orders (docs/arithmetic.md, rules Q1-Q4, D1-D6).
#pragma once

#include "fold.cuh"

namespace gdnsim::cuda {

/// All lanes get the sum over lanes.
__device__ inline float butterfly(float x, int widest = 16) {
#pragma unroll
  for (int mask = 16; mask >= 1; mask /= 2)
    if (mask <= widest) x = __fadd_rn(x, exchanged(x, mask));
  return x;
}

// Lane l holds elements N l ... N l + N - 1, so exchanges of N and more elements go from lane to lane, the rest stay inside.

/// golden: chunks of 32, each a butterfly, left to right.
template <int N>
__device__ inline float chunked_squares(const float (&x)[N]) {
  float sum[N];
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] = __fmul_rn(x[i], x[i]);
#pragma unroll
  for (int mask = 16 / N; mask >= 1; mask /= 2)
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = __fadd_rn(sum[i], exchanged(sum[i], mask));
  const float chunk = vector_sum<N>(sum);
  float total = __shfl_sync(kAllLanes, chunk, 0);
#pragma unroll
  for (int c = 1; c < N; ++c) total = __fadd_rn(total, __shfl_sync(kAllLanes, chunk, c * (kWarp / N)));
  return total;
}

/// triton-sm90: N consecutive elements a lane of the contract.
template <int N>
__device__ inline float lane_squares(const float (&x)[N]) {
  if constexpr (N == 1)
    return butterfly(__fmul_rn(x[0], x[0]));
  else
    return butterfly(fma_lane<N>(x, x));
}

/// triton-sm90-mixed: warps of 32 elements, the first exchange fused; then the warps, widest first.
template <int N>
__device__ inline float fused_squares(const float (&x)[N]) {
  float sum[N], warp[N];
#pragma unroll
  for (int i = 0; i < N; ++i)  // the lower half of each warp's lanes; what the others have is not used
    sum[i] = __fmaf_rn(x[i], x[i], exchanged(__fmul_rn(x[i], x[i]), 16 / N));
#pragma unroll
  for (int mask = 8 / N; mask >= 1; mask /= 2)
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = __fadd_rn(sum[i], exchanged(sum[i], mask));
  const float mine = vector_sum<N>(sum);
#pragma unroll
  for (int c = 0; c < N; ++c) warp[c] = __shfl_sync(kAllLanes, mine, c * (kWarp / N));
  return vector_sum<N>(warp);
}

/// What a head of q or k is divided by, under the mixed contract multiplied by; all lanes get it.
template <Book book, int N>
__device__ inline float head_root(bool mixed, const float (&x)[N]) {
  float sum;
  if constexpr (book == Book::golden)
    sum = chunked_squares(x);
  else
    sum = mixed ? fused_squares(x) : lane_squares(x);
  const float under_root = __fadd_rn(sum, 1e-6f);
  return mixed ? rsqrt_approx_ftz(under_root) : root(rules_in<book>(), under_root);
}

/// One head of q or k, N consecutive elements a lane. q is scaled, k never.
template <Book book, int N>
__device__ inline void norm_head(const StepView& s, bool mixed, bool is_q, float (&x)[N]) {
  if (s.shape.qk_l2norm) {
    const float by = head_root<book>(mixed, x);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = mixed ? __fmul_rn(by, x[i]) : divide(rules_in<book>(), x[i], by);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = is_q ? __fmul_rn(s.shape.scale, x[i]) : x[i];
}

/// Triton's norm as one factor of a head: its div.full is a product with rcp, for the root of a sum with 1e-6 in it is neither
/// tiny nor huge, or is infinite or NaN, where the product is the same too (rule S6). q's scale comes after it.
template <int N>
__device__ inline float head_factor(const StepView& s, bool mixed, const float (&x)[N]) {
  if (!s.shape.qk_l2norm) return 1.0f;
  const float by = head_root<Book::triton>(mixed, x);
  return mixed ? by : rcp_approx_ftz(by);
}

/// decay of a value head (rule A2.4). Out of line, as beta: one thread a head needs them, and golden's functions are long.
template <Book book>
static __device__ __noinline__ float decay_factor(const StepView& s, std::int64_t row, int head) {
  constexpr Rules rules = rules_in<book>();
  const auto* a = static_cast<const std::uint16_t*>(s.in.a);
  const float sum = __fadd_rn(f32_from_bf16(a[row * s.shape.HV + head]), s.params.dt_bias[head]);
  const float rate = negated(rules, exp_of(rules, s.params.A_log[head]));
  return exp_of(rules, __fmul_rn(rate, softplus(rules, sum)));
}

template <Book book>
static __device__ __noinline__ float beta_factor(const StepView& s, std::int64_t row, int head) {
  const auto* b = static_cast<const std::uint16_t*>(s.in.b);
  return sigmoid(rules_in<book>(), f32_from_bf16(b[row * s.shape.HV + head]));
}

}  // namespace gdnsim::cuda
