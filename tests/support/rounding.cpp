// Number formats for the second implementation: plain, slow, and written from the definition of each format.
#include "support/rounding.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace gdnsim::second {
namespace {

/// A binary format: `precision` significant bits, exponents of normal numbers from `emin` to `emax`.
struct Format {
  int precision, emin, emax;
};
constexpr Format kBf16{8, -126, 127};
constexpr Format kF16{11, -14, 15};

/// `value` rounded to the format, to nearest, ties to even; beyond the largest finite number, infinity. Scaling by a
/// power of two and back is exact in double for every f32, so the one rounding is nearbyint's.
double round_to(double value, Format format) {
  if (value == 0 || std::isinf(value)) return value;
  const int exponent = std::max(std::ilogb(value), format.emin);
  const int quantum = exponent - (format.precision - 1);
  const double result = std::ldexp(std::nearbyint(std::ldexp(value, -quantum)), quantum);
  return std::fabs(result) >= std::ldexp(1.0, format.emax + 1) ? std::copysign(HUGE_VAL, value) : result;
}

/// The 16-bit word of a value that the format can hold exactly.
std::uint16_t encode(double value, Format format) {
  const int fraction_bits = format.precision - 1;
  const std::uint32_t sign = std::signbit(value) ? 0x8000u : 0u;
  const double size = std::fabs(value);
  const auto top = static_cast<std::uint32_t>(format.emax - format.emin + 2);  // the exponent field of Inf and NaN
  if (std::isinf(size)) return static_cast<std::uint16_t>(sign | top << fraction_bits);
  if (size < std::ldexp(1.0, format.emin))  // zero and denormals: a count of the smallest step
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::ldexp(size, fraction_bits - format.emin)));
  const int exponent = std::ilogb(size);
  const auto fraction = static_cast<std::uint32_t>(std::ldexp(size, fraction_bits - exponent)) - (1u << fraction_bits);
  return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(exponent - format.emin + 1) << fraction_bits |
                                    fraction);
}

/// The value of a 16-bit word that is not a NaN.
double decode(std::uint16_t word, Format format) {
  const int fraction_bits = format.precision - 1;
  const int field = (word & 0x7FFF) >> fraction_bits;
  const int fraction = word & ((1 << fraction_bits) - 1);
  const double sign = (word & 0x8000) != 0 ? -1.0 : 1.0;
  if (field == format.emax - format.emin + 2) return sign * HUGE_VAL;
  if (field == 0) return sign * std::ldexp(fraction, format.emin - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), format.emin + field - 1 - fraction_bits);
}

std::uint16_t word_at(const std::byte* words, std::size_t i) {
  std::uint16_t word;
  std::memcpy(&word, words + 2 * i, 2);
  return word;
}

}  // namespace

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

float canonical(float value) { return value != value ? float_of(0x7FFFFFFFu) : value; }

Num operator+(Num x, Num y) { return {canonical(x.value + y.value)}; }
Num operator-(Num x, Num y) { return {canonical(x.value - y.value)}; }
Num operator*(Num x, Num y) { return {canonical(x.value * y.value)}; }
Num operator/(Num x, Num y) { return {canonical(x.value / y.value)}; }
Num fused(Num x, Num y, Num z) { return {canonical(std::fma(x.value, y.value, z.value))}; }
Num square_root(Num x) { return {canonical(std::sqrt(x.value))}; }

std::uint16_t to_bf16(float value) {
  return value != value ? std::uint16_t{0x7FFF} : encode(round_to(value, kBf16), kBf16);
}

std::uint16_t to_f16(float value) {
  return value != value ? std::uint16_t{0x7FFF} : encode(round_to(value, kF16), kF16);
}

float from_bf16(std::uint16_t word) {
  const bool nan = (word & 0x7FFF) > 0x7F80;
  return nan ? float_of(static_cast<std::uint32_t>(word) * 0x10000u) : static_cast<float>(decode(word, kBf16));
}

float from_f16(std::uint16_t word) {
  const bool nan = (word & 0x7FFF) > 0x7C00;
  const std::uint32_t payload = (word & 0x8000u) * 0x10000u + 0x7F800000u + (word & 0x3FFu) * 0x2000u;
  return nan ? float_of(payload) : static_cast<float>(decode(word, kF16));
}

Num rounded(Num value, DType type) {
  if (type == DType::bf16) return {from_bf16(to_bf16(value.value))};
  if (type == DType::f16) return {from_f16(to_f16(value.value))};
  return value;
}

Num load(const std::byte* words, DType type, std::size_t i) {
  if (type == DType::bf16) return {from_bf16(word_at(words, i))};
  if (type == DType::f16) return {from_f16(word_at(words, i))};
  float value;
  std::memcpy(&value, words + 4 * i, 4);
  return {value};
}

void store(std::byte* words, DType type, std::size_t i, Num value) {
  if (type == DType::f32) {
    std::memcpy(words + 4 * i, &value.value, 4);
    return;
  }
  const std::uint16_t word = type == DType::bf16 ? to_bf16(value.value) : to_f16(value.value);
  std::memcpy(words + 2 * i, &word, 2);
}

}  // namespace gdnsim::second
