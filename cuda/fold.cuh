// Dot products of some rows at a time by one warp, in the presets' orders (docs/arithmetic.md, rules D1-D6).
//
// A butterfly sums x[j] + x[j ^ w] in every lane, although half of the lanes hold the other half's sums. So an exchange of
// two rows costs one shuffle: the lower lanes keep the near row and get its other half, the upper lanes the far row. Adding
// is commutative (a NaN is the canonical one either way), so no bit differs from the plain butterfly.
#pragma once

#include "book.cuh"
#include "launch.cuh"

namespace gdnsim::cuda {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;
__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline float exchanged(float x, int mask) { return __shfl_xor_sync(kAllLanes, x, mask); }

/// How a row of K words lies in a warp: 16 bytes a thread, neighbours side by side. A short row leaves room for others, a
/// long one goes round twice.
template <DType type, int K>
struct Layout {
  static constexpr int kVec = kVector<type>;                      // elements of 16 bytes
  static constexpr int kVectors = K / kVec;                       // of a row
  static constexpr int kThreads = kVectors < 32 ? kVectors : 32;  // of a row
  static constexpr int kTurns = kVectors / kThreads;              // vectors of a row in one thread
  static constexpr int kAside = kWarp / kThreads;                 // rows side by side in a warp
  static constexpr int kEach = kTurns * kVec;                     // elements of a row in one thread
  static constexpr int kChunk = 32 / kVec;                        // golden: threads of a chunk of 32 elements

  /// First element of a thread's vector.
  static __device__ int element(int turn) { return kVec * (turn * kThreads + lane_id() % kThreads); }
  static __device__ int aside() { return lane_id() / kThreads; }
};

/// One exchange of two rows: `upper` lanes end with the far one.
template <int N>
__device__ inline void fold(const float (&near)[N], const float (&far)[N], int mask, float (&sum)[N]) {
  const bool upper = (lane_id() & mask) != 0;
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] = __fadd_rn(upper ? far[i] : near[i], exchanged(upper ? near[i] : far[i], mask));
}

/// The widest exchanges of 1, 2, 4 or 8 rows. Afterwards a lane has row `folded_row`: the widest exchange decides its highest
/// bit.
template <int R, int N>
__device__ inline void fold_rows(const float (&rows)[R][N], int mask, float (&sum)[N]) {
  if constexpr (R == 1) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = rows[0][i];
  } else {
    float half[R / 2][N];
#pragma unroll
    for (int r = 0; r < R / 2; ++r) fold(rows[r], rows[r + R / 2], mask, half[r]);
    fold_rows(half, mask / 2, sum);
  }
}

/// True in one of the lanes that share a row's sum. `threads`: of a row.
template <int R>
__device__ inline bool speaks_for_row(int mask, int threads) {
  return (lane_id() & (threads - 1) & ~(2 * mask - 2 * mask / R)) == 0;
}

template <int R>
__device__ inline int folded_row(int mask) {
  int row = 0;
#pragma unroll
  for (int r = R / 2; r >= 1; r /= 2, mask /= 2) row += (lane_id() & mask) != 0 ? r : 0;
  return row;
}
/// The value that the lanes of row r hold, to all lanes of that part of the warp.
template <int R>
__device__ inline float of_row(float x, int r, int mask, int threads) {
  int lane = 0;
#pragma unroll
  for (int bit = R / 2; bit >= 1; bit /= 2, mask /= 2) lane += (r & bit) != 0 ? mask : 0;
  return __shfl_sync(kAllLanes, x, (lane_id() & ~(threads - 1)) | lane);
}

/// Sums of vectors of one lane, Triton's way: second element first, then fused, in order.
template <int N>
__device__ inline float fma_lane(const float* x, const float* y) {
  float sum = __fmul_rn(x[1], y[1]);
  sum = __fmaf_rn(x[0], y[0], sum);
#pragma unroll
  for (int i = 2; i < N; ++i) sum = __fmaf_rn(x[i], y[i], sum);
  return sum;
}

/// Butterfly inside a vector, widest distance first: the last steps of a chunk of 32.
template <int N>
__device__ inline float vector_sum(const float* x) {
  float sum[N];
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] = x[i];
#pragma unroll
  for (int distance = N / 2; distance >= 1; distance /= 2)
#pragma unroll
    for (int i = 0; i < distance; ++i) sum[i] = __fadd_rn(sum[i], sum[i + distance]);
  return sum[0];
}

/// The state's dots: R rows of x, the same y for all. Each lane gets the sum of its `folded_row<R>(kMask)`.
template <Book book, DType type, int K>
struct RowDot;

template <DType type, int K>
struct RowDot<Book::triton, type, K> {
  using L = Layout<type, K>;
  static constexpr int kMask = L::kThreads / 2;

  template <int R>
  static __device__ float of(const float (&x)[R][L::kEach], const float (&y)[L::kEach]) {
    float lane[R][1], sum[1];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      lane[r][0] = fma_lane<L::kVec>(x[r], y);
      if (L::kTurns == 2)
        lane[r][0] =
            __fadd_rn(lane[r][0], fma_lane<L::kVec>(x[r] + L::kVec * (L::kTurns - 1), y + L::kVec * (L::kTurns - 1)));
    }
    fold_rows(lane, kMask, sum);
#pragma unroll
    for (int mask = kMask / R; mask >= 1; mask /= 2) sum[0] = __fadd_rn(sum[0], exchanged(sum[0], mask));
    return sum[0];
  }
};

template <DType type, int K>
struct RowDot<Book::golden, type, K> {
  using L = Layout<type, K>;
  static constexpr int kMask = L::kChunk / 2;

  template <int R>
  static __device__ float of(const float (&x)[R][L::kEach], const float (&y)[L::kEach]) {
    float product[R][L::kEach];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int i = 0; i < L::kEach; ++i) product[r][i] = __fmul_rn(x[r][i], y[i]);
    return of_products(product);
  }

  template <int R>
  static __device__ float of_products(const float (&product)[R][L::kEach]) {
    static_assert(kMask >= R / 2);
    float sum[L::kEach];
    fold_rows(product, kMask, sum);
#pragma unroll
    for (int mask = kMask / R; mask >= 1; mask /= 2)
#pragma unroll
      for (int i = 0; i < L::kEach; ++i) sum[i] = __fadd_rn(sum[i], exchanged(sum[i], mask));
    return chunks(sum);
  }

  /// The chunks' sums, left to right.
  static __device__ float chunks(const float (&sum)[L::kEach]) {
    constexpr int kPerTurn = L::kThreads / L::kChunk;
    const int row = (lane_id() & ~(L::kThreads - 1)) | (lane_id() & (L::kChunk - 1));
    float total = 0.0f;
#pragma unroll
    for (int turn = 0; turn < L::kTurns; ++turn) {
      const float mine = vector_sum<L::kVec>(sum + turn * L::kVec);
#pragma unroll
      for (int c = 0; c < kPerTurn; ++c) {
        const float chunk = __shfl_sync(kAllLanes, mine, row | c * L::kChunk);
        total = turn + c == 0 ? chunk : __fadd_rn(total, chunk);
      }
    }
    return total;
  }
};

}  // namespace gdnsim::cuda
