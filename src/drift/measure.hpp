// Two arrays of numbers, compared: what one measured step adds to the curves. Private to drift.
//
// Numbers are f32 (bf16 and f16 widened, which is exact) or, on the oracle's side, double. Sums are in double, in an order that
// depends on nothing but the count: eight interleaved partial sums, then those left to right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gdnsim/types.hpp"

namespace gdnsim {

/// One of the two is empty.
struct Numbers {
  std::vector<float> single;
  std::vector<double> wide;
  std::size_t size() const { return single.size() + wide.size(); }
  void assign(std::span<const std::byte> words, DType type);  // widened to f32
  void assign(std::span<const double> values);
};

/// What pairs of numbers add up to.
struct PairSums {
  double difference = 0, reference = 0;  // squares, finite pairs only
  double max_abs = 0;
  std::uint64_t pairs = 0, differing = 0, nonfinite = 0;
  double relative() const;  // 0 where both are zero, inf where the reference alone is
  double norm() const;
  double share() const { return pairs == 0 ? 0 : static_cast<double>(differing) / static_cast<double>(pairs); }
};
/// Adds them. `differing`: other bits once both are f32.
void add_pairs(const Numbers& reference, const Numbers& other, PairSums& sums);

/// Words of one type: how many differ, and how many do once they are rounded to bf16.
struct WordSums {
  std::uint64_t pairs = 0, differing = 0, bf16_changed = 0;
};
void add_words(std::span<const std::byte> reference, std::span<const std::byte> other, DType type, WordSums& sums);

/// Elements that a step left as they were.
struct KeptSums {
  std::uint64_t nonzero = 0, kept = 0;
  double share() const { return nonzero == 0 ? 0 : static_cast<double>(kept) / static_cast<double>(nonzero); }
};
/// Adds the finite nonzero elements of `before`, [heads, per head], of the heads whose decay is below 1.
void add_kept(const Numbers& before, const Numbers& after, std::span<const double> decay, KeptSums& sums);

}  // namespace gdnsim
