// Standard normal values from random words, in integers: an inverse distribution function as a table with linear steps.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace gdnsim {

/// Normals are integers in units of 2^-25: below 2^28 in magnitude, so that three of them still fit in 29 bits.
inline constexpr int kNormalBits = 25;

class NormalTable {
 public:
  static const NormalTable& get();

  /// The last bit of the word is the sign. The word with that bit set, over 2^32, is p in (0, 1); the magnitude is the x with
  /// P(|N| > x) = p. Its error is below 2e-5 (linear interpolation), the same everywhere.
  std::int32_t operator()(std::uint32_t word) const {
    const std::uint32_t odd = word | 1;
    const int zeros = std::countl_zero(odd);
    const std::uint32_t top = odd << zeros;  // leading bit first
    const std::size_t at = static_cast<std::size_t>(31 - zeros) * kSteps + (top >> (31 - kStepBits) & (kSteps - 1));
    const std::int64_t rest = top & ((1u << (31 - kStepBits)) - 1);
    const std::int64_t here = knots_[at], next = knots_[at + 1];
    const auto x = static_cast<std::int32_t>(here - ((here - next) * rest >> (31 - kStepBits)));
    const auto sign = static_cast<std::int32_t>(word & 1);
    return (x ^ -sign) + sign;  // -x when the sign is 1, without a branch that would be guessed wrong half the time
  }

 private:
  static constexpr int kStepBits = 6;
  static constexpr std::uint32_t kSteps = 1u << kStepBits;  // in each octave of p
  NormalTable();
  std::array<std::int32_t, 32 * kSteps + 1> knots_;  // x at p = 2^(octave - 32) (1 + step / kSteps)
};

}  // namespace gdnsim
