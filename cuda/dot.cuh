// Dot products by one warp in a contract's order (docs/arithmetic.md, rules D1-D7; Dot in contract.hpp).
//
// A row becomes `slots` numbers: one for each lane, or, with a fused first exchange, one for each pair of lanes. They
// lie in shared memory, group by group. The 32 threads share the work of each stage; no number depends on which
// thread made it.
#pragma once

#include "kernels.hpp"

namespace gdnsim::cuda {

inline constexpr int kWarp = 32;

__host__ __device__ inline int dot_groups(const DotOrder& order) {
  return (order.lanes + order.group - 1) / order.group;
}
__host__ __device__ inline int dot_width(const DotOrder& order) {  // slots of one group
  return order.exchange == Exchange::fused ? order.group / 2 : order.group;
}
/// How many numbers the groups' sums are padded to before they are combined.
__host__ __device__ inline int dot_padded_groups(const DotOrder& order) {
  const int groups = dot_groups(order);
  int padded = 1;
  while (padded < groups) padded *= 2;
  return order.groups == Tree::sequential ? groups : padded;
}
/// Floats of shared memory that one warp needs.
__host__ __device__ inline int dot_scratch(const DotOrder& order) {
  const int slots = dot_groups(order) * dot_width(order), padded = dot_padded_groups(order);
  return slots > padded ? slots : padded;
}

__device__ inline float accumulate(Product product, float x, float y, float sum) {
  return product == Product::fma ? __fmaf_rn(x, y, sum) : __fadd_rn(sum, __fmul_rn(x, y));
}

/// Elements begin..end-1 in order; `swapped` takes the second one first. An empty lane is +0.
template <class X, class Y>
__device__ float lane_sum(const DotOrder& order, X x, Y y, int begin, int end) {
  if (begin >= end) return 0.0f;
  int next = begin + 1;
  float sum;
  if (order.order == LaneOrder::swapped && next < end) {
    sum = accumulate(order.product, x(begin), y(begin), __fmul_rn(x(next), y(next)));
    ++next;
  } else {
    sum = __fmul_rn(x(begin), y(begin));
  }
  for (; next < end; ++next) sum = accumulate(order.product, x(next), y(next), sum);
  return sum;
}

/// The first exchange of a group, fused: fma(x, y, round(x' * y')) with the element half a group on; +0 beyond the row.
template <class X, class Y>
__device__ float fused_pair(const DotOrder& order, X x, Y y, int near, int far) {
  if (near >= order.n) return 0.0f;
  return __fmaf_rn(x(near), y(near), far < order.n ? __fmul_rn(x(far), y(far)) : 0.0f);
}

template <class X, class Y>
__device__ float slot_value(const DotOrder& order, X x, Y y, int slot) {
  if (order.exchange == Exchange::fused) {
    const int width = dot_width(order), near = slot / width * order.group + slot % width;
    return fused_pair(order, x, y, near, near + width);
  }
  const int begin = slot * order.lane, end = begin + order.lane;
  return lane_sum(order, x, y, begin, end < order.n ? end : order.n);
}

/// One exchange of a butterfly in every group: slot i takes in slot i + distance, for i = 0, step, 2*step, ...
__device__ inline void exchange(float* values, int groups, int width, int distance, int step, int pairs) {
  for (int task = static_cast<int>(threadIdx.x) % kWarp; task < groups * pairs; task += kWarp) {
    float* near = values + task / pairs * width + task % pairs * step;
    *near = __fadd_rn(*near, near[distance]);
  }
  __syncwarp();
}

/// Combines the `width` values of each group; the result lies in the group's first slot.
__device__ inline void combine(Tree tree, float* values, int groups, int width) {
  if (tree == Tree::widest)
    for (int distance = width / 2; distance >= 1; distance /= 2) exchange(values, groups, width, distance, 1, distance);
  if (tree == Tree::narrowest)
    for (int distance = 1; distance < width; distance *= 2)
      exchange(values, groups, width, distance, 2 * distance, width / (2 * distance));
  if (tree != Tree::sequential) return;
  for (int group = static_cast<int>(threadIdx.x) % kWarp; group < groups; group += kWarp) {
    float* first = values + group * width;
    for (int i = 1; i < width; ++i) *first = __fadd_rn(*first, first[i]);
  }
  __syncwarp();
}

/// Moves the groups' sums to the front and pads them with +0 to `padded`.
__device__ inline void gather_sums(float* values, int groups, int width, int padded) {
  for (int first = 0; first < padded; first += kWarp) {
    const int group = first + static_cast<int>(threadIdx.x) % kWarp;
    const float sum = group < groups ? values[group * width] : 0.0f;
    __syncwarp();  // a sum's new place lies in an earlier group, or in this round's
    if (group < padded) values[group] = sum;
    __syncwarp();
  }
}

/// The order of S.k in V row v.
__device__ inline DotOrder k_order(DotOrder order, std::int64_t v) {
  if (v % kTileRows >= order.sequential_from) order.order = LaneOrder::sequential;
  return order;
}

/// sum of x(i) * y(i), i < order.n. All 32 threads of a warp call it and get the result; `scratch` is the warp's own.
template <class X, class Y>
__device__ float dot(const DotOrder& order, X x, Y y, float* scratch) {
  const int groups = dot_groups(order), width = dot_width(order), padded = dot_padded_groups(order);
  for (int slot = static_cast<int>(threadIdx.x) % kWarp; slot < groups * width; slot += kWarp)
    scratch[slot] = slot_value(order, x, y, slot);
  __syncwarp();
  combine(order.tree, scratch, groups, width);
  if (groups > 1) {
    gather_sums(scratch, groups, width, padded);
    combine(order.groups, scratch, 1, padded);
  }
  const float sum = scratch[0];
  __syncwarp();  // before anyone writes the scratch again
  return sum;
}

}  // namespace gdnsim::cuda
