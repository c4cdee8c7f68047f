// Stored words and floats: widening rows of raw words, rounding floats to a stored type.
#pragma once

#include <Eigen/Core>
#include <cstring>

#include "gdnsim/arith.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/types.hpp"

namespace gdnsim::golden {

using Row = Eigen::ArrayXf;
using RowMap = Eigen::Map<Eigen::ArrayXf>;
using ConstRowMap = Eigen::Map<const Eigen::ArrayXf>;

/// x rounded to the type and widened again; NaNs become the canonical one (rules R2, R3).
inline float rounded_to(DType type, float x) {
  switch (type) {
    case DType::f32:
      return canonical(x);
    case DType::bf16:
      return f32_from_bf16(bf16_from_f32(x));
    case DType::f16:
      return f32_from_f16(f16_from_f32(x));
  }
  return x;
}

/// Element `i` of raw words, widened. Exact; keeps NaN payloads.
inline float widened(DType type, const std::byte* words, std::int64_t i) {
  if (type == DType::f32) {
    float x;
    std::memcpy(&x, words + 4 * i, 4);
    return x;
  }
  std::uint16_t word;
  std::memcpy(&word, words + 2 * i, 2);
  return type == DType::bf16 ? f32_from_bf16(word) : f32_from_f16(word);
}

/// Rounds x into element `i` of raw words.
inline void store(DType type, std::byte* words, std::int64_t i, float x) {
  if (type == DType::f32) {
    const float value = canonical(x);
    std::memcpy(words + 4 * i, &value, 4);
    return;
  }
  const std::uint16_t word = type == DType::bf16 ? bf16_from_f32(x) : f16_from_f32(x);
  std::memcpy(words + 2 * i, &word, 2);
}

inline void widen(DType type, const std::byte* words, std::int64_t first, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = widened(type, words, first + i);
}

inline void store_row(DType type, std::byte* words, std::int64_t first, std::int64_t count, const float* x) {
  for (std::int64_t i = 0; i < count; ++i) store(type, words, first + i, x[i]);
}

}  // namespace gdnsim::golden
