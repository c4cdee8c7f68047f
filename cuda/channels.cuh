// Neighbouring channels of the conv in one thread: what it asks for, what it stores.
#pragma once

#include "conv.cuh"

namespace gdnsim::cuda {

/// N neighbouring channels of the conv.
template <DType conv, int N>
struct Channels {
  Filter filter[N];
  ConvWord<conv> window[kMaxTaps][N];  // W words a channel, x last

  /// Parameters and x, which no kernel writes.
  __device__ void ask_inputs(const StepView& s, std::int64_t row, std::int64_t at) {
#pragma unroll
    for (int i = 0; i < N; ++i) filter[i] = load_filter(s, at + i);
    std::uint16_t x[N];
    load_words(static_cast<const std::uint16_t*>(s.in.mixed_qkv) + row * s.shape.dim + at, x);
#pragma unroll
    for (int j = 0; j < kMaxTaps; ++j)
#pragma unroll
      for (int i = 0; i < N; ++i) window[j][i] = conv_word<conv>(x[i]);  // the older ones are written over
  }
  __device__ void ask_window(const StepView& s, std::int64_t block, std::int64_t at) {
#pragma unroll
    for (int j = 0; j + 1 < kMaxTaps; ++j)
      if (j < s.shape.W - 1) load_words(pool(s, block, j, at), window[j]);
  }
  template <Book book>
  __device__ void outputs(const StepView& s, std::uint16_t (&out)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      ConvWord<conv> mine[kMaxTaps];
#pragma unroll
      for (int j = 0; j < kMaxTaps; ++j) mine[j] = window[j][i];
      out[i] = conv_output<book, conv>(s, filter[i], mine);
    }
  }
  __device__ void roll(const StepView& s, std::int64_t block, std::int64_t at) const {
#pragma unroll
    for (int j = 0; j + 1 < kMaxTaps; ++j)
      if (j < s.shape.W - 1) store_words(pool(s, block, j, at), window[j + 1]);
  }

  static __device__ ConvWord<conv>* pool(const StepView& s, std::int64_t block, int j, std::int64_t at) {
    return static_cast<ConvWord<conv>*>(s.pool.conv) + (block * (s.shape.W - 1) + j) * s.shape.dim + at;
  }
};

template <int N>
__device__ void store_conv_out(const StepView& s, std::int64_t row, std::int64_t at, const std::uint16_t (&out)[N]) {
  if (s.out.conv_out != nullptr) store_words(static_cast<std::uint16_t*>(s.out.conv_out) + row * s.shape.dim + at, out);
}

}  // namespace gdnsim::cuda
