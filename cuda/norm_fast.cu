// The gated norm at the speed of the memory (docs/arithmetic.md, rules A2.6, N1-N4), for the presets, bf16 and V of 32, 64,
// 128 or 256: sixteen bytes a thread, four rows one behind another and as many side by side as a warp has room for.
#include "bulk.cuh"
#include "fold.cuh"
#include "norm_fast.hpp"
#include "norm_row.cuh"

namespace gdnsim::cuda {
namespace {

constexpr int kBlock = 64;  // small: a block ends when its last doubt is settled
constexpr int kRows = 4;    // that a warp folds together

/// The sum of squares of each lane's folded row. kLane: the contract's consecutive elements a lane; 0: golden's chunks.
template <int V, int kLane>
struct Squares {
  using L = Layout<DType::bf16, V>;
  static constexpr int kMask = L::kThreads / 2;
  static constexpr int kLanes = L::kVec / kLane;  // of the contract, in one thread

  static __device__ float of(const float (&x)[kRows][L::kVec]) {
    float lane[kRows][kLanes], sum[kLanes];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        const float* first = x[r] + i * kLane;
        if constexpr (kLane == 1)
          lane[r][i] = __fmul_rn(*first, *first);
        else
          lane[r][i] = fma_lane<kLane>(first, first);
      }
    fold_rows(lane, kMask, sum);
#pragma unroll
    for (int mask = kMask / kRows; mask >= 1; mask /= 2)
#pragma unroll
      for (int i = 0; i < kLanes; ++i) sum[i] = __fadd_rn(sum[i], exchanged(sum[i], mask));
    return vector_sum<kLanes>(sum);
  }
};

template <int V>
struct Squares<V, 0> {
  using L = Layout<DType::bf16, V>;
  using Dot = RowDot<Book::golden, DType::bf16, V>;
  static constexpr int kMask = Dot::kMask;

  static __device__ float of(const float (&x)[kRows][L::kVec]) {
    float square[kRows][L::kVec];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < L::kVec; ++i) square[r][i] = __fmul_rn(x[r][i], x[r][i]);
    return Dot::of_products(square);
  }
};

template <Book book>
__device__ float rstd_of(const StepView& s, float sum) {
  return cuda::rstd_of(rules_in<book>(), s.rules.rstd, sum, s.shape.V, s.shape.norm_eps);
}

/// The magnitudes, as bf16 words, for which the quick sigmoid will do. golden: 2^-60, below which z * sigmoid(z) may be
/// denormal, to kQuick; Triton: up to kUnscaled.
template <Book book>
constexpr std::uint32_t kLow = book == Book::golden ? 0x2180 : 0;
template <Book book>
constexpr std::uint32_t kHigh = book == Book::golden ? 0x4220 : 0x42AE;

__device__ inline bool both_at_most(std::uint32_t pair, std::uint32_t most) {
  return (pair & 0xFFFFu) <= most && pair >> 16 <= most;
}

/// True when all eight words of z lie there.
template <Book book>
__device__ inline bool all_quick(const uint4& z) {
  const std::uint32_t word[4] = {z.x, z.y, z.z, z.w};
  std::uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)  // wraps below the lowest
    most = __viaddmax_u16x2(word[i] & 0x7FFF7FFFu, (0x10000u - kLow<book>) % 0x10000u * 0x10001u, most);
  return both_at_most(most, kHigh<book> - kLow<book>);
}

/// True when every one of eight results is certain in bf16: as certain_in_bf16, two at a time.
__device__ inline bool all_certain(const float (&y)[8]) {
  std::uint32_t least = 0xFFFFFFFFu;
#pragma unroll
  for (int i = 0; i < 8; i += 2)
    least =
        __viaddmin_u16x2(__byte_perm(bits_of(y[i]), bits_of(y[i + 1]), 0x5410), (0x8000u + kSlack) * 0x10001u, least);
  return (least & 0xFFFFu) > 2 * kSlack && least >> 16 > 2 * kSlack;
}

template <Book book>
__device__ inline bool doubtful(float z, float y) {
  const std::uint32_t word = bits_of(z) >> 16 & 0x7FFFu;
  const bool quick = word - kLow<book> <= kHigh<book> - kLow<book> || (book == Book::golden && word == 0);
  return !quick || (book == Book::golden && !certain_in_bf16(y));
}

/// Word i of eight; registers have no index.
__device__ inline std::uint16_t word_of(const uint4& words, int i) {
  const std::uint32_t low = i < 2 ? words.x : words.y, high = i < 6 ? words.z : words.w, pair = i < 4 ? low : high;
  return static_cast<std::uint16_t>(i % 2 == 0 ? pair : pair >> 16);
}

/// The elements of a block of threads that need the exact way. They wait until the end, when as many threads take one each:
/// in the midst of the others each would hold up a warp.
template <int V>
struct Doubts {
  static constexpr int kElements = kBlock * kRows * 8;  // of a block
  static constexpr int kMost = 128;
  struct Doubt {
    float scaled;  // all but the gate
    std::uint16_t z, element;
  };

  unsigned count;  // beyond kMost all elements are taken
  Doubt doubt[kMost];
  float rstd[kElements / V];

  __device__ void add(const Doubt& one) {
    const unsigned n = atomicAdd(&count, 1u);
    if (n < kMost) doubt[n] = one;
  }
  /// One element as the contract says, to where it belongs.
  template <Book book>
  __device__ static void settle(const StepView& s, std::int64_t first, const Doubt& one) {
    const float z = f32_from_bf16(one.z);
    const float y = __fmul_rn(one.scaled, gate_of(s.shape.gate_silu, z, exact_sigmoid<book>(z)));
    static_cast<std::uint16_t*>(s.out.norm_out)[first + one.element] = bf16_word(y);
  }
  /// From memory: what `count` had no room for. Sums and roots are those of the rows, as before.
  __device__ Doubt again(const StepView& s, std::int64_t first, int element) const {
    const float o = load(DType::bf16, s.out.core_out, first + element),
                weight = load(DType::bf16, s.params.norm_weight, element % V);
    return {__fmul_rn(__fmul_rn(o, rstd[element / V]), weight),
            static_cast<const std::uint16_t*>(s.in.z)[first + element], static_cast<std::uint16_t>(element)};
  }
  /// `first`: the block's first element. All threads call it, after their last `add`.
  template <Book book>
  __device__ void settle_all(const StepView& s, std::int64_t first, std::int64_t end) const {
    __syncthreads();
    const int i = static_cast<int>(threadIdx.x);
    if (count <= kMost) {
#pragma unroll 1
      for (int n = i; n < static_cast<int>(count); n += kBlock) settle<book>(s, first, doubt[n]);
    } else {
#pragma unroll 1
      for (int n = i; n < kElements && first + n < end; n += kBlock) settle<book>(s, first, again(s, first, n));
    }
  }
};

/// Finishes and stores a thread's 16 bytes of one row, which begin with element `which` of the block.
template <Book book, int V>
__device__ void finish_vector(const StepView& s, const uint4& o_words, const uint4& z_words, const float (&weight)[8],
                              float rstd, std::int64_t at, int which, Doubts<V>& doubts) {
  float o[8], z[8], y[8];
  unpack<DType::bf16>(o_words, o);
  unpack<DType::bf16>(z_words, z);
  const auto scaled = [&](float o, float weight) { return __fmul_rn(__fmul_rn(o, rstd), weight); };
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float sigma = book == Book::golden ? quick_sigmoid_of_bf16(z[i]) : unscaled_sigmoid(z[i]);
    y[i] = __fmul_rn(scaled(o[i], weight[i]), gate_of(s.shape.gate_silu, z[i], sigma));
  }
  __stcg(reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(s.out.norm_out) + at), pack<DType::bf16>(y));
  if (all_quick<book>(z_words) && (book == Book::triton || all_certain(y))) return;
  unsigned mask = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) mask |= static_cast<unsigned>(doubtful<book>(z[i], y[i])) << i;
#pragma unroll 1
  for (; mask != 0; mask &= mask - 1) {
    const int i = __ffs(static_cast<int>(mask)) - 1;
    float w = weight[0];
#pragma unroll
    for (int n = 1; n < 8; ++n) w = n == i ? weight[n] : w;
    doubts.add(
        {scaled(f32_from_bf16(word_of(o_words, i)), w), word_of(z_words, i), static_cast<std::uint16_t>(which + i)});
  }
}

template <Book book, int V, int kLane>
__global__ void __launch_bounds__(kBlock, 14) norm_kernel(const __grid_constant__ StepView s) {
  using L = Layout<DType::bf16, V>;
  using Sum = Squares<V, kLane>;
  __shared__ Doubts<V> doubts;
  const std::int64_t rows = s.shape.rows * s.shape.HV, first = first_warp() * kRows * L::kAside;
  let_next_grid_begin();
  if (threadIdx.x == 0) doubts.count = 0;
  const int column = L::element(0);
  const auto* core_out = static_cast<const std::uint16_t*>(s.out.core_out) + column;
  const auto* z_in = static_cast<const std::uint16_t*>(s.in.z) + column;
  float weight[8];
  unpack<DType::bf16>(
      __ldg(reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(s.params.norm_weight) + column)), weight);
  wait_for_previous_grid();
  uint4 o_words[kRows], z_words[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t row = first + r * L::kAside + L::aside();
    o_words[r] = z_words[r] = uint4{};
    if (row >= rows) continue;
    o_words[r] = __ldcg(reinterpret_cast<const uint4*>(core_out + row * V));
    z_words[r] = __ldcg(reinterpret_cast<const uint4*>(z_in + row * V));
  }
  __syncthreads();  // the queue is empty
  float o[kRows][8];
#pragma unroll
  for (int r = 0; r < kRows; ++r) unpack<DType::bf16>(o_words[r], o[r]);
  const float rstd = rstd_of<book>(s, Sum::of(o));
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * kRows * L::kAside + L::aside();  // of the block
  const std::int64_t mine = first + folded_row<kRows>(Sum::kMask) * L::kAside + L::aside();
  if (speaks_for_row<kRows>(Sum::kMask, L::kThreads)) {
    doubts.rstd[warp_row + folded_row<kRows>(Sum::kMask) * L::kAside] = rstd;
    if (s.out.rstd != nullptr && mine < rows) s.out.rstd[mine] = rstd;
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t row = first + r * L::kAside + L::aside();
    const float rstd_row = of_row<kRows>(rstd, r, Sum::kMask, L::kThreads);
    if (row < rows)
      finish_vector<book, V>(s, o_words[r], z_words[r], weight, rstd_row, row * V + column,
                             (warp_row + r * L::kAside) * V + column, doubts);
  }
  doubts.template settle_all<book>(s, (first_warp() - threadIdx.x / kWarp) * kRows * L::kAside * V, rows * V);
}

template <Book book, int V, int kLane>
void launch_one(const StepView& s) {
  const std::int64_t rows = s.shape.rows * s.shape.HV;
  const int each = kRows * Layout<DType::bf16, V>::kAside * (kBlock / kWarp);
  launch_early(norm_kernel<book, V, kLane>, (rows + each - 1) / each, kBlock, 0, s.stream, s);
}

template <int V>
void launch_width(const StepView& s, bool golden) {
  if (golden) return launch_one<Book::golden, V, 0>(s);
  if (V == 128 && s.norm_order.lane == 8) return launch_one < Book::triton, V, V == 128 ? 8 : V / 32 > (s);
  launch_one<Book::triton, V, V / 32>(s);
}

}  // namespace

void launch_norm_fast(const StepView& s, bool golden) {
  if (s.shape.rows == 0) return;
  switch (s.shape.V) {
    case 32:
      return launch_width<32>(s, golden);
    case 64:
      return launch_width<64>(s, golden);
    case 128:
      return launch_width<128>(s, golden);
    case 256:
      return launch_width<256>(s, golden);
    default:
      throw error("cuda: the fast norm has no V ", s.shape.V);
  }
}

}  // namespace gdnsim::cuda
