// The decode step of many rows in two launches: first q, k, v, decay and beta of every head, then the recurrence, in which
// each warp has a few rows of the state in registers, straight from memory and back. The rows of the pool are taken in the
// order of their addresses by warps that wait for nobody: that is what this memory likes best (stream_rate.cu). Same bits as
// the fused kernel, which is quicker with few rows.

#include "bulk.cuh"
#include "fused.hpp"
#include "head_norm.cuh"
#include "quad_conv.cuh"

namespace gdnsim::cuda {
namespace {

constexpr int K = 128;

// ---- q, k, v, decay, beta ----

constexpr int kPrepareWarps = 4;  // of a block
constexpr int kQuad = 4;          // channels of a thread

/// Where v waits for the recurrence, as bf16: in conv_out when somebody wants that, else in u.
__device__ std::uint16_t* values_of(const StepView& s, std::int64_t row) {
  if (s.out.conv_out == nullptr) return reinterpret_cast<std::uint16_t*>(s.out.u) + row * s.shape.HV * s.shape.V;
  return static_cast<std::uint16_t*>(s.out.conv_out) + row * s.shape.dim + 2LL * s.shape.H * K;
}

/// One warp: 128 channels of the conv, a head of q or k or as much of v.
template <Book book, class Conv>
__device__ void make_channels(const FusedView& f, std::int64_t row, int part) {
  const StepView& s = f.step;
  const std::int64_t block = s.in.block[row];
  const int at = part * K + lane_id() * kQuad, first_value = 2 * s.shape.H * K;
  const bool mine = at < s.shape.dim;  // v may end within a warp
  Conv conv;
  if (mine) conv.ask_inputs(s, row, at);
  wait_for_previous_grid();
  let_next_grid_begin();
  uint2 out{};
  if (block >= 0 && mine) {
    conv.ask_window(s, block, at);
    out = conv.template outputs<book>(s);
    conv.roll(s, block, at);
  }
  if (!mine) return;  // of v alone, which is not normed
  if (s.out.conv_out != nullptr)
    *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(s.out.conv_out) + row * s.shape.dim + at) = out;
  if (at >= first_value) {
    if (s.out.conv_out == nullptr) *reinterpret_cast<uint2*>(values_of(s, row) + (at - first_value)) = out;
    return;
  }
  if (block < 0) return;
  const bool is_q = part < s.shape.H;
  float x[kQuad] = {bf16_low(out.x), bf16_high(out.x), bf16_low(out.y), bf16_high(out.y)};
  norm_head<book>(s, f.mixed, is_q, x);
  float* to = (is_q ? s.out.q : s.out.k) + (row * s.shape.H + (is_q ? part : part - s.shape.H)) * K;
  reinterpret_cast<float4*>(to)[lane_id()] = {x[0], x[1], x[2], x[3]};
}

/// One warp: decay and beta of 32 value heads.
template <Book book>
__device__ void make_gates(const FusedView& f, std::int64_t row, int first) {
  const StepView& s = f.step;
  const int head = first + lane_id();
  float decay = 0, beta = 0;
  if (head < s.shape.HV) decay = decay_factor<book>(s, row, head), beta = beta_factor<book>(s, row, head);
  wait_for_previous_grid();
  let_next_grid_begin();
  if (head >= s.shape.HV) return;
  s.out.decay[row * s.shape.HV + head] = decay;
  s.out.beta[row * s.shape.HV + head] = beta;
}

__host__ __device__ constexpr int channel_parts(const Shape& shape) {
  return static_cast<int>((shape.dim + K - 1) / K);
}
__host__ __device__ constexpr int all_parts(const Shape& shape) {
  return channel_parts(shape) + (shape.HV + kWarp - 1) / kWarp;
}

/// The next grid may begin when the last blocks of this one know that the grid before has ended: so it may read the pool.
template <Book book, class Conv>
__global__ void __launch_bounds__(kPrepareWarps* kWarp) streamed_prepare_kernel(const __grid_constant__ FusedView f) {
  const unsigned parts = all_parts(f.step.shape), warp = blockIdx.x * kPrepareWarps + threadIdx.x / kWarp;
  const unsigned row = warp / parts;
  const int part = static_cast<int>(warp - row * parts), channels = channel_parts(f.step.shape);
  if (row >= f.step.shape.rows) return;
  part < channels ? make_channels<book, Conv>(f, row, part) : make_gates<book>(f, row, (part - channels) * kWarp);
}

// ---- the recurrence ----

constexpr int kSets = 2;

/// What a warp takes: four kilobytes, two times four rows of 512 or eight of 256 bytes.
template <Book book, DType type>
struct Tile {
  using L = Layout<type, K>;
  using Dot = RowDot<book, type, K>;
  static constexpr int kTile = kSets * kRows * L::kAside;
  static constexpr int kStride = L::kAside * L::kVectors;  // from a lane's vector to its next

  /// This lane's vectors of a tile, from its first on.
  static __device__ void load(const uint4* words, uint4 (&to)[kSets][kRows]) {
#pragma unroll
    for (int set = 0; set < kSets; ++set)
#pragma unroll
      for (int r = 0; r < kRows; ++r) to[set][r] = __ldcg(words + (set * kRows + r) * kStride);
  }
  static __device__ void load_key(const float* key, float (&to)[L::kEach]) {
#pragma unroll
    for (int i = 0; i < L::kEach / 4; ++i) {
      const float4 quad = reinterpret_cast<const float4*>(key + L::element(0))[i];
      to[4 * i] = quad.x, to[4 * i + 1] = quad.y, to[4 * i + 2] = quad.z, to[4 * i + 3] = quad.w;
    }
  }
  /// The row, within a set, whose sums this lane has.
  static __device__ int row_of(int set) { return (set * kRows + folded_row(Dot::kMask)) * L::kAside + L::aside(); }

  /// One set of rows, stored where it came from. Returns core_out of the lane's row.
  static __device__ float step(const uint4 (&words)[kRows], uint4* to, const float (&k)[L::kEach],
                               const float (&q)[L::kEach], float v, float decay, float beta) {
    float S[kRows][L::kEach];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      unpack<type>(words[r], S[r]);
#pragma unroll
      for (int i = 0; i < L::kEach; ++i) S[r][i] = __fmul_rn(decay, S[r][i]);
    }
    const float u = __fmul_rn(__fsub_rn(v, Dot::of(S, k)), beta);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float row_u = of_row(u, r, Dot::kMask, L::kThreads);
#pragma unroll
      for (int i = 0; i < L::kEach; ++i) S[r][i] = updated<book>(k[i], row_u, S[r][i]);
      __stcs(to + r * kStride, pack<type>(S[r]));
    }
    return Dot::of(S, q);
  }
};

/// Blocks of one warp each that a multiprocessor has at a time: as many as there are registers for.
template <Book book, DType type>
constexpr int kBlocks = type == DType::f32     ? 24
                        : book == Book::triton ? 20
                                               : 16;

template <Book book, DType type>
__global__ void __launch_bounds__(kWarp, kBlocks<book, type>) streamed_kernel(const __grid_constant__ FusedView f) {
  using T = Tile<book, type>;
  using L = typename T::L;
  const StepView& s = f.step;
  const unsigned tiles = s.shape.V / T::kTile, head = blockIdx.x / tiles, row = head / s.shape.HV;
  const unsigned hv = head - row * s.shape.HV;
  const int first = static_cast<int>(blockIdx.x - head * tiles) * T::kTile;
  const std::int64_t block = s.in.block[row];
  let_next_grid_begin();
  uint4* words =
      static_cast<uint4*>(s.pool.recurrent) + ((block * s.shape.HV + hv) * s.shape.V + first) * L::kVectors + lane_id();
  uint4 mine[kSets][kRows] = {};
  if (block >= 0) T::load(words, mine);  // the grid before does not touch it, and the one before that has ended
  wait_for_previous_grid();

  const std::int64_t key = (1LL * row * s.shape.H + hv / (s.shape.HV / s.shape.H)) * K;
  const std::uint16_t* values = values_of(s, row) + hv * s.shape.V + first;
  auto* core_out = static_cast<std::uint16_t*>(s.out.core_out) + 1LL * head * s.shape.V + first;
  float k[L::kEach], q[L::kEach], decay = 0, beta = 0;
  if (block >= 0) {
    T::load_key(s.out.k + key, k), T::load_key(s.out.q + key, q);
    decay = s.out.decay[head], beta = s.out.beta[head];
  }
#pragma unroll
  for (int set = 0; set < kSets; ++set) {
    float out = 0;
    if (block >= 0)
      out = T::step(mine[set], words + set * kRows * T::kStride, k, q, f32_from_bf16(values[T::row_of(set)]), decay,
                    beta);
    if (speaks_for_row(T::Dot::kMask, L::kThreads)) core_out[T::row_of(set)] = bf16_word(out);
  }
}

// ---- launching ----

template <Book book, DType type>
void launch_recurrence(const FusedView& f) {
  const Shape& shape = f.step.shape;
  launch_early(+streamed_kernel<book, type>, shape.rows * shape.HV * (shape.V / Tile<book, type>::kTile), kWarp, 0,
               f.step.stream, f);
}

template <Book book>
void launch_prepare(const FusedView& f) {
  const Shape& shape = f.step.shape;
  const std::int64_t warps = shape.rows * all_parts(shape), blocks = (warps + kPrepareWarps - 1) / kPrepareWarps;
  const auto kernel = shape.conv_type == DType::f32 ? streamed_prepare_kernel<book, AnyConv<DType::f32>>
                      : shape.W == QuadConv::kTaps  ? streamed_prepare_kernel<book, QuadConv>
                                                    : streamed_prepare_kernel<book, AnyConv<DType::bf16>>;
  launch_early(kernel, blocks, kPrepareWarps * kWarp, 0, f.step.stream, f);
}

template <Book book>
void launch_both(const FusedView& f) {
  launch_prepare<book>(f);
  f.step.shape.state_type == DType::f32 ? launch_recurrence<book, DType::f32>(f)
                                        : launch_recurrence<book, DType::bf16>(f);
}

}  // namespace

/// Where it is quicker than the fused kernel, as measured on an H200: from one row of 32 heads on.
bool streams(const Shape& shape, int major) { return major >= 9 && shape.K == K; }

void launch_streamed(const FusedView& f) {
  if (f.step.shape.rows == 0) return;
  f.golden ? launch_both<Book::golden>(f) : launch_both<Book::triton>(f);
}

}  // namespace gdnsim::cuda
