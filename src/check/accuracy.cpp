// Words against exact values.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "check/subject.hpp"
#include "gdnsim/arith.hpp"

namespace gdnsim {
namespace {

/// x in f32, rounded to odd: a second rounding to a type with two digits less is then as if it were the only one.
float rounded_to_odd(double x) {
  auto single = static_cast<float>(x);
  if (static_cast<double>(single) == x || std::isnan(x)) return single;
  if (std::abs(static_cast<double>(single)) > std::abs(x)) single = std::nextafter(single, 0.0f);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(single) | 1u);
}

/// Distance between neighbouring words around x.
double unit_of(DType type, double x) {
  const int digits = type == DType::f32 ? 24 : type == DType::bf16 ? 8 : 11;
  const int lowest = type == DType::f16 ? -14 : -126;
  const int exponent = x == 0 ? lowest : std::max(std::ilogb(x), lowest);
  return std::ldexp(1.0, exponent - digits + 1);
}

}  // namespace

std::uint32_t nearest_word(DType type, double x) {
  if (type == DType::f32) return std::bit_cast<std::uint32_t>(static_cast<float>(x));
  const float single = rounded_to_odd(x);
  return type == DType::bf16 ? bf16_from_f32(single) : f16_from_f32(single);
}

void Accuracy::add(DType type, std::span<const std::byte> words, std::span<const double> exact) {
  std::uint64_t finite = 0, right = 0;
  double furthest = worst;
#pragma omp parallel for reduction(+ : finite, right) reduction(max : furthest)
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (!std::isfinite(exact[i])) continue;
    const std::uint32_t word = word_at(type, words, i);
    ++finite;
    right += word == nearest_word(type, exact[i]);
    const double error = std::abs(value_of(type, word) - exact[i]) / unit_of(type, exact[i]);
    furthest = std::max(furthest, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
  }
  compared += finite, nearest += right, worst = furthest;
}

}  // namespace gdnsim
