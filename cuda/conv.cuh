// The conv update of one channel for the fast kernels (docs/arithmetic.md, rules A2.1, C1): bf16 activations, a conv state
// of bf16 or f32, up to kMaxTaps taps.
#pragma once

#include "book.cuh"

namespace gdnsim::cuda {

inline constexpr int kMaxTaps = 5;

/// Words of the conv state as they are stored.
template <DType type>
using ConvWord = std::conditional_t<type == DType::f32, std::uint32_t, std::uint16_t>;

template <DType type>
__device__ inline float conv_value(ConvWord<type> word) {
  if constexpr (type == DType::f32)
    return float_of(word);
  else
    return f32_from_bf16(word);
}

/// x as it is stored in the window: copied, or widened bit by bit.
template <DType type>
__device__ inline ConvWord<type> conv_word(std::uint16_t x) {
  if constexpr (type == DType::f32)
    return static_cast<std::uint32_t>(x) << 16;
  else
    return x;
}

/// A channel's weights, oldest tap first, and its bias.
struct Filter {
  std::uint16_t weight[kMaxTaps];
  float bias;
};

__device__ inline Filter load_filter(const StepView& s, std::int64_t channel) {
  const auto* weights = static_cast<const std::uint16_t*>(s.params.conv_weight) + channel * s.shape.W;
  const auto* biases = static_cast<const std::uint16_t*>(s.params.conv_bias);
  Filter filter{};
  if (s.shape.W == 4) {
    const uint2 four = __ldg(reinterpret_cast<const uint2*>(weights));
    filter.weight[0] = static_cast<std::uint16_t>(four.x), filter.weight[1] = static_cast<std::uint16_t>(four.x >> 16);
    filter.weight[2] = static_cast<std::uint16_t>(four.y), filter.weight[3] = static_cast<std::uint16_t>(four.y >> 16);
  } else {
#pragma unroll
    for (int j = 0; j < kMaxTaps; ++j)
      if (j < s.shape.W) filter.weight[j] = __ldg(weights + j);
  }
  filter.bias = biases != nullptr ? f32_from_bf16(__ldg(biases + channel)) : 0.0f;
  return filter;
}

/// bias + sum over taps of window * weight; `window` holds W words, x last.
template <Book book, DType type>
__device__ inline float conv_sum(const Filter& filter, const ConvWord<type> (&window)[kMaxTaps], int W) {
  float acc = filter.bias;
#pragma unroll
  for (int j = 0; j < kMaxTaps; ++j) {
    if (j >= W) break;
    const float x = conv_value<type>(window[j]), weight = f32_from_bf16(filter.weight[j]);
    if constexpr (book == Book::triton && type == DType::f32)
      acc = __fmaf_rn(x, weight, acc);
    else if constexpr (type == DType::f32)
      acc = __fadd_rn(acc, __fmul_rn(x, weight));
    else
      acc = __fadd_rn(acc, through_bf16(__fmul_rn(x, weight)));
  }
  return acc;
}

/// conv_out: activated and rounded.
template <Book book, DType type>
__device__ inline std::uint16_t conv_output(const StepView& s, const Filter& filter,
                                            const ConvWord<type> (&window)[kMaxTaps]) {
  const float acc = conv_sum<book, type>(filter, window, s.shape.W);
  return s.shape.silu ? silu_bf16<book>(acc) : bf16_word(acc);
}

}  // namespace gdnsim::cuda
