// The fused decode step: conv, q/k norm, gates and recurrence of one value head's rows in one block, in one launch, for the
// presets. The state is read once and written once, in bulk copies through shared memory; everything else is small beside it.
//
// A block takes `tile` rows of one value head. It asks for their state first, and while that is on its way one warp makes q,
// one k, and the others the gates and v. All blocks of a key head compute its q and k; the last of them to have read the
// window rolls it. Then each warp takes groups of rows, 32 words of the state a thread.
#include "bulk.cuh"
#include "channels.cuh"
#include "fused.hpp"
#include "group.cuh"
#include "head_norm.cuh"

namespace gdnsim::cuda {
namespace {

constexpr int kWarps = 4;  // of a block

/// A block's part of the step.
struct Part {
  std::int64_t row;   // of the step
  std::int64_t head;  // row * HV + value head
  int hv, h;          // value head, its key head
  int first, count;   // rows of the state
  bool leader;        // writes the key head's outputs
};

__device__ Part part_of(const FusedView& f) {
  const Shape& shape = f.step.shape;
  Part p;
  const unsigned tile = blockIdx.x % f.tiles, head = blockIdx.x / f.tiles, row = head / shape.HV;
  p.head = head;
  p.row = row;
  p.hv = static_cast<int>(head - row * shape.HV);
  const int group = shape.HV / shape.H;
  p.h = p.hv / group;
  p.first = static_cast<int>(tile) * f.tile;
  p.count = min(shape.V - p.first, f.tile);
  p.leader = tile == 0 && p.hv % group == 0;
  return p;
}

template <DType conv, int K>
struct Shared {
  float q[K], k[K];                            // quads in the order of key_slot
  float v[kFusedGroups * fused_group(K)];      // of the block's rows
  ConvWord<conv> window[kMaxTaps - 1][2 * K];  // the key head's, rolled
  std::uint64_t loaded[kFusedGroups];          // barriers
  float decay, beta;
};

// ---- before: conv, norms, gates ----

/// One warp: q or k of the block's key head.
template <Book book, DType type, DType conv, int K>
__device__ void make_key(const FusedView& f, const Part& p, std::int64_t block, bool is_q, Shared<conv, K>& shared) {
  constexpr int N = K / kWarp;
  const StepView& s = f.step;
  const int mine = lane_id() * N;
  const std::int64_t at = 1LL * (is_q ? p.h : s.shape.H + p.h) * K + mine;
  Channels<conv, N> channels;
  channels.ask_inputs(s, p.row, at);
  wait_for_previous_grid();
  channels.ask_window(s, block, at);
  std::uint16_t out[N];
  channels.template outputs<book>(s, out);
  if (p.leader) store_conv_out(s, p.row, at, out);
#pragma unroll
  for (int j = 0; j + 1 < kMaxTaps; ++j)
    if (j < s.shape.W - 1)
#pragma unroll
      for (int i = 0; i < N; ++i) shared.window[j][(is_q ? 0 : K) + mine + i] = channels.window[j + 1][i];
  float x[N];
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = f32_from_bf16(out[i]);
  norm_head<book>(s, f.mixed, is_q, x);
#pragma unroll
  for (int i = 0; i < N; ++i) (is_q ? shared.q : shared.k)[4 * key_slot<type>((mine + i) / 4) + (mine + i) % 4] = x[i];
}

/// v of the block's rows, N neighbouring channels a thread; their windows are this block's alone and roll at once.
template <Book book, DType conv, int K, int N>
__device__ void make_v(const FusedView& f, const Part& p, std::int64_t block, int thread, int threads,
                       Shared<conv, K>& shared) {
  const StepView& s = f.step;
  for (int i = thread * N; i < p.count; i += threads * N) {
    const std::int64_t at = 2LL * s.shape.H * K + 1LL * p.hv * s.shape.V + p.first + i;
    Channels<conv, N> channels;
    channels.ask_inputs(s, p.row, at);
    wait_for_previous_grid();
    channels.ask_window(s, block, at);
    std::uint16_t out[N];
    channels.template outputs<book>(s, out);
    store_conv_out(s, p.row, at, out);
    channels.roll(s, block, at);
#pragma unroll
    for (int n = 0; n < N; ++n) shared.v[i + n] = f32_from_bf16(out[n]);
  }
}

/// Asks for the state of the block's rows.
template <DType type, int K, DType conv>
__device__ void ask_state(const Part& p, const uint4* from, uint4* to, std::uint64_t policy, Shared<conv, K>& shared) {
  constexpr int kRows = fused_group(K), kGroup = kRows * K / kVector<type>;  // vectors
#if GDNSIM_HAS_BULK
  const int groups = p.count / kRows;
  for (int g = 0; g < groups; ++g)
    bulk_load(to + g * kGroup, from + g * kGroup, kGroup * sizeof(uint4), &shared.loaded[g], policy);
#else
  (void)policy, (void)shared;
  for (int i = lane_id(); i < p.count / kRows * kGroup; i += kWarp) to[i] = __ldcs(from + i);
#endif
}

// ---- the key head's window ----

/// One warp, which has read q's window or k's: true in all lanes of the last block's to have done so.
__device__ bool arrive(const FusedView& f, const Part& p, bool is_q) {
  if (f.sharers == 1) return true;
  bool last = false;
  if (lane_id() == 0) {
    unsigned* counter = f.arrived + 2 * (p.row * f.step.shape.H + p.h) + (is_q ? 0 : 1);
    last = count_release(counter) == f.sharers - 1;
    if (last) *counter = 0;  // for the next launch
  }
  return __shfl_sync(kAllLanes, last, 0);
}

template <DType conv, int K>
__device__ void roll_key(const FusedView& f, const Part& p, std::int64_t block, bool is_q,
                         const Shared<conv, K>& shared) {
  constexpr int N = K / kWarp;
  const StepView& s = f.step;
  const int mine = lane_id() * N;
  const std::int64_t at = 1LL * (is_q ? p.h : s.shape.H + p.h) * K + mine;
  for (int j = 0; j < s.shape.W - 1; ++j) {
    ConvWord<conv> words[N];
#pragma unroll
    for (int i = 0; i < N; ++i) words[i] = shared.window[j][(is_q ? 0 : K) + mine + i];
    store_words(Channels<conv, N>::pool(s, block, j, at), words);
  }
}

// ---- the kernel ----

/// An inactive row's outputs are zeros, and nothing else is touched (rule A7).
template <int K>
__device__ void zero_outputs(const StepView& s, const Part& p) {
  wait_for_previous_grid();
  auto* conv_out = static_cast<std::uint16_t*>(s.out.conv_out);
  auto* core_out = static_cast<std::uint16_t*>(s.out.core_out) + p.head * s.shape.V + p.first;
  const std::int64_t row = p.row * s.shape.dim, H = s.shape.H;
  for (int i = static_cast<int>(threadIdx.x); i < p.count; i += static_cast<int>(blockDim.x)) {
    core_out[i] = 0;
    if (conv_out != nullptr) conv_out[row + 2 * H * K + 1LL * p.hv * s.shape.V + p.first + i] = 0;
  }
  if (conv_out == nullptr || !p.leader) return;
  for (int i = static_cast<int>(threadIdx.x); i < K; i += static_cast<int>(blockDim.x))
    conv_out[row + 1LL * p.h * K + i] = conv_out[row + (H + p.h) * K + i] = 0;
}

/// Warps: 0 makes q, 1 makes k, 2 the decay, 3 beta after it has asked for the state; 2 and 3 make v.
template <Book book, DType type, DType conv, int K>
__device__ void prepare(const FusedView& f, const Part& p, std::int64_t block, const uint4* from, uint4* state,
                        std::uint64_t policy, Shared<conv, K>& shared) {
  constexpr int kFirstV = 2;
  const StepView& s = f.step;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (warp < 2) return make_key<book, type>(f, p, block, warp == 0, shared);
  if (warp == 2 && lane_id() == 0) shared.decay = decay_factor<book>(s, p.row, p.hv);
  if (warp == 3) {
    if (lane_id() == 0)
      for (int g = 0; g < kFusedGroups; ++g) init_barrier(&shared.loaded[g]);
    barriers_ready();
    wait_for_previous_grid();
    if (!GDNSIM_HAS_BULK || lane_id() == 0) ask_state<type, K>(p, from, state, policy, shared);
    if (lane_id() == 0) shared.beta = beta_factor<book>(s, p.row, p.hv);
  }
  if (warp >= kFirstV)
    make_v<book, conv, K, 2>(f, p, block, static_cast<int>(threadIdx.x) - kFirstV * kWarp, (kWarps - kFirstV) * kWarp,
                             shared);
}

template <Book book, DType type, DType conv, int K>
__global__ void __launch_bounds__(kWarps* kWarp, 24 / kWarps) fused_kernel(const __grid_constant__ FusedView f) {
  using At = Lanes<book, type, K>;
  constexpr int kRows = fused_group(K), kGroup = kRows * At::kRowVectors;
  extern __shared__ __align__(128) uint4 state[];
  __shared__ __align__(16) Shared<conv, K> shared;
  const StepView& s = f.step;
  const Part p = part_of(f);
  const std::int64_t block = s.in.block[p.row];
  let_next_grid_begin();
  if (block < 0) return zero_outputs<K>(s, p);

  uint4* words =
      static_cast<uint4*>(s.pool.recurrent) + ((block * s.shape.HV + p.hv) * s.shape.V + p.first) * At::kRowVectors;
  const std::uint64_t policy = cache_policy(p.head < f.staying);
  prepare<book, type, conv, K>(f, p, block, words, state, policy, shared);
  wait_for_previous_grid();
  __syncthreads();

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  auto* core_out = static_cast<std::uint16_t*>(s.out.core_out) + p.head * s.shape.V + p.first;
  for (int g = warp; g * kRows < p.count; g += kWarps) {
    const int row = g * kRows + lane_id() / At::T;
    wait_loaded(&shared.loaded[g]);
    const float out = step_row<book, type, K>(state + row * At::kRowVectors,
                                              {shared.q, shared.k, shared.v[row], shared.decay, shared.beta});
    ready_to_leave();
    __syncwarp();
    bulk_store(words + g * kGroup, state + g * kGroup, kGroup * sizeof(uint4), policy);
    if (lane_id() % At::T == 0) core_out[row] = bf16_word(out);
  }
  if (warp < 2 && arrive(f, p, warp == 0)) roll_key(f, p, block, warp == 0, shared);  // late: its fence waits for loads
  wait_stored();
}

// ---- launching ----

template <Book book, DType type, DType conv, int K>
void launch_one(const FusedView& f) {
  const std::int64_t blocks = f.step.shape.rows * f.step.shape.HV * f.tiles;
  const std::size_t shared = static_cast<std::size_t>(f.tile) * K * (type == DType::f32 ? 4 : 2);
  const auto kernel = fused_kernel<book, type, conv, K>;
  GDNSIM_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  GDNSIM_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
  launch_early(+kernel, blocks, kWarps * kWarp, shared, f.step.stream, f);
}

/// A conv state of f32 comes with K = 128 only (variants.cpp): each instance costs a second of compiling.
template <Book book, DType type>
void launch_width(const FusedView& f) {
  const int K = f.step.shape.K;
  const bool wide_conv = f.step.shape.conv_type == DType::f32;
  if (K == 128 && wide_conv) return launch_one<book, type, DType::f32, 128>(f);
  if (K == 128) return launch_one<book, type, DType::bf16, 128>(f);
#ifndef GDNSIM_QUICK_BUILD
  if (K == 32 && !wide_conv) return launch_one<book, type, DType::bf16, 32>(f);
  if (K == 64 && !wide_conv) return launch_one<book, type, DType::bf16, 64>(f);
  if (K == 256 && !wide_conv) return launch_one<book, type, DType::bf16, 256>(f);
#endif
  throw error("cuda: the fused kernel has no K ", K, " with such a conv state");
}

template <Book book>
void launch_types(const FusedView& f) {
  f.step.shape.state_type == DType::f32 ? launch_width<book, DType::f32>(f) : launch_width<book, DType::bf16>(f);
}

}  // namespace

void cut_heads(FusedView& f, int multiprocessors, int tile) {
  const Shape& shape = f.step.shape;
  const int group = fused_group(shape.K), most = std::min(group * kFusedGroups, shape.V);
  const std::int64_t heads = shape.rows * shape.HV;
  const bool wide = shape.state_type == DType::f32;
  f.tile = std::min(tile, most);
  // With few heads, more blocks than multiprocessors help; with many, each block's conv of q and k should serve many rows.
  // Measured: 24 blocks a multiprocessor are many for a tile of 64 KiB, 6 for a smaller one; each warp should have a group.
  for (int choice = most; f.tile == 0; choice /= 2) {
    const std::int64_t many = choice == most && wide ? 24 : 6;
    if (choice <= kWarps * group || heads * ((shape.V + choice - 1) / choice) >= many * multiprocessors)
      f.tile = choice;
  }
  f.tiles = (shape.V + f.tile - 1) / f.tile;
  f.sharers = static_cast<unsigned>(f.tiles * (shape.HV / shape.H));
}

std::int64_t staying_heads(const Shape& shape, std::size_t cache_bytes) {
  const std::int64_t heads = shape.rows * shape.HV,
                     head = 1LL * shape.V * shape.K * (shape.state_type == DType::f32 ? 4 : 2);
  return heads * head <= static_cast<std::int64_t>(cache_bytes) ? heads : 0;
}

void launch_fused(const FusedView& f) {
  if (f.step.shape.rows == 0) return;
  f.golden ? launch_types<Book::golden>(f) : launch_types<Book::triton>(f);
}

}  // namespace gdnsim::cuda
