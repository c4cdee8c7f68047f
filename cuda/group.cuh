// The recurrence of a group of rows by one warp, from shared memory and back: K / 32 neighbouring lanes a row, 32 words each.
#pragma once

#include "split_row.cuh"

namespace gdnsim::cuda {

/// Where quad p of q or k lies: so that neighbouring lanes of a bf16 state, who ask for every other quad, meet no bank twice.
template <DType type>
__device__ inline int key_slot(int p) {
  return type == DType::f32 ? p : p ^ (p >> 3 & 1);
}

/// How a warp's lanes lie on a group's rows in shared memory: K / 32 neighbours a row. Each lane goes through its vectors of
/// 16 bytes in its own order, turned by an exclusive or that keeps every pair of the contract's tree, so that eight
/// neighbours never meet in a bank.
template <Book book, DType type, int K>
struct Lanes {
  using L = Split<book, type, K>;
  static constexpr int T = L::T;
  static constexpr int kVectors = type == DType::f32 ? 8 : 4;   // of a thread
  static constexpr int kStride = book == Book::golden ? 1 : T;  // vectors from one to the next
  static constexpr int kRowVectors = kVectors * T;

  static __device__ int turn() {
    const int lane = lane_id();
    if (book == Book::golden) return (type == DType::f32 ? lane : lane >> 1) % kVectors;
    if (type == DType::bf16 && T == 1) return lane >> 1 & 3;
    return lane / T % (8 / T) % kVectors;
  }
  /// The vector of its row that this lane takes as number i: `first() ^ i * kStride`.
  static __device__ int first() {
    const int t = lane_id() % T;
    return book == Book::golden ? kVectors * t + turn() : turn() * T + t;
  }
};

/// A thread's words of one group's rows, in floats; quad m of the register array is quad m of the lane's own order.
template <Book book, DType type, int K>
struct Group {
  using At = Lanes<book, type, K>;
  float4 S[kQuads];

  __device__ void load(const uint4* row, int first, float decay) {
#pragma unroll
    for (int i = 0; i < At::kVectors; ++i) {
      float x[kVector<type>];
      unpack<type>(row[first ^ i * At::kStride], x);
#pragma unroll
      for (int h = 0; h < kQuads / At::kVectors; ++h)
        S[i * (kQuads / At::kVectors) + h] = {__fmul_rn(decay, x[4 * h]), __fmul_rn(decay, x[4 * h + 1]),
                                              __fmul_rn(decay, x[4 * h + 2]), __fmul_rn(decay, x[4 * h + 3])};
    }
  }
  __device__ void store(uint4* row, int first) const {
#pragma unroll
    for (int i = 0; i < At::kVectors; ++i) {
      float x[kVector<type>];
#pragma unroll
      for (int h = 0; h < kQuads / At::kVectors; ++h) {
        const float4& s = S[i * (kQuads / At::kVectors) + h];
        x[4 * h] = s.x, x[4 * h + 1] = s.y, x[4 * h + 2] = s.z, x[4 * h + 3] = s.w;
      }
      row[first ^ i * At::kStride] = pack<type>(x);
    }
  }
  /// The lane's quad m of q or k.
  static __device__ const float4& key(const float* keys, int first, int m) {
    constexpr int kEach = kQuads / At::kVectors;
    const int vector = first ^ m / kEach * At::kStride;
    return reinterpret_cast<const float4*>(keys)[key_slot<type>(vector * kEach + m % kEach)];
  }
  __device__ float dot(const float* keys, int first) const {
    float sum[1];
    thread_sums<book, type, 1>([&](int, int m) { return S[m]; }, [&](int m) { return key(keys, first, m); }, sum);
    return row_sum<book, At::T>(sum[0]);
  }
};

/// What a lane's row needs besides its state; q and k of the row's key head in the order of key_slot.
struct RowInputs {
  const float *q, *k;
  float v, decay, beta;
};

/// One row of a group by its lanes, in shared memory, in place. Returns core_out.
template <Book book, DType type, int K>
__device__ float step_row(uint4* words, const RowInputs& in) {
  int first = Lanes<book, type, K>::first();
  asm("" : "+r"(first));  // else the offsets of all vectors are kept over all groups, and spilled
  Group<book, type, K> group;
  group.load(words, first, in.decay);
  const float u = __fmul_rn(__fsub_rn(in.v, group.dot(in.k, first)), in.beta);
#pragma unroll
  for (int m = 0; m < kQuads; ++m) {
    const float4 k = group.key(in.k, first, m);
    float4& s = group.S[m];
    s = {updated<book>(k.x, u, s.x), updated<book>(k.y, u, s.y), updated<book>(k.z, u, s.z),
         updated<book>(k.w, u, s.w)};
  }
  group.store(words, first);
  return group.dot(in.q, first);
}

}  // namespace gdnsim::cuda
