// The conv update of four neighbouring channels in one thread for what models have: four taps, a bf16 window. Two channels a
// multiplication: a product of two bf16 numbers, rounded once to bf16, is what through_bf16(x * weight) gives, denormals too
// (sixteen significant bits, so f32 rounds nothing that bf16 keeps).
#pragma once

#include "channels.cuh"

namespace gdnsim::cuda {

/// Two bf16 products, each rounded.
__device__ inline std::uint32_t bf16_products(std::uint32_t x, std::uint32_t y) {
  std::uint32_t product = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(x), "r"(y));
#else
  product = bf16_pair(__fmul_rn(bf16_low(x), bf16_low(y)), __fmul_rn(bf16_high(x), bf16_high(y)));
#endif
  return product;
}

/// silu of four sums, rounded to bf16, the first in the lowest half.
template <Book book>
__device__ inline uint2 silu_quad(const float (&x)[4]) {
  float y[4];
  unsigned open = 0;  // what the quick way leaves undecided, a bit each: seldom one
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    bool quick;
    if constexpr (book == Book::golden) {
      y[i] = __fmul_rn(x[i], quick_sigmoid(x[i]));
      quick = fabsf(x[i]) <= kQuick && certain_in_bf16(y[i]);
    } else {
      y[i] = __fmul_rn(x[i], unscaled_sigmoid(x[i]));
      quick = fabsf(x[i]) <= kUnscaled;
    }
    open |= quick ? 0u : 1u << i;
  }
#pragma unroll 1
  for (; open != 0; open &= open - 1) {
    const int i = __ffs(static_cast<int>(open)) - 1;
    const float exact = exact_silu<book>(i == 0 ? x[0] : i == 1 ? x[1] : i == 2 ? x[2] : x[3]);
    y[0] = i == 0 ? exact : y[0], y[1] = i == 1 ? exact : y[1], y[2] = i == 2 ? exact : y[2],
    y[3] = i == 3 ? exact : y[3];
  }
  return {bf16_pair(y[0], y[1]), bf16_pair(y[2], y[3])};
}

/// As Channels<DType::bf16, 4>.
struct QuadConv {
  static constexpr int kTaps = 4;
  uint2 column[kTaps];  // of the window, x last
  uint4 weight[2];      // of two channels each, tap by tap
  uint2 bias;

  __device__ void ask_inputs(const StepView& s, std::int64_t row, std::int64_t at) {
    const auto* weights = static_cast<const uint4*>(s.params.conv_weight) + at / 2;
    weight[0] = __ldg(weights), weight[1] = __ldg(weights + 1);
    bias = uint2{};
    if (s.params.conv_bias != nullptr)
      bias = __ldg(reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(s.params.conv_bias) + at));
    column[kTaps - 1] = __ldcg(
        reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(s.in.mixed_qkv) + row * s.shape.dim + at));
  }
  __device__ void ask_window(const StepView& s, std::int64_t block, std::int64_t at) {
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) column[j] = __ldcg(pool(s, block, j, at));
  }
  template <Book book>
  __device__ uint2 outputs(const StepView& s) const {
    float sum[4] = {bf16_low(bias.x), bf16_high(bias.x), bf16_low(bias.y), bf16_high(bias.y)};
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        const uint4& w = weight[half];
        const std::uint32_t near = j < 2 ? w.x : w.y, far = j < 2 ? w.z : w.w;
        const std::uint32_t pair = __byte_perm(near, far, j % 2 == 0 ? 0x5410 : 0x7632);
        const std::uint32_t product = bf16_products(half == 0 ? column[j].x : column[j].y, pair);
        sum[2 * half] = __fadd_rn(sum[2 * half], bf16_low(product));
        sum[2 * half + 1] = __fadd_rn(sum[2 * half + 1], bf16_high(product));
      }
    if (s.shape.silu) return silu_quad<book>(sum);
    return {bf16_pair(sum[0], sum[1]), bf16_pair(sum[2], sum[3])};
  }
  __device__ void roll(const StepView& s, std::int64_t block, std::int64_t at) const {
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) __stcg(pool(s, block, j, at), column[j + 1]);
  }

  static __device__ uint2* pool(const StepView& s, std::int64_t block, int j, std::int64_t at) {
    return reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(s.pool.conv) + (block * (kTaps - 1) + j) * s.shape.dim +
                                    at);
  }
};

/// The same of any window and up to five taps.
template <DType conv>
struct AnyConv : Channels<conv, 4> {
  template <Book book>
  __device__ uint2 outputs(const StepView& s) const {
    std::uint16_t out[4];
    Channels<conv, 4>::template outputs<book>(s, out);
    return {out[0] | static_cast<std::uint32_t>(out[1]) << 16, out[2] | static_cast<std::uint32_t>(out[3]) << 16};
  }
};

}  // namespace gdnsim::cuda
