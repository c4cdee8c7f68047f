// The plain norm, gated or not: one warp a row (docs/arithmetic.md, rules A2.6, N1-N8). In a decode step a row is a value head of
// a row, active or not.
#include "launch.cuh"
#include "norm_row.cuh"

namespace gdnsim::cuda {
namespace {

__global__ void norm_kernel(NormView n) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool gated = n.z != nullptr, gate_first = gated && n.rules.norm == Norm::gate_first;
  float* scratch = warp_scratch(n.order);
  for (std::int64_t at = first_warp(); at < n.rows; at += all_warps()) {
    const std::int64_t first = at * n.width;
    const auto gate = [&](int i) {
      const float z = load(n.act_type, n.z, first + i);
      return gate_of(n.gate_silu, z, sigmoid(n.rules, z));
    };
    const auto x = [&](int i) {
      const float value = load(n.act_type, n.x, first + i);
      return gate_first ? __fmul_rn(value, gate(i)) : value;
    };
    const float rstd = rstd_of(n.rules, n.rules.rstd, dot(n.order, x, x, scratch), n.width, n.eps);
    if (lane == 0 && n.rstd != nullptr) n.rstd[at] = canonical(rstd);
    for (int i = lane; i < n.width; i += kWarp) {
      const float weight = with_offset(load(n.act_type, n.weight, i), n.weight_offset);
      const float y = weighted(n.rules.norm, n.act_type, x(i), rstd, weight);
      store(n.act_type, n.out, first + i, gated && !gate_first ? __fmul_rn(y, gate(i)) : y);
    }
  }
}

/// golden's order of summing: chunks of 32 products, each a butterfly, left to right.
bool in_chunks(const DotOrder& order) {
  return order.lane == 1 && order.product == Product::rounded && order.exchange == Exchange::plain &&
         order.tree == Tree::widest && order.group == kWarp && order.groups == Tree::sequential;
}

constexpr int kAhead = 8;  // chunks whose butterflies go side by side

/// The sum of squares of a row in that order: a butterfly among the lanes gives each of them the same bits.
template <class X>
__device__ float chunked_sum(int width, int lane, X x) {
  float total = 0;
  for (int first = 0; first < width; first += kAhead * kWarp) {
    float sum[kAhead];
#pragma unroll
    for (int c = 0; c < kAhead; ++c) {
      const int i = first + c * kWarp + lane;
      const float value = i < width ? x(i) : 0.0f;
      sum[c] = __fmul_rn(value, value);
    }
#pragma unroll
    for (int mask = kWarp / 2; mask >= 1; mask /= 2)
#pragma unroll
      for (int c = 0; c < kAhead; ++c) sum[c] = __fadd_rn(sum[c], __shfl_xor_sync(0xFFFFFFFFu, sum[c], mask));
#pragma unroll
    for (int c = 0; c < kAhead; ++c) {
      if (first == 0 && c == 0)
        total = sum[0];
      else if (first + c * kWarp < width)
        total = __fadd_rn(total, sum[c]);
    }
  }
  return total;
}

/// The plain norm of long rows under golden's order: no shared memory, so that many rows are under way.
__global__ void __launch_bounds__(kThreads) chunked_norm_kernel(NormView n) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (std::int64_t at = first_warp(); at < n.rows; at += all_warps()) {
    const std::int64_t first = at * n.width;
    const auto x = [&](int i) { return load(n.act_type, n.x, first + i); };
    const float rstd = rstd_of(n.rules, n.rules.rstd, chunked_sum(n.width, lane, x), n.width, n.eps);
    if (lane == 0 && n.rstd != nullptr) n.rstd[at] = canonical(rstd);
#pragma unroll 8
    for (int i = lane; i < n.width; i += kWarp) {
      const float weight = with_offset(load(n.act_type, n.weight, i), n.weight_offset);
      store(n.act_type, n.out, first + i, weighted(n.rules.norm, n.act_type, x(i), rstd, weight));
    }
  }
}

}  // namespace

void launch_norm_rows(const NormView& norm) {
  if (norm.rows == 0) return;
  if (norm.z != nullptr || !in_chunks(norm.order)) return launch_warps(norm_kernel, norm.rows, norm.order, norm);
  constexpr int warps = kThreads / kWarp;
  chunked_norm_kernel<<<blocks_for(norm.rows, warps), kThreads, 0, norm.stream>>>(norm);
  GDNSIM_CUDA(cudaGetLastError());
}

void launch_norm(const StepView& s) {
  launch_norm_rows({.rows = s.shape.rows * s.shape.HV,
                    .width = s.shape.V,
                    .act_type = s.shape.act_type,
                    .gate_silu = s.shape.gate_silu,
                    .eps = s.shape.norm_eps,
                    .weight_offset = 0,
                    .rules = s.rules,
                    .order = s.norm_order,
                    .x = s.out.core_out,
                    .z = s.in.z,
                    .weight = s.params.norm_weight,
                    .out = s.out.norm_out,
                    .rstd = s.out.rstd,
                    .stream = s.stream});
}

}  // namespace gdnsim::cuda
