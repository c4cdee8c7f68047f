// Two words of one element type: how far apart they are, what kind of difference they show, and counts of such pairs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "gdnsim/types.hpp"

namespace gdnsim {

/// What kind of difference two words show. Description, not judgement: every class is a difference.
///   rounding     two finite numbers that part as sums in another order part (see classify)
///   value        two finite numbers that do not
///   poison       a NaN that no GPU arithmetic makes, in a value that arithmetic made: copied or never initialised
///   nan_payload  two NaNs with other bits
///   digest       only digests were there
enum class DiffClass : std::uint8_t { rounding, signed_zero, nan_payload, nan, inf, digest, value, poison };
inline constexpr std::size_t kDiffClasses = 8;
std::string_view name_of(DiffClass value);

/// One element's raw word, zero-extended.
std::uint32_t word_at(DType type, std::span<const std::byte> words, std::size_t i);
double value_of(DType type, std::uint32_t word);
/// Steps from a to b along the type's ordered values, -0 and +0 one apart; nullopt when either is a NaN.
std::optional<std::uint64_t> ulp_distance(DType type, std::uint32_t a, std::uint32_t b);

/// Finite numbers are of class `rounding` when they agree in the upper half of their digits (same sign, at most 2^(p/2) ULP
/// apart: 4096 for f32, 32 for f16, 16 for bf16), or when they part by at most 2^-18 of `scale`, the size of the values
/// around them: what a sum of f32 products leaves in its last bits when its terms cancel.
DiffClass classify(DType type, std::uint32_t a, std::uint32_t b, double scale = 0);
/// A NaN other than the one that GPU arithmetic makes (0x7FFFFFFF, 0x7FFF).
bool is_foreign_nan(DType type, std::uint32_t word);
/// True for a tap whose words come out of arithmetic: not conv_state, which is copied from the inputs, nor k, which without a
/// norm is a copy of conv_out.
bool is_computed(Tap tap);

/// Buckets of ULP distances: [i] counts distances from 2^i to 2^(i+1) - 1.
inline constexpr std::size_t kUlpBuckets = 32;

/// Counts of one tap.
struct TapCount {
  std::uint64_t compared = 0;
  std::uint64_t differing = 0;
  std::uint64_t not_compared = 0;  // inactive rows whose output the trace declares unwritten
  std::uint64_t max_ulp = 0;       // over differing pairs without NaN
  double max_abs = 0;              // likewise; infinity where one side is infinite
  std::array<std::uint64_t, kUlpBuckets> ulps{};
  std::array<std::uint64_t, kDiffClasses> classes{};
  void add(const TapCount& other);
};
using TapCounts = std::array<TapCount, kTaps>;

/// What comparing one run of words adds to a count.
struct WordRun {
  std::int64_t first = -1;  // the first element that differs, or -1
  std::uint64_t compared = 0, differing = 0, max_ulp = 0;
  DiffClass kind = DiffClass::rounding;  // of the first
};
/// Compares the words of a tap's row or block, heads one after the other, and counts.
WordRun compare_words(Tap tap, const TapShape& shape, std::span<const std::byte> got, std::span<const std::byte> want,
                      TapCount& count);

}  // namespace gdnsim
