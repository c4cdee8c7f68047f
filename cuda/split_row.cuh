// A row of K words in K / 32 threads, 32 words each: which ones follows the contract's order of summing - golden's chunk of
// 32, or every (K/32)th of Triton's lanes - so that most of a dot product is summed without talking to another thread.
#pragma once

#include "fold.cuh"

namespace gdnsim::cuda {

inline constexpr int kQuads = 8;  // of four elements, in a thread

/// Where a thread's elements lie in its row.
template <Book book, DType type, int K>
struct Split {
  static constexpr int T = K / 32;                                         // threads of a row
  static constexpr int kLane = book == Book::golden ? 32 : kVector<type>;  // consecutive elements of one thread

  /// First element of quad m of thread t.
  static __device__ constexpr int element(int m, int t) { return (4 * m / kLane * T + t) * kLane + 4 * m % kLane; }
  /// The quad of a row that element e begins, as shared memory has it: thread by thread within each m.
  static __device__ constexpr int slot(int e) {
    const int lane = e / kLane;
    return ((lane / T * kLane + e % kLane) / 4) * T + lane % T;
  }
};

// ---- sums ----

/// A row's sum from its threads' sums: golden's chunks left to right; Triton's last exchanges.
template <Book book, int T>
__device__ float row_sum(float mine) {
  if constexpr (book == Book::golden) {
    const int base = lane_id() & ~(T - 1);
    float sum = __shfl_sync(kAllLanes, mine, base);
#pragma unroll
    for (int c = 1; c < T; ++c) sum = __fadd_rn(sum, __shfl_sync(kAllLanes, mine, base | c));
    return sum;
  } else {
#pragma unroll
    for (int mask = T / 2; mask >= 1; mask /= 2) mine = __fadd_rn(mine, exchanged(mine, mask));
    return mine;
  }
}

__device__ inline float4 times(const float4& x, const float4& y) {
  return {__fmul_rn(x.x, y.x), __fmul_rn(x.y, y.y), __fmul_rn(x.z, y.z), __fmul_rn(x.w, y.w)};
}
__device__ inline float4 plus(const float4& x, const float4& y) {
  return {__fadd_rn(x.x, y.x), __fadd_rn(x.y, y.y), __fadd_rn(x.z, y.z), __fadd_rn(x.w, y.w)};
}
/// Four consecutive elements of a lane, Triton's way.
__device__ inline float lane_of(const float4& x, const float4& y) {
  float sum = __fmul_rn(x.y, y.y);
  sum = __fmaf_rn(x.x, y.x, sum);
  sum = __fmaf_rn(x.z, y.z, sum);
  return __fmaf_rn(x.w, y.w, sum);
}
__device__ inline float lane_on(float sum, const float4& x, const float4& y) {
  sum = __fmaf_rn(x.x, y.x, sum);
  sum = __fmaf_rn(x.y, y.y, sum);
  sum = __fmaf_rn(x.z, y.z, sum);
  return __fmaf_rn(x.w, y.w, sum);
}

/// Sums a thread's products with y, of R rows at once. golden: a butterfly over the thread's chunk of 32, depth first;
/// Triton: its lanes, widest distance first.
template <Book book, DType type, int R, class Row, class Y>
__device__ void thread_sums(Row row, Y y, float (&sum)[R]) {
  if constexpr (book == Book::golden) {
    float4 total[R];
#pragma unroll
    for (int m = 0; m < 2; ++m) {  // quads m, m + 4; m + 2, m + 6
      float4 half[R];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float4 near = y(m + 2 * n), far = y(m + 2 * n + 4);
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const float4 pair = plus(times(row(r, m + 2 * n), near), times(row(r, m + 2 * n + 4), far));
          half[r] = n == 0 ? pair : plus(half[r], pair);
        }
      }
#pragma unroll
      for (int r = 0; r < R; ++r) total[r] = m == 0 ? half[r] : plus(total[r], half[r]);
    }
#pragma unroll
    for (int r = 0; r < R; ++r)
      sum[r] = __fadd_rn(__fadd_rn(total[r].x, total[r].z), __fadd_rn(total[r].y, total[r].w));
  } else {
    constexpr int kLanes = kQuads * 4 / kVector<type>, kEach = kVector<type> / 4;
    float lane[kLanes][R];
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const float4 first = y(i * kEach);
#pragma unroll
      for (int r = 0; r < R; ++r) lane[i][r] = lane_of(row(r, i * kEach), first);
      if (kEach == 2) {
        const float4 second = y(i * kEach + kEach - 1);
#pragma unroll
        for (int r = 0; r < R; ++r) lane[i][r] = lane_on(lane[i][r], row(r, i * kEach + kEach - 1), second);
      }
    }
#pragma unroll
    for (int distance = kLanes / 2; distance >= 1; distance /= 2)
#pragma unroll
      for (int i = 0; i < distance; ++i)
#pragma unroll
        for (int r = 0; r < R; ++r) lane[i][r] = __fadd_rn(lane[i][r], lane[i + distance][r]);
#pragma unroll
    for (int r = 0; r < R; ++r) sum[r] = lane[0][r];
  }
}

}  // namespace gdnsim::cuda
