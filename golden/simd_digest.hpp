// The digest of a tile's rows (docs/log-format.md, rules L1-L3), taken from the lanes: no transposition, no stored copy.
#pragma once

#include "simd.hpp"
#include "simd_words.hpp"

namespace gdnsim::golden {
namespace {

/// Rule L1. A copy of digest.hpp's, because an inline function of a shared header would be compiled for this level.
GDNSIM_LANE std::uint64_t mixed(std::uint64_t z) {
  z ^= z >> 30;
  z *= 0xBF58476D1CE4E5B9u;
  z ^= z >> 27;
  z *= 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

/// Low and high half of one word of every row, as stored, from its elements.
struct Halves {
  U low, high;
};
template <DType kType>
GDNSIM_LANE Halves halves(const F* x) {
  if constexpr (kType == DType::f32) return {bits(canonical(x[0])), bits(canonical(x[1]))};
  const auto word = [x](int k) GDNSIM_LEAF { return kType == DType::bf16 ? bf16_word(x[k]) : f16_word(x[k]); };
  return {word(0) | word(1) << 16, word(2) | word(3) << 16};
}

/// The sums over a line's words x of x + lo32(x ^ key) * hi32(x ^ key), modulo 2^64. 64-bit sums take two vectors: even lanes
/// and odd lanes. Of the high halves' sum only 32 bits survive.
struct LineSums {
  L even = L{}, odd = L{};
  U high = U{};

  GDNSIM_LANE void add(const Halves& x, std::uint64_t key) {
    const L low = (L)(x.low ^ all(static_cast<std::uint32_t>(key)));
    const L top = (L)(x.high ^ all(static_cast<std::uint32_t>(key >> 32)));
    even += multiply_low(low, top) + ((L)x.low & all(std::uint64_t{0xFFFFFFFF}));
    odd += multiply_low(low >> 32, top >> 32) + ((L)x.low >> 32);
    high += x.high;
  }
  /// By name, because GCC 12 with -fsanitize=undefined takes the wrong element of (row % 2 == 0 ? even : odd)[row / 2].
  std::uint64_t of(int row) const {
    const std::uint64_t sum = row % 2 == 0 ? even[row / 2] : odd[row / 2];
    return sum + (std::uint64_t{high[row]} << 32);
  }
};

template <DType kType>
std::uint64_t digest_tile_of(const HeadJob& job, const F* S) {
  constexpr int kPerWord = kType == DType::f32 ? 2 : 4;
  LineSums sums;
  int i = 0;
  for (; (i + 1) * kPerWord <= job.K; ++i) sums.add(halves<kType>(S + i * kPerWord), job.keys[i]);
  if (i * kPerWord < job.K) {  // the last word is padded with zeros
    F rest[4] = {};
    for (int k = i * kPerWord; k < job.K; ++k) rest[k - i * kPerWord] = S[k];
    sums.add(halves<kType>(rest), job.keys[i]);
  }
  std::uint64_t sum = 0;
  for (int row = 0; row < job.rows; ++row) {
    sum += mixed(sums.of(row) + (static_cast<std::uint64_t>(job.first + row) + 1) * 0x9E3779B97F4A7C15u);
  }
  return sum;
}

std::uint64_t digest_tile(const HeadJob& job, const F* S) {
  if (job.state_dtype == DType::f32) return digest_tile_of<DType::f32>(job, S);
  return job.state_dtype == DType::bf16 ? digest_tile_of<DType::bf16>(job, S) : digest_tile_of<DType::f16>(job, S);
}

}  // namespace
}  // namespace gdnsim::golden
