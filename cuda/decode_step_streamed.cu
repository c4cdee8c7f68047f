// The decode step of many rows in two launches: first q, k, v, decay and beta of every head, then the recurrence, in which
// each warp has a stretch of the rows of the state and a ring of stages of its own, so that its next rows are always on their
// way and nothing ever waits for another warp. Same bits as the fused kernel, which is quicker with few rows.

#include "bulk.cuh"
#include "channels.cuh"
#include "fused.hpp"
#include "group.cuh"
#include "head_norm.cuh"

namespace gdnsim::cuda {
namespace {

constexpr int kWarps = 4;  // of a block
constexpr int K = 128;
constexpr int kRows = fused_group(K);

// ---- q, k, v, decay, beta ----

/// One warp: q or k of a key head.
template <Book book, DType type, DType conv>
__device__ void make_key(const FusedView& f, std::int64_t row, int part, std::int64_t block) {
  constexpr int N = K / kWarp;
  const StepView& s = f.step;
  const bool is_q = part < s.shape.H;
  const int mine = lane_id() * N;
  const std::int64_t at = 1LL * part * K + mine;
  Channels<conv, N> channels;
  channels.ask_inputs(s, row, at);
  wait_for_previous_grid();
  std::uint16_t out[N] = {};
  if (block < 0) return store_conv_out(s, row, at, out);
  channels.ask_window(s, block, at);
  channels.template outputs<book>(s, out);
  channels.roll(s, block, at);
  store_conv_out(s, row, at, out);
  float x[N];
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = f32_from_bf16(out[i]);
  norm_head<book>(s, f.mixed, is_q, x);
  float* to = (is_q ? s.out.q : s.out.k) + (row * s.shape.H + part % s.shape.H) * K;
  reinterpret_cast<float4*>(to)[key_slot<type>(lane_id())] = {x[0], x[1], x[2], x[3]};
}

/// One warp: a value head's v, decay and beta.
template <Book book, DType conv>
__device__ void make_value(const FusedView& f, std::int64_t row, int hv, std::int64_t block) {
  constexpr int N = 4;
  const StepView& s = f.step;
  const std::int64_t head = row * s.shape.HV + hv;
  wait_for_previous_grid();
  for (int i = lane_id() * N; i < s.shape.V; i += kWarp * N) {
    const std::int64_t at = 2LL * s.shape.H * K + 1LL * hv * s.shape.V + i;
    std::uint16_t out[N] = {};
    if (block >= 0) {
      Channels<conv, N> channels;
      channels.ask_inputs(s, row, at);
      channels.ask_window(s, block, at);
      channels.template outputs<book>(s, out);
      channels.roll(s, block, at);
      *reinterpret_cast<float4*>(s.out.u + head * s.shape.V + i) = {f32_from_bf16(out[0]), f32_from_bf16(out[1]),
                                                                    f32_from_bf16(out[2]), f32_from_bf16(out[3])};
    }
    store_conv_out(s, row, at, out);
  }
  if (block < 0) return;
  if (lane_id() == 0) s.out.decay[head] = decay_factor<book>(s, row, hv);
  if (lane_id() == 1) s.out.beta[head] = beta_factor<book>(s, row, hv);
}

template <Book book, DType type, DType conv>
__global__ void __launch_bounds__(kWarps* kWarp) streamed_prepare_kernel(const __grid_constant__ FusedView f) {
  const Shape& shape = f.step.shape;
  let_next_grid_begin();
  const int parts = 2 * shape.H + shape.HV;
  const std::int64_t warp = 1LL * blockIdx.x * kWarps + threadIdx.x / kWarp, row = warp / parts;
  if (row >= shape.rows) return wait_for_previous_grid();
  const int part = static_cast<int>(warp - row * parts);
  const std::int64_t block = f.step.in.block[row];
  if (part < 2 * shape.H) return make_key<book, type, conv>(f, row, part, block);
  make_value<book, conv>(f, row, part - 2 * shape.H, block);
}

// ---- the recurrence ----

/// Of a warp: one in hand, the others on their way in, or out. As many as `kBlocks` blocks a multiprocessor have room for.
constexpr int stages_for(int blocks) { return blocks == 4 ? 3 : 4; }

template <DType type, int kStages>
struct Stages {
  static constexpr int kVectors = kRows * K / kVector<type>;
  uint4 words[kStages][kVectors];
};

#if GDNSIM_HAS_BULK
/// A place in the stretch: groups of rows are numbered through value heads and rows of the step.
struct Place {
  std::int64_t row, head;
  int hv, group;

  __device__ Place(const Shape& shape, std::int64_t flat) {
    const int groups = shape.V / kRows;
    head = flat / groups;
    group = static_cast<int>(flat - head * groups);
    row = head / shape.HV;
    hv = static_cast<int>(head - row * shape.HV);
  }
  __device__ void advance(const Shape& shape) {
    if (++group != shape.V / kRows) return;
    group = 0, ++head;
    if (++hv != shape.HV) return;
    hv = 0, ++row;
  }
};

/// A warp's ring. Lane 0 asks and waits for stores; all lanes wait for loads.
template <DType type, int kStages>
struct Ring {
  Stages<type, kStages>& stages;
  std::uint64_t* loaded;
  std::uint64_t policy;
  unsigned phases = 0;  // a bit a stage

  static __device__ std::int64_t vectors_before(const StepView& s, const Place& at, std::int64_t block) {
    return ((block * s.shape.HV + at.hv) * s.shape.V + 1LL * at.group * kRows) * (K / kVector<type>);
  }
  __device__ void ask(const StepView& s, const Place& at, int stage) {
    if (lane_id() != 0) return;
    const std::int64_t block = s.in.block[at.row];
    if (block < 0) return;
    bulk_load(stages.words[stage], static_cast<const uint4*>(s.pool.recurrent) + vectors_before(s, at, block),
              sizeof stages.words[stage], &loaded[stage], policy);
  }
  __device__ void wait(int stage) {
    wait_loaded(&loaded[stage], phases >> stage & 1);
    phases ^= 1u << stage;
  }
  __device__ void give(const StepView& s, const Place& at, std::int64_t block, int stage) {
    ready_to_leave();
    __syncwarp();
    bulk_store(static_cast<uint4*>(s.pool.recurrent) + vectors_before(s, at, block), stages.words[stage],
               sizeof stages.words[stage], policy);
  }
};

/// What the next group needs besides its state, on its way while this one is computed.
struct Ahead {
  std::int64_t block;
  float v, decay, beta;

  template <int T>
  __device__ static Ahead of(const StepView& s, const Place& at) {
    return {s.in.block[at.row], s.out.u[at.head * s.shape.V + at.group * kRows + lane_id() / T], s.out.decay[at.head],
            s.out.beta[at.head]};
  }
};

#endif  // GDNSIM_HAS_BULK

template <Book book, DType type, int kBlocks>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocks) streamed_kernel(const __grid_constant__ FusedView f) {
#if GDNSIM_HAS_BULK
  constexpr int kStages = stages_for(kBlocks);
  using At = Lanes<book, type, K>;
  extern __shared__ __align__(128) uint4 memory[];
  __shared__ std::uint64_t loaded[kWarps][kStages];
  const StepView& s = f.step;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t warps = 1LL * gridDim.x * kWarps, mine = 1LL * blockIdx.x * kWarps + warp;
  const std::int64_t total = s.shape.rows * s.shape.HV * (s.shape.V / kRows);
  const std::int64_t first = total * mine / warps;
  const int count = static_cast<int>(total * (mine + 1) / warps - first);
  let_next_grid_begin();
  if (lane_id() == 0)
    for (int i = 0; i < kStages; ++i) init_barrier(&loaded[warp][i]);
  barriers_ready();
  __syncwarp();
  wait_for_previous_grid();
  if (count == 0) return;

  Ring<type, kStages> ring{reinterpret_cast<Stages<type, kStages>*>(memory)[warp], loaded[warp], cache_policy(false)};
  Place at(s.shape, first), asked = at;
  for (int i = 0; i < kStages - 1 && i < count; ++i, asked.advance(s.shape)) ring.ask(s, asked, i);
  Ahead next = Ahead::of<At::T>(s, at);
  int stage = 0;
  for (int i = 0; i < count; ++i) {
    const Ahead now = next;
    const Place here = at;
    at.advance(s.shape);
    if (i + 1 < count) next = Ahead::of<At::T>(s, at);
    float out = 0;
    if (now.block >= 0) {
      const std::int64_t key = (here.row * s.shape.H + here.hv / (s.shape.HV / s.shape.H)) * K;
      ring.wait(stage);
      out = step_row<book, type, K>(ring.stages.words[stage] + lane_id() / At::T * At::kRowVectors,
                                    {s.out.q + key, s.out.k + key, now.v, now.decay, now.beta});
      ring.give(s, here, now.block, stage);
    } else {
      store_nothing();
    }
    if (lane_id() % At::T == 0)
      static_cast<std::uint16_t*>(s.out.core_out)[here.head * s.shape.V + here.group * kRows + lane_id() / At::T] =
          bf16_word(out);
    // The stage before this one is the next to be filled: its rows, stored one group ago, must have left.
    if (i + kStages - 1 < count) {
      wait_stored_but_last();
      ring.ask(s, asked, stage == 0 ? kStages - 1 : stage - 1);
      asked.advance(s.shape);
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  wait_stored();
#else
  (void)f;
#endif
}

// ---- launching ----

constexpr int kBlocksEach =
    3;  // of a multiprocessor: four have more warps but spill, and were 4 to 8 % slower everywhere

template <Book book, DType type, int kBlocks>
void launch_recurrence(const FusedView& f, int multiprocessors) {
  constexpr std::size_t shared = kWarps * sizeof(Stages<type, stages_for(kBlocks)>);
  const auto kernel = streamed_kernel<book, type, kBlocks>;
  GDNSIM_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  GDNSIM_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 88));
  launch_early(+kernel, 1LL * multiprocessors * kBlocks, kWarps * kWarp, shared, f.step.stream, f);
}

template <Book book, DType type, DType conv>
void launch_parts(const FusedView& f, int multiprocessors) {
  const Shape& shape = f.step.shape;
  const std::int64_t parts = shape.rows * (2 * shape.H + shape.HV);
  launch_early(+streamed_prepare_kernel<book, type, conv>, (parts + kWarps - 1) / kWarps, kWarps * kWarp, 0,
               f.step.stream, f);
  launch_recurrence<book, type, kBlocksEach>(f, multiprocessors);
}

template <Book book, DType type>
void launch_conv_type(const FusedView& f, int multiprocessors) {
  f.step.shape.conv_type == DType::f32 ? launch_parts<book, type, DType::f32>(f, multiprocessors)
                                       : launch_parts<book, type, DType::bf16>(f, multiprocessors);
}

template <Book book>
void launch_state_type(const FusedView& f, int multiprocessors) {
  f.step.shape.state_type == DType::f32 ? launch_conv_type<book, DType::f32>(f, multiprocessors)
                                        : launch_conv_type<book, DType::bf16>(f, multiprocessors);
}

}  // namespace

/// Where it is quicker than the fused kernel, as measured on an H200: from 16 rows of 32 heads on.
constexpr std::int64_t kManyHeads = 3;  // of a multiprocessor

bool streams(const Shape& shape, int major, int multiprocessors) {
  return major >= 9 && shape.K == K && shape.rows * shape.HV / multiprocessors >= kManyHeads;
}

void launch_streamed(const FusedView& f, int multiprocessors) {
  if (f.step.shape.rows == 0) return;
  f.golden ? launch_state_type<Book::golden>(f, multiprocessors) : launch_state_type<Book::triton>(f, multiprocessors);
}

}  // namespace gdnsim::cuda
