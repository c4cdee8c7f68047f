// Stored words and lanes: widening, rounding, and tiles. A tile holds up to kWidth rows of n elements transposed, one row a
// lane: element i of every row is vector i. In a tile any summation order over a row is a sequence of vertical operations.
#pragma once

#include "gdnsim/types.hpp"
#include "lanes.hpp"

namespace gdnsim::golden {
namespace {

constexpr std::size_t word_size(DType type) { return type == DType::f32 ? 4 : 2; }

GDNSIM_LANE F widen_f16(U word) {
  const U sign = (word & all(0x8000u)) << 16, size = word & all(0x7FFFu);
  const U normal = (size << 13) + all(0x38000000u), special = all(0x7F800000u) | (size & all(0x3FFu)) << 13;
  const U tiny = bits(from_int((I)size) * all(0x1p-24f));
  return float_bits(sign | (size >= all(0x7C00u) ? special : size >= all(0x400u) ? normal : tiny));
}

/// The bf16 word of x: to nearest even, NaNs 0x7FFF.
GDNSIM_LANE U bf16_word(F x) {
  const U b = bits(x);
  const U rounded = (b + all(0x7FFFu) + (b >> 16 & all(1u))) >> 16;
  return x != x ? all(0x7FFFu) : rounded;
}

GDNSIM_LANE U f16_word(F x) {
  const U size = bits(x) & all(0x7FFFFFFFu), sign = bits(x) >> 16 & all(0x8000u);
  const U tiny = bits(float_bits(size) + all(0.5f)) - all(0x3F000000u);
  const U normal = (size - all(0x38000000u) + all(0xFFFu) + (size >> 13 & all(1u))) >> 13;
  const U finite = size < all(0x38800000u) ? tiny : normal;
  const U word = sign | (size >= all(0x477FF000u) ? all(0x7C00u) : finite);
  return x != x ? all(0x7FFFu) : word;
}

/// x rounded to the type and widened again (rules R2, R3).
GDNSIM_LANE F rounded_bf16(F x) {
  const U b = bits(x);
  const U rounded = (b + all(0x7FFFu) + (b >> 16 & all(1u))) & all(0xFFFF0000u);
  return float_bits(x != x ? all(0x7FFF0000u) : rounded);
}
GDNSIM_LANE F rounded_to(DType type, F x) {
  if (type == DType::bf16) return rounded_bf16(x);
  return type == DType::f16 ? widen_f16(f16_word(x)) : canonical(x);
}

/// `kWidth` words, widened; payloads stay.
GDNSIM_LANE F load_words(DType type, const std::byte* words) {
  if (type == DType::f32) return load(reinterpret_cast<const float*>(words));
  const U word = load16(words);
  return type == DType::bf16 ? float_bits(word << 16) : widen_f16(word);
}
GDNSIM_LANE void store_words(DType type, std::byte* words, F x) {
  if (type == DType::f32)
    store(reinterpret_cast<float*>(words), canonical(x));
  else
    store16(words, type == DType::bf16 ? bf16_word(x) : f16_word(x));
}

/// The same for `count` words at most; lanes beyond are +0.
GDNSIM_LANE F load_words(DType type, const std::byte* words, std::int64_t count) {
  if (count >= kWidth) return load_words(type, words);
  alignas(64) std::byte part[4 * kWidth] = {};
  __builtin_memcpy(part, words, static_cast<std::size_t>(count) * word_size(type));
  return load_words(type, part);
}
GDNSIM_LANE void store_words(DType type, std::byte* words, F x, std::int64_t count) {
  if (count >= kWidth) return store_words(type, words, x);
  alignas(64) std::byte part[4 * kWidth];
  store_words(type, part, x);
  __builtin_memcpy(words, part, static_cast<std::size_t>(count) * word_size(type));
}
/// Words of two bytes.
GDNSIM_LANE void store16(std::byte* words, U x, std::int64_t count) {
  if (count >= kWidth) return store16(words, x);
  alignas(32) std::byte part[2 * kWidth];
  store16(part, x);
  __builtin_memcpy(words, part, static_cast<std::size_t>(count) * 2);
}
GDNSIM_LANE F load(const float* from, std::int64_t count) {
  return load_words(DType::f32, reinterpret_cast<const std::byte*>(from), count);
}
/// NaNs become the canonical one.
GDNSIM_LANE void store(float* to, F x, std::int64_t count) {
  store_words(DType::f32, reinterpret_cast<std::byte*>(to), x, count);
}

/// `rows` rows of n words, one after another, into a tile [n]; lanes beyond `rows` are +0.
template <DType kType>
void load_tile_of(const std::byte* words, int n, int rows, F* tile) {
  constexpr std::size_t kWord = word_size(kType);
  const std::size_t stride = static_cast<std::size_t>(n) * kWord;
  for (int first = 0; first < n; first += kWidth) {
    const std::byte* at = words + static_cast<std::size_t>(first) * kWord;
    F block[kWidth];
    if (rows == kWidth && first + kWidth <= n) {
#pragma GCC unroll 16
      for (int row = 0; row < kWidth; ++row)
        block[row] = load_words(kType, at + static_cast<std::size_t>(row) * stride);
      transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) tile[first + i] = block[i];
      continue;
    }
    for (int row = 0; row < kWidth; ++row)
      block[row] = row < rows ? load_words(kType, at + static_cast<std::size_t>(row) * stride, n - first) : F{};
    transpose(block);
    for (int i = 0; i < kWidth && first + i < n; ++i) tile[first + i] = block[i];
  }
}

template <DType kType>
void store_tile_of(std::byte* words, int n, int rows, const F* tile) {
  constexpr std::size_t kWord = word_size(kType);
  const std::size_t stride = static_cast<std::size_t>(n) * kWord;
  for (int first = 0; first < n; first += kWidth) {
    std::byte* at = words + static_cast<std::size_t>(first) * kWord;
    F block[kWidth];
    if (rows == kWidth && first + kWidth <= n) {
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) block[i] = tile[first + i];
      transpose(block);
#pragma GCC unroll 16
      for (int row = 0; row < kWidth; ++row)
        store_words(kType, at + static_cast<std::size_t>(row) * stride, block[row]);
      continue;
    }
    for (int i = 0; i < kWidth; ++i) block[i] = first + i < n ? tile[first + i] : F{};
    transpose(block);
    for (int row = 0; row < rows; ++row)
      store_words(kType, at + static_cast<std::size_t>(row) * stride, block[row], n - first);
  }
}

void load_tile(DType type, const std::byte* words, int n, int rows, F* tile) {
  if (type == DType::f32) return load_tile_of<DType::f32>(words, n, rows, tile);
  if (type == DType::bf16) return load_tile_of<DType::bf16>(words, n, rows, tile);
  load_tile_of<DType::f16>(words, n, rows, tile);
}
/// Rounds into stored words.
void store_tile(DType type, std::byte* words, int n, int rows, const F* tile) {
  if (type == DType::f32) return store_tile_of<DType::f32>(words, n, rows, tile);
  if (type == DType::bf16) return store_tile_of<DType::bf16>(words, n, rows, tile);
  store_tile_of<DType::f16>(words, n, rows, tile);
}

}  // namespace
}  // namespace gdnsim::golden
