// What a window of known steps needs before its recurrence, all steps at once: a conv window is nothing but the inputs of
// the visits before, so only the state makes one step wait for another.
#include "conv.cuh"
#include "digest.cuh"
#include "head_norm.cuh"
#include "quad_conv.cuh"
#include "window.hpp"

namespace gdnsim::cuda {
namespace {

constexpr int kGroup = 4;  // channels of a thread
constexpr int kBlock = 128;

template <DType type>
struct Columns {
  ConvWord<type> at[kGroup];
};

template <DType type>
__device__ Columns<type> load_columns(const void* from, std::int64_t at) {
  if constexpr (type == DType::f32) {
    const uint4 w = *reinterpret_cast<const uint4*>(static_cast<const float*>(from) + at);
    return {w.x, w.y, w.z, w.w};
  } else {
    const uint2 w = *reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(from) + at);
    const auto half = [](std::uint32_t x) { return static_cast<std::uint16_t>(x); };
    return {half(w.x), half(w.x >> 16), half(w.y), half(w.y >> 16)};
  }
}

/// x of a flat row as it goes into the window.
template <DType type>
__device__ Columns<type> load_newest(const StepView& s, std::int64_t row, std::int64_t channel) {
  const Columns<DType::bf16> x = load_columns<DType::bf16>(s.in.mixed_qkv, row * s.shape.dim + channel);
  Columns<type> result;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) result.at[i] = conv_word<type>(x.at[i]);
  return result;
}

/// The column that stands `back` before visit number n of a chain: an input, or one the pool had before the window.
template <DType type>
__device__ Columns<type> column_before(const WindowView& w, int chain, int n, int back, std::int64_t channel) {
  const StepView& s = w.step;
  const int at = n - back, columns = s.shape.W - 1;
  if (at >= 0) return load_newest<type>(s, w.visit[w.first[chain] + at], channel);
  return load_columns<type>(s.pool.conv, (1LL * w.block[chain] * columns + columns + at) * s.shape.dim + channel);
}

/// A segment's visits for four channels.
template <Book book, DType type>
__global__ void __launch_bounds__(kBlock) window_conv_kernel(const __grid_constant__ WindowView w) {
  const StepView& s = w.step;
  const std::int64_t channel = kGroup * (1LL * blockIdx.x * kBlock + threadIdx.x);
  if (channel >= s.shape.dim) return;
  const Segment segment = w.segment[blockIdx.y];
  const int W = s.shape.W, n0 = segment.first - w.first[segment.chain];
  Filter filter[kGroup];
  ConvWord<type> window[kGroup][kMaxTaps] = {};
#pragma unroll
  for (int i = 0; i < kGroup; ++i) filter[i] = load_filter(s, channel + i);
#pragma unroll
  for (int j = 0; j < kMaxTaps - 1; ++j) {
    if (j >= W - 1) break;
    const Columns<type> column = column_before<type>(w, segment.chain, n0, W - 1 - j, channel);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) window[i][j] = column.at[i];
  }
  for (int n = 0; n < segment.count; ++n) {
    const std::int64_t row = w.visit[segment.first + n];
    const Columns<type> x = load_newest<type>(s, row, channel);
    std::uint16_t out[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
#pragma unroll
      for (int j = 0; j < kMaxTaps; ++j)
        if (j == W - 1) window[i][j] = x.at[i];
      out[i] = conv_output<book, type>(s, filter[i], window[i]);
#pragma unroll
      for (int j = 0; j + 1 < kMaxTaps; ++j) window[i][j] = window[i][j + 1];
    }
    *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(s.out.conv_out) + row * s.shape.dim + channel) = {
        out[0] | static_cast<std::uint32_t>(out[1]) << 16, out[2] | static_cast<std::uint32_t>(out[3]) << 16};
  }
}

__device__ inline uint2 words_of(const Columns<DType::bf16>& c) {
  return {c.at[0] | static_cast<std::uint32_t>(c.at[1]) << 16, c.at[2] | static_cast<std::uint32_t>(c.at[3]) << 16};
}

/// Does a flat row's step run under triton-sm90-mixed? golden has no such twin.
template <Book book>
__device__ inline bool mixed_in(const WindowView& w, std::int64_t row) {
  return book == Book::triton && w.mixed[row] != 0;
}

/// The same and q and k with it for what models have (QuadConv, K = 128): a warp takes a head of q or k, or as many channels
/// of v, and has the segment's window in registers.
template <Book book>
__global__ void __launch_bounds__(kBlock, 8) window_quad_kernel(const __grid_constant__ WindowView w) {
  constexpr int K = 128;
  const StepView& s = w.step;
  const int part = static_cast<int>(first_warp()), at = part * K + lane_id() * kGroup, H = s.shape.H;
  const bool is_q = part < H, is_key = part < 2 * H;
  if (at >= s.shape.dim) return;  // v may end within a warp
  const Segment segment = w.segment[blockIdx.y];
  const int n0 = segment.first - w.first[segment.chain];
  const auto column = [&](int n, int back) {
    return words_of(column_before<DType::bf16>(w, segment.chain, n, back, at));
  };
  const auto row_of = [&](int n) { return w.visit[segment.first + min(n, segment.count - 1)]; };
  int row = row_of(0), next_row = row_of(1);
  bool mixed = mixed_in<book>(w, row);
  QuadConv conv;
  conv.ask_inputs(s, row, at);
#pragma unroll
  for (int j = 0; j < QuadConv::kTaps - 1; ++j) conv.column[j] = column(n0, QuadConv::kTaps - 1 - j);
#pragma unroll 1
  for (int n = 0; n < segment.count; ++n) {
    // One visit ahead, its row known: no load waits for another.
    const uint2 next = words_of(load_newest<DType::bf16>(s, next_row, at));
    const bool next_mixed = mixed_in<book>(w, next_row);
    const int row_after = row_of(n + 2);
    const uint2 out = conv.outputs<book>(s);
    *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(s.out.conv_out) + 1LL * row * s.shape.dim + at) = out;
    if (is_key) {
      float x[kGroup] = {bf16_low(out.x), bf16_high(out.x), bf16_low(out.y), bf16_high(out.y)};
      norm_head<book>(s, mixed, is_q, x);
      float* to = (is_q ? s.out.q : s.out.k) + (1LL * row * H + (is_q ? part : part - H)) * K;
      reinterpret_cast<float4*>(to)[lane_id()] = {x[0], x[1], x[2], x[3]};
    }
#pragma unroll
    for (int j = 0; j + 1 < QuadConv::kTaps; ++j) conv.column[j] = conv.column[j + 1];
    conv.column[QuadConv::kTaps - 1] = next;
    row = next_row, next_row = row_after, mixed = next_mixed;
  }
}

/// q and k of every flat row's key heads, a warp each.
template <Book book, int K>
__global__ void __launch_bounds__(kBlock) window_keys_kernel(const __grid_constant__ WindowView w) {
  constexpr int N = K / kWarp;
  const StepView& s = w.step;
  const std::int64_t H = s.shape.H, task = first_warp(), row = task / (2 * H), h = task % H;
  if (row >= s.shape.rows || s.in.block[row] < 0) return;
  const bool is_q = task % (2 * H) < H;
  const int at = lane_id() * N;
  std::uint16_t words[N];
  load_words(static_cast<const std::uint16_t*>(s.out.conv_out) + row * s.shape.dim + (is_q ? h : H + h) * K + at,
             words);
  float x[N];
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = f32_from_bf16(words[i]);
  norm_head<book>(s, w.mixed[row] != 0, is_q, x);
  store_words((is_q ? s.out.q : s.out.k) + (row * H + h) * K + at, x);
}

template <DType type>
__global__ void __launch_bounds__(kBlock) window_roll_kernel(const __grid_constant__ WindowView w) {
  const Shape& shape = w.step.shape;
  const std::int64_t channel = kGroup * (1LL * blockIdx.x * kBlock + threadIdx.x);
  if (channel >= shape.dim) return;
  const int chain = static_cast<int>(blockIdx.y), visits = w.first[chain + 1] - w.first[chain];
  auto* pool = static_cast<ConvWord<type>*>(w.step.pool.conv) + 1LL * w.block[chain] * (shape.W - 1) * shape.dim;
  Columns<type> rolled[kMaxTaps - 1];
#pragma unroll
  for (int j = 0; j < kMaxTaps - 1; ++j)  // all read before the first is written
    if (j < shape.W - 1) rolled[j] = column_before<type>(w, chain, visits, shape.W - 1 - j, channel);
#pragma unroll
  for (int j = 0; j < kMaxTaps - 1; ++j)
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (j < shape.W - 1) pool[j * shape.dim + channel + i] = rolled[j].at[i];
}

/// Four words of one column as they are stored.
template <DType type>
__device__ void store_columns(void* to, std::int64_t at, const Columns<type>& c) {
  if constexpr (type == DType::f32)
    *reinterpret_cast<uint4*>(static_cast<float*>(to) + at) = {c.at[0], c.at[1], c.at[2], c.at[3]};
  else
    *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(to) + at) = {
        c.at[0] | static_cast<std::uint32_t>(c.at[1]) << 16, c.at[2] | static_cast<std::uint32_t>(c.at[3]) << 16};
}

/// What four channels add to their column's digest (docs/log-format.md, rules L1-L3).
template <DType type>
__device__ unsigned long long digest_terms(const Columns<type>& c, std::int64_t channel) {
  if constexpr (type == DType::f32)
    return digest_term(c.at[0], c.at[1], channel / 2) + digest_term(c.at[2], c.at[3], channel / 2 + 1);
  else
    return digest_term(c.at[0] | static_cast<std::uint32_t>(c.at[1]) << 16,
                       c.at[2] | static_cast<std::uint32_t>(c.at[3]) << 16, channel / 4);
}

/// One column of one slot.
template <DType type>
__global__ void __launch_bounds__(kBlock) window_look_kernel(const __grid_constant__ WindowView w) {
  __shared__ unsigned long long sums[kBlock / kWarp];
  const Shape& shape = w.step.shape;
  const int slot = static_cast<int>(blockIdx.x), j = static_cast<int>(blockIdx.y);
  const Slot at = w.slot[slot];
  unsigned long long sum = 0;
  for (std::int64_t channel = kGroup * threadIdx.x; channel < shape.dim; channel += kGroup * kBlock) {
    const Columns<type> column = column_before<type>(w, at.chain, at.visits, shape.W - 1 - j, channel);
    sum += digest_terms<type>(column, channel);
    if (w.bytes[slot] != 0)
      store_columns<type>(w.kept_conv, (1LL * slot * (shape.W - 1) + j) * shape.dim + channel, column);
  }
#pragma unroll
  for (int mask = 16; mask >= 1; mask /= 2) sum += __shfl_xor_sync(kAllLanes, sum, mask);
  if (lane_id() == 0) sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kBlock / kWarp; ++i) sum += sums[i];
  atomicAdd(w.convs + slot, static_cast<unsigned long long>(mix(sum + (j + 1ull) * kDigestC)));
}

dim3 conv_grid(const WindowView& w, int tasks) {
  const std::int64_t per_block = kGroup * kBlock;
  return {static_cast<unsigned>((w.step.shape.dim + per_block - 1) / per_block), static_cast<unsigned>(tasks)};
}

template <Book book, int K>
void launch_keys(const WindowView& w) {
  const std::int64_t warps = w.step.shape.rows * w.step.shape.H * 2, each = kBlock / kWarp;
  window_keys_kernel<book, K><<<static_cast<unsigned>((warps + each - 1) / each), kBlock, 0, w.step.stream>>>(w);
  GDNSIM_CUDA(cudaGetLastError());
}

template <Book book>
void prepare(const WindowView& w) {
  const Shape& shape = w.step.shape;
  if (shape.K == 128 && shape.W == QuadConv::kTaps && shape.conv_type == DType::bf16) {
    window_quad_kernel<book><<<conv_grid(w, w.segments), kBlock, 0, w.step.stream>>>(w);
    return GDNSIM_CUDA(cudaGetLastError());
  }
  const auto conv = w.step.shape.conv_type == DType::f32 ? window_conv_kernel<book, DType::f32>
                                                         : window_conv_kernel<book, DType::bf16>;
  conv<<<conv_grid(w, w.segments), kBlock, 0, w.step.stream>>>(w);
  GDNSIM_CUDA(cudaGetLastError());
  switch (w.step.shape.K) {
    case 32:
      return launch_keys<book, 32>(w);
    case 64:
      return launch_keys<book, 64>(w);
    case 128:
      return launch_keys<book, 128>(w);
    case 256:
      return launch_keys<book, 256>(w);
    default:
      throw error("cuda: the resident kernels have no K ", w.step.shape.K);
  }
}

}  // namespace

void launch_window_prepare(const WindowView& w) {
  if (w.segments == 0) return;
  w.golden ? prepare<Book::golden>(w) : prepare<Book::triton>(w);
  launch_gates(w.step);
}

void launch_window_roll(const WindowView& w) {
  if (w.chains == 0) return;
  const auto roll =
      w.step.shape.conv_type == DType::f32 ? window_roll_kernel<DType::f32> : window_roll_kernel<DType::bf16>;
  roll<<<conv_grid(w, w.chains), kBlock, 0, w.step.stream>>>(w);
  GDNSIM_CUDA(cudaGetLastError());
}

void launch_window_looks(const WindowView& w) {
  if (w.slots == 0) return;
  const dim3 grid(static_cast<unsigned>(w.slots), static_cast<unsigned>(w.step.shape.W - 1));
  const auto look =
      w.step.shape.conv_type == DType::f32 ? window_look_kernel<DType::f32> : window_look_kernel<DType::bf16>;
  look<<<grid, kBlock, 0, w.step.stream>>>(w);
  GDNSIM_CUDA(cudaGetLastError());
}

}  // namespace gdnsim::cuda
