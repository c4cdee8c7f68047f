// The recurrence of a window of known steps: each block of threads takes rows of one value head of one chain and keeps their
// state in registers from the first visit to the last. q, k, v and the gates of the visits to come are on their way to
// shared memory while the present one is computed; the state leaves when somebody looks, and at the end.
//
// K / 32 threads hold a row (split_row.cuh), and a thread holds R rows, so that one load of k serves them all.
#include <cuda_pipeline_primitives.h>

#include <cstddef>

#include "digest.cuh"
#include "split_row.cuh"
#include "window.hpp"

namespace gdnsim::cuda {
namespace {

constexpr int kBlock = 128;
template <int K>
constexpr int kSteps = K <= 128 ? 8 : 4;  // of a stage
constexpr int kStages = 3;                // in shared memory

/// One visit's inputs in shared memory.
template <int K, int kRowsHere>
struct Visit {
  float4 q[K / 4], k[K / 4];
  std::uint16_t v[kRowsHere];
  float decay, beta;
  float pad[2];
};

/// What a block of threads works on.
struct Job {
  int chain, hv, h, first, visits;  // first: row of the state
  const int2* visit;                // in shared memory: flat row, and the slot that keeps the state after it, or -1
};

// ---- one visit ----

/// A thread's part of R rows.
template <Book book, DType type, int K, int R>
struct Rows {
  using Part = Split<book, type, K>;
  static constexpr int T = Part::T;
  float4 S[R][kQuads];

  static __device__ int thread_of_row() { return lane_id() % T; }

  template <int kRowsHere>
  __device__ void step(const Visit<K, kRowsHere>& visit, int row, float (&out)[R]) {
    const int t = thread_of_row();
    const auto of = [&](int r, int m) { return S[r][m]; };
    const float decay = visit.decay, beta = visit.beta;
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int m = 0; m < kQuads; ++m) S[r][m] = times(S[r][m], {decay, decay, decay, decay});
    float u[R];
    thread_sums<book, type, R>(
        of, [&](int m) { return visit.k[m * T + t]; }, u);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float dot = row_sum<book, T>(u[r]);
      u[r] = __fmul_rn(__fsub_rn(f32_from_bf16(visit.v[row + r]), dot), beta);
    }
#pragma unroll
    for (int m = 0; m < kQuads; ++m) {
      const float4 k = visit.k[m * T + t];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        float4& s = S[r][m];
        s = {updated<book>(k.x, u[r], s.x), updated<book>(k.y, u[r], s.y), updated<book>(k.z, u[r], s.z),
             updated<book>(k.w, u[r], s.w)};
      }
    }
    thread_sums<book, type, R>(
        of, [&](int m) { return visit.q[m * T + t]; }, out);
#pragma unroll
    for (int r = 0; r < R; ++r) out[r] = row_sum<book, T>(out[r]);
    if constexpr (type == DType::bf16) round();
  }

  /// The state as it is stored between steps.
  __device__ void round() {
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int m = 0; m < kQuads; ++m) {
        const std::uint32_t low = bf16_pair(S[r][m].x, S[r][m].y), high = bf16_pair(S[r][m].z, S[r][m].w);
        S[r][m] = {bf16_low(low), bf16_high(low), bf16_low(high), bf16_high(high)};
      }
  }

  /// `head`: a head's first word; rows from `row` on, those below `end`.
  __device__ void load(const void* head, int row, int end) {
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int m = 0; m < kQuads; ++m) {
        S[r][m] = float4{};
        if (row + r >= end) continue;
        const std::int64_t at = 1LL * (row + r) * K + Part::element(m, thread_of_row());
        if constexpr (type == DType::f32) {
          S[r][m] = *reinterpret_cast<const float4*>(static_cast<const float*>(head) + at);
        } else {
          const uint2 w = *reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(head) + at);
          S[r][m] = {bf16_low(w.x), bf16_high(w.x), bf16_low(w.y), bf16_high(w.y)};
        }
      }
  }

  __device__ void store(void* head, int row, int end) const {
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int m = 0; m < kQuads; ++m) {
        if (row + r >= end) continue;
        const std::int64_t at = 1LL * (row + r) * K + Part::element(m, thread_of_row());
        const float4& s = S[r][m];
        if constexpr (type == DType::f32)
          __stcg(reinterpret_cast<float4*>(static_cast<float*>(head) + at), s);
        else
          __stcg(reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(head) + at),
                 uint2{bf16_pair(s.x, s.y), bf16_pair(s.z, s.w)});
      }
  }

  /// This thread's share of its rows' digests (docs/log-format.md, rules L1-L3): one thread of a row has the whole line.
  __device__ unsigned long long digest(int row, int end) const {
    unsigned long long line[R] = {};
#pragma unroll 1
    for (int m = 0; m < kQuads; ++m) add_words(m, line);
    unsigned long long sum = 0;
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int mask = T / 2; mask >= 1; mask /= 2) line[r] += __shfl_xor_sync(kAllLanes, line[r], mask);
      if (row + r < end && thread_of_row() == 0) sum += mix(line[r] + (row + r + 1ull) * kDigestC);
    }
    return sum;
  }

 private:
  __device__ void add_words(int m, unsigned long long (&line)[R]) const {
    const int first = Part::element(m, thread_of_row());
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float4 s = S[r][0];
#pragma unroll
      for (int i = 1; i < kQuads; ++i)
        if (i == m) s = S[r][i];  // registers have no index
      if constexpr (type == DType::f32) {
        line[r] += digest_term(bits_of(s.x), bits_of(s.y), first / 2);
        line[r] += digest_term(bits_of(s.z), bits_of(s.w), first / 2 + 1);
      } else {
        line[r] += digest_term(bf16_pair(s.x, s.y), bf16_pair(s.z, s.w), first / 4);
      }
    }
  }
};

// ---- the way in ----

/// What one thread brings of every visit: `bytes` from `from`, a flat row's place, to `to` in the visit.
struct Errand {
  const std::byte* from;
  std::int64_t stride;  // from one flat row to the next
  unsigned to;
  int bytes;  // 16 or 4; 0: nothing
};

template <Book book, DType type, int K, int kRowsHere>
__device__ Errand errand_of(const StepView& s, const Job& job, int task) {
  using Part = Split<book, type, K>;
  using To = Visit<K, kRowsHere>;
  constexpr int kKeys = K / 4, kValues = kRowsHere / 8;
  const auto at = [](const void* from, std::int64_t bytes) { return static_cast<const std::byte*>(from) + bytes; };
  if (task < 2 * kKeys) {
    const int first = 4 * (task % kKeys);
    const bool is_q = task < kKeys;
    return {at(is_q ? s.out.q : s.out.k, 4LL * (job.h * K + first)), 4LL * s.shape.H * K,
            static_cast<unsigned>((is_q ? offsetof(To, q) : offsetof(To, k)) + 16 * Part::slot(first)), 16};
  }
  if (task < 2 * kKeys + kValues) {
    const int first = 8 * (task - 2 * kKeys);
    return {at(s.out.conv_out, 2 * (2LL * s.shape.H * K + 1LL * job.hv * s.shape.V + job.first + first)),
            2 * s.shape.dim, static_cast<unsigned>(offsetof(To, v) + 2 * first),
            job.first + first < s.shape.V ? 16 : 0};
  }
  const bool decay = task == 2 * kKeys + kValues, beta = task == 2 * kKeys + kValues + 1;
  return {at(decay ? s.out.decay : s.out.beta, 4LL * job.hv), 4LL * s.shape.HV,
          static_cast<unsigned>(decay ? offsetof(To, decay) : offsetof(To, beta)), decay || beta ? 4 : 0};
}

/// Asks for the inputs of a stage's visits; all threads take part.
template <Book book, DType type, int K, int kRowsHere>
__device__ void fetch_stage(const StepView& s, const Job& job, int stage,
                            Visit<K, kRowsHere> (&ring)[kStages][kSteps<K>]) {
  constexpr int kTasks = 2 * (K / 4) + kRowsHere / 8 + 2;
  const int first = stage * kSteps<K>, count = min(kSteps<K>, job.visits - first);
#pragma unroll 1
  for (int task = static_cast<int>(threadIdx.x); task < kTasks; task += kBlock) {
    const Errand errand = errand_of<book, type, K, kRowsHere>(s, job, task);
    auto* to = reinterpret_cast<std::byte*>(ring[stage % kStages]) + errand.to;
#pragma unroll 1
    for (int i = 0; i < count; ++i, to += sizeof(Visit<K, kRowsHere>)) {
      const std::byte* from = errand.from + job.visit[first + i].x * errand.stride;
      if (errand.bytes == 16) __pipeline_memcpy_async(to, from, 16);
      if (errand.bytes == 4) __pipeline_memcpy_async(to, from, 4);
    }
  }
  __pipeline_commit();
}

/// The state leaves: its digest, and its bytes where they are wanted.
template <Book book, DType type, int K, int R>
__device__ void keep(const WindowView& w, const Job& job, const Rows<book, type, K, R>& rows, int slot, int row) {
  const Shape& shape = w.step.shape;
  const std::int64_t head = 1LL * slot * shape.HV + job.hv;
  if (w.bytes[slot] != 0)
    rows.store(static_cast<std::byte*>(w.kept) + head * shape.V * K * (type == DType::f32 ? 4 : 2), row, shape.V);
  unsigned long long sum = rows.digest(row, shape.V);
#pragma unroll
  for (int mask = 16; mask >= 1; mask /= 2) sum += __shfl_xor_sync(kAllLanes, sum, mask);
  if (lane_id() == 0) atomicAdd(w.heads + head, sum);
}

/// Copies the chain's visits to shared memory.
__device__ Job job_of(const WindowView& w, int tile, int tiles) {
  const Shape& shape = w.step.shape;
  Job job;
  const int head = static_cast<int>(blockIdx.x) / tiles;
  job.first = static_cast<int>(blockIdx.x) % tiles * tile;
  job.chain = head / shape.HV;
  job.hv = head % shape.HV;
  job.h = job.hv / (shape.HV / shape.H);
  extern __shared__ int2 visits[];
  const int first = w.first[job.chain];
  job.visit = visits;
  job.visits = w.first[job.chain + 1] - first;
  for (int n = static_cast<int>(threadIdx.x); n < job.visits; n += kBlock)
    visits[n] = {w.visit[first + n], w.look[first + n]};
  __syncthreads();
  return job;
}

/// The head's state in the pool: found again at the end, for there are no registers to remember it.
template <DType type, int K>
__device__ void* head_of(const WindowView& w, const Job& job) {
  const Shape& shape = w.step.shape;
  return static_cast<std::byte*>(w.step.pool.recurrent) +
         (1LL * w.block[job.chain] * shape.HV + job.hv) * shape.V * K * (type == DType::f32 ? 4 : 2);
}

template <Book book, DType type, int K, int R>
__global__ void __launch_bounds__(kBlock, R == 4   ? 2
                                          : R == 2 ? 4
                                                   : 6) resident_kernel(const __grid_constant__ WindowView w) {
  using Mine = Rows<book, type, K, R>;
  constexpr int T = Mine::T, kTile = kBlock / T * R;
  constexpr int kEach = kSteps<K>;
  __shared__ __align__(16) Visit<K, kTile> ring[kStages][kEach];
  const StepView& s = w.step;
  const Job job = job_of(w, kTile, (s.shape.V + kTile - 1) / kTile);
  const int local = static_cast<int>(threadIdx.x) / T * R, row = job.first + local;
#pragma unroll
  for (int stage = 0; stage + 1 < kStages; ++stage) fetch_stage<book, type, K>(s, job, stage, ring);
  Mine rows;
  rows.load(head_of<type, K>(w, job), row, s.shape.V);
  for (int n = 0; n < job.visits; ++n) {
    if (n % kEach == 0) {
      __pipeline_wait_prior(kStages - 2);
      __syncthreads();
      fetch_stage<book, type, K>(s, job, n / kEach + kStages - 1, ring);
    }
    float out[R];
    rows.step(ring[n / kEach % kStages][n % kEach], local, out);
    auto* core_out =
        static_cast<std::uint16_t*>(s.out.core_out) + (1LL * job.visit[n].x * s.shape.HV + job.hv) * s.shape.V + row;
    const int t = Mine::thread_of_row();
#pragma unroll
    for (int r = 0; r < R; ++r)
      if (t == r % T && row + r < s.shape.V) core_out[r] = bf16_word(out[r]);
    if (const int slot = job.visit[n].y; slot >= 0) keep(w, job, rows, slot, row);
  }
  rows.store(head_of<type, K>(w, job), row, s.shape.V);
}

// ---- launching ----

template <Book book, DType type, int K, int R>
void launch_rows(const WindowView& w) {
  constexpr int kTile = kBlock / (K / 32) * R;
  const std::int64_t blocks = 1LL * w.chains * w.step.shape.HV * ((w.step.shape.V + kTile - 1) / kTile);
  resident_kernel<book, type, K, R>
      <<<static_cast<unsigned>(blocks), kBlock, static_cast<std::size_t>(w.longest) * sizeof(int2), w.step.stream>>>(w);
  GDNSIM_CUDA(cudaGetLastError());
}

/// Few heads: one row a thread group, for the shortest step; many: four, so that k and q are loaded once for all of them.
/// Four only for K = 128, what models have: each instance costs seconds of compiling.
template <Book book, DType type, int K>
void launch_width(const WindowView& w, int rows_each) {
  if constexpr (K == 128)
    if (rows_each == 4) return launch_rows<book, type, K, 4>(w);
  launch_rows<book, type, K, 1>(w);
}

template <Book book, DType type>
void launch_type(const WindowView& w, int rows_each) {
  switch (w.step.shape.K) {
#ifndef GDNSIM_QUICK_BUILD
    case 32:
      return launch_width<book, type, 32>(w, rows_each);
    case 64:
      return launch_width<book, type, 64>(w, rows_each);
    case 256:
      return launch_width<book, type, 256>(w, rows_each);
#endif
    case 128:
      return launch_width<book, type, 128>(w, rows_each);
    default:
      throw error("cuda: the resident kernel has no K ", w.step.shape.K);
  }
}

}  // namespace

void launch_window_resident(const WindowView& w, int multiprocessors, int rows_each) {
  if (w.chains == 0) return;
  const Shape& shape = w.step.shape;
  // One row a thread makes four times as many blocks: worth while as long as they all run at once.
  const std::int64_t blocks = 1LL * w.chains * shape.HV * ((shape.V * (shape.K / 32) + kBlock - 1) / kBlock);
  if (rows_each == 0) rows_each = blocks <= 6LL * multiprocessors ? 1 : 4;
  const bool wide = w.step.shape.state_type == DType::f32;
  if (w.golden)
    wide ? launch_type<Book::golden, DType::f32>(w, rows_each) : launch_type<Book::golden, DType::bf16>(w, rows_each);
  else
    wide ? launch_type<Book::triton, DType::f32>(w, rows_each) : launch_type<Book::triton, DType::bf16>(w, rows_each);
}

}  // namespace gdnsim::cuda
