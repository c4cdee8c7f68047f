// The decode step of many rows in two launches: first q and k (golden's normed, Triton's as words and a factor), v, decay and beta
// of every head, then the recurrence, in which each warp has a few rows of the state in registers, straight from memory and back.
// The rows of the pool are taken in the order of their addresses by warps that wait for nobody: that is what this memory likes
// best (stream_rate.cu). Same bits as the fused kernel, which is quicker with one row of few heads.

#include <bit>

#include "bulk.cuh"
#include "fused.hpp"
#include "head_norm.cuh"
#include "quad_conv.cuh"

namespace gdnsim::cuda {
namespace {

constexpr int K = 128;

// ---- q, k, v, decay, beta ----

constexpr int kPrepareWarps = 4;   // of a block at most
constexpr int kQuad = 4;           // channels of a thread
constexpr std::int64_t kFew = 16;  // rows

/// Warps of a block. golden's take long and unevenly: smaller blocks, which are gone sooner, make a step of 64 rows 1 %
/// shorter. With up to 16 rows, and from 256 on, they are no better, nor under Triton, where their number costs 1 %.
int prepare_warps(const FusedView& f) {
  return f.golden && f.windows_stay && f.step.shape.rows > kFew ? kPrepareWarps / 2 : kPrepareWarps;
}

// How q and k wait for the recurrence. golden: normed and scaled, as f32, for its division takes too long to be done again by
// every block. Triton: the conv's own words, half as many bytes, and a factor for each head, which costs next to nothing.

/// Triton's words of q's and k's heads, [2H, K] of a row, in the place of q.
__device__ std::uint16_t* keys_of(const StepView& s, std::int64_t row) {
  return reinterpret_cast<std::uint16_t*>(s.out.q) + row * 2 * s.shape.H * K;
}
/// Their factors, [2H] of a row, in the place of k.
__device__ float* factors_of(const StepView& s, std::int64_t row) { return s.out.k + row * 2 * s.shape.H; }

/// Where v waits for the recurrence, as bf16: in conv_out when somebody wants that, else in u.
__device__ std::uint16_t* values_of(const StepView& s, std::int64_t row) {
  if (s.out.conv_out == nullptr) return reinterpret_cast<std::uint16_t*>(s.out.u) + row * s.shape.HV * s.shape.V;
  return static_cast<std::uint16_t*>(s.out.conv_out) + row * s.shape.dim + 2LL * s.shape.H * K;
}

/// Windows that stay in the cache until the next step.
struct StayingConv : QuadConv {
  __device__ void ask_window(const StepView& s, std::int64_t block, std::int64_t at) {
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) column[j] = load_staying(pool(s, block, j, at), staying_policy());
  }
  __device__ void roll(const StepView& s, std::int64_t block, std::int64_t at) const {
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) store_staying(pool(s, block, j, at), column[j + 1], staying_policy());
  }
};

/// One warp: what the conv gave for a head of q or, from part H on, of k.
template <Book book>
__device__ void make_head(const FusedView& f, std::int64_t row, int part, uint2 words) {
  const StepView& s = f.step;
  float x[kQuad] = {bf16_low(words.x), bf16_high(words.x), bf16_low(words.y), bf16_high(words.y)};
  if constexpr (book == Book::golden) {
    const bool is_q = part < s.shape.H;
    norm_head<book>(s, f.mixed, is_q, x);
    float* to = (is_q ? s.out.q : s.out.k) + (row * s.shape.H + (is_q ? part : part - s.shape.H)) * K;
    store_staying(reinterpret_cast<uint4*>(to) + lane_id(), pack<DType::f32>(x), staying_policy());
  } else {
    store_staying(reinterpret_cast<uint2*>(keys_of(s, row) + part * K) + lane_id(), words, staying_policy());
    const float factor = head_factor(s, f.mixed, x);
    if (lane_id() == 0) factors_of(s, row)[part] = factor;
  }
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
    if (s.out.conv_out == nullptr)
      store_staying(reinterpret_cast<uint2*>(values_of(s, row) + (at - first_value)), out, staying_policy());
    return;
  }
  if (block >= 0) make_head<book>(f, row, part, out);
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
  const int part = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / kWarp),
            channels = channel_parts(f.step.shape);
  const std::int64_t row = blockIdx.y;
  if (part >= all_parts(f.step.shape)) return;
  part < channels ? make_channels<book, Conv>(f, row, part) : make_gates<book>(f, row, (part - channels) * kWarp);
}

// ---- the recurrence ----

constexpr int kRows = 4;  // that a warp folds together

/// What a block takes: four kilobytes, eight rows of 512 bytes by two warps or sixteen of 256 by one.
template <Book book, DType type>
struct Tile {
  using L = Layout<type, K>;
  using Dot = RowDot<book, type, K>;
  static constexpr int kWarps = type == DType::f32 ? 2 : 1, kSets = 2 / kWarps;
  static constexpr int kTile = kSets * kRows * L::kAside;  // rows of a warp
  static constexpr int kStride = L::kAside * L::kVectors;  // from a lane's vector to its next

  /// This lane's vectors of a tile, from its first on.
  static __device__ void load(const uint4* words, uint4 (&to)[kSets][kRows]) {
#pragma unroll
    for (int set = 0; set < kSets; ++set)
#pragma unroll
      for (int r = 0; r < kRows; ++r) to[set][r] = __ldcg(words + (set * kRows + r) * kStride);
  }
  /// This lane's elements of q's or k's head h.
  static __device__ void load_key(const StepView& s, std::int64_t row, int h, bool is_q, float (&to)[L::kEach]) {
    if constexpr (book == Book::golden)
      load_normed((is_q ? s.out.q : s.out.k) + (row * s.shape.H + h) * K, to);
    else
      load_words_of_key(s, row, is_q ? h : s.shape.H + h, to);
    if (book != Book::golden && is_q)
#pragma unroll
      for (int i = 0; i < L::kEach; ++i) to[i] = __fmul_rn(s.shape.scale, to[i]);
  }
  static __device__ void load_normed(const float* key, float (&to)[L::kEach]) {
#pragma unroll
    for (int i = 0; i < L::kEach / 4; ++i) {
      float quad[4];
      unpack<DType::f32>(load_staying(reinterpret_cast<const uint4*>(key + L::element(0)) + i, staying_policy()), quad);
#pragma unroll
      for (int j = 0; j < 4; ++j) to[4 * i + j] = quad[j];
    }
  }
  static __device__ void load_words_of_key(const StepView& s, std::int64_t row, int head, float (&to)[L::kEach]) {
    const std::uint16_t* from = keys_of(s, row) + head * K + L::element(0);
    if constexpr (L::kEach == 8) {
      unpack<DType::bf16>(load_staying(reinterpret_cast<const uint4*>(from), staying_policy()), to);
    } else {
      const uint2 words = load_staying(reinterpret_cast<const uint2*>(from), staying_policy());
      to[0] = bf16_low(words.x), to[1] = bf16_high(words.x), to[2] = bf16_low(words.y), to[3] = bf16_high(words.y);
    }
    const float factor = factors_of(s, row)[head];
#pragma unroll
    for (int i = 0; i < L::kEach; ++i) to[i] = __fmul_rn(factor, to[i]);
  }
  /// The row, within a set, whose sums this lane has.
  static __device__ int row_of(int set) {
    return (set * kRows + folded_row<kRows>(Dot::kMask)) * L::kAside + L::aside();
  }

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
      const float row_u = of_row<kRows>(u, r, Dot::kMask, L::kThreads);
#pragma unroll
      for (int i = 0; i < L::kEach; ++i) S[r][i] = updated<book>(k[i], row_u, S[r][i]);
      __stcg(to + r * kStride, pack<type>(S[r]));
    }
    return Dot::of(S, q);
  }
};

/// Blocks that a multiprocessor has at a time: as many as there are registers for.
template <Book book, DType type>
constexpr int kBlocks = type == DType::f32&& book == Book::triton    ? 24
                        : type == DType::bf16&& book == Book::golden ? 16
                                                                     : 20;

/// Three more for Triton's bf16 state, held to fewer registers, make a step of 1,024 rows 0.4 % shorter and one of 16 rows 4 %
/// longer.
constexpr int kMostBlocks = 23;
constexpr std::int64_t kMany = 512;  // rows

template <Book book, DType type, int blocks>
__global__ void __launch_bounds__(Tile<book, type>::kWarps* kWarp, blocks)
    streamed_kernel(const __grid_constant__ FusedView f) {
  using T = Tile<book, type>;
  using L = typename T::L;
  constexpr int kSets = T::kSets;
  const StepView& s = f.step;
  // No division: tiles are a power of two, and what shares a key head lies side by side.
  const int h = static_cast<int>(blockIdx.y), hv = h * f.sharing + static_cast<int>(blockIdx.x >> f.tile_bits);
  const int tile = static_cast<int>(blockIdx.x & ((1u << f.tile_bits) - 1));
  const int first = (tile * T::kWarps + static_cast<int>(threadIdx.x) / kWarp) * T::kTile;
  const std::int64_t row = blockIdx.z, head = row * s.shape.HV + hv;
  const std::int64_t block = s.in.block[row];
  let_next_grid_begin();
  uint4* words =
      static_cast<uint4*>(s.pool.recurrent) + ((block * s.shape.HV + hv) * s.shape.V + first) * L::kVectors + lane_id();
  uint4 mine[kSets][kRows] = {};
  if (block >= 0) T::load(words, mine);  // the grid before does not touch it, and the one before that has ended
  wait_for_previous_grid();

  const std::uint16_t* values = values_of(s, row) + hv * s.shape.V + first;
  auto* core_out = static_cast<std::uint16_t*>(s.out.core_out) + head * s.shape.V + first;
  float k[L::kEach], q[L::kEach], decay = 0, beta = 0;
  if (block >= 0) {
    T::load_key(s, row, h, false, k), T::load_key(s, row, h, true, q);
    decay = s.out.decay[head], beta = s.out.beta[head];
  }
#pragma unroll
  for (int set = 0; set < kSets; ++set) {
    float out = 0;
    if (block >= 0)
      out = T::step(mine[set], words + set * kRows * T::kStride, k, q, f32_from_bf16(values[T::row_of(set)]), decay,
                    beta);
    if (speaks_for_row<kRows>(T::Dot::kMask, L::kThreads)) core_out[T::row_of(set)] = bf16_word(out);
  }
}

// ---- launching ----

template <Book book, DType type, int blocks = kBlocks<book, type>>
void launch_recurrence(FusedView f) {
  using T = Tile<book, type>;
  const Shape& shape = f.step.shape;
  const auto tiles = static_cast<unsigned>(shape.V / (T::kWarps * T::kTile));
  f.sharing = shape.HV / shape.H, f.tile_bits = std::countr_zero(tiles);
  const dim3 grid(tiles * static_cast<unsigned>(f.sharing), shape.H, static_cast<unsigned>(shape.rows));
  launch_early(+streamed_kernel<book, type, blocks>, grid, T::kWarps * kWarp, 0, f.step.stream, f);
}

template <Book book>
void launch_prepare(const FusedView& f) {
  const Shape& shape = f.step.shape;
  const int warps = prepare_warps(f);
  const dim3 grid((all_parts(shape) + warps - 1) / warps, static_cast<unsigned>(shape.rows));
  const auto kernel = shape.conv_type == DType::f32 ? streamed_prepare_kernel<book, AnyConv<DType::f32>>
                      : shape.W != QuadConv::kTaps  ? streamed_prepare_kernel<book, AnyConv<DType::bf16>>
                      : f.windows_stay              ? streamed_prepare_kernel<book, StayingConv>
                                                    : streamed_prepare_kernel<book, QuadConv>;
  launch_early(kernel, grid, warps * kWarp, 0, f.step.stream, f);
}

template <Book book>
void launch_both(const FusedView& f) {
  launch_prepare<book>(f);
  if (f.step.shape.state_type == DType::f32) return launch_recurrence<book, DType::f32>(f);
  if constexpr (book == Book::triton)
    if (f.step.shape.rows >= kMany) return launch_recurrence<book, DType::bf16, kMostBlocks>(f);
  launch_recurrence<book, DType::bf16>(f);
}

}  // namespace

/// Where it is quicker than the fused kernel, as measured on an H200: from one row of 32 heads on.
bool streams(const Shape& shape, int major) { return major >= 9 && shape.K == K && shape.rows <= kMostStreamed; }

bool windows_stay(const Shape& shape, std::size_t cache_bytes) {
  return static_cast<std::size_t>(shape.rows * (shape.W - 1) * shape.dim) * size_of(shape.conv_type) <= cache_bytes / 8;
}

void launch_streamed(const FusedView& f) {
  if (f.step.shape.rows == 0) return;
  f.golden ? launch_both<Book::golden>(f) : launch_both<Book::triton>(f);
}

}  // namespace gdnsim::cuda
