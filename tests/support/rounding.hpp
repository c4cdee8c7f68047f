// Second opinions on rounding: number formats and NaN rule re-derived for the tests, sharing nothing with the library.
// A format is rounded by scaling to integers in double and taking the nearest even one, not by bit tricks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gdnsim/types.hpp"

namespace gdnsim::second {

std::uint32_t bits_of(float value);
float float_of(std::uint32_t bits);

/// 0x7FFFFFFF for any NaN; every other value as it is.
float canonical(float value);

/// An f32 value whose arithmetic gives the one NaN. One rounding per operator; `fused` is one rounding in all.
struct Num {
  float value = 0;
};
Num operator+(Num x, Num y);
Num operator-(Num x, Num y);
Num operator*(Num x, Num y);
Num operator/(Num x, Num y);
Num fused(Num x, Num y, Num z);
Num square_root(Num x);

/// Nearest-even conversions; any NaN gives 0x7FFF.
std::uint16_t to_bf16(float value);
std::uint16_t to_f16(float value);
/// Exact; a NaN keeps its sign and payload, in the leading bits of the fraction.
float from_bf16(std::uint16_t word);
float from_f16(std::uint16_t word);

/// The value an f32 has after a round trip through `type`.
Num rounded(Num value, DType type);

/// Element `i` of packed words of `type`, widened; and the reverse, rounded.
Num load(const std::byte* words, DType type, std::size_t i);
void store(std::byte* words, DType type, std::size_t i, Num value);

}  // namespace gdnsim::second
