// Scalar arithmetic that every backend shares, to the bit: words and floats, rounding to stored types, the NaN rule, and the
// correctly rounded exp, log and log1p (docs/arithmetic.md, rules R1-R6). Compiled for the CPU and, unchanged, for the GPU.
//
// exp, log and log1p are first evaluated in double precision with an error far below 2^-46; where an interval of that width
// rounds to one float, that float is the correctly rounded result, whatever the compiler made of the evaluation. Otherwise
// (a few inputs in a million) double-double arithmetic decides. Only sqrt and fma come from outside.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define GDNSIM_HD __host__ __device__
#else
#define GDNSIM_HD
#endif

namespace gdnsim {

GDNSIM_HD inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
GDNSIM_HD inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// What every arithmetic operation of the GPU gives for a NaN, whatever the payloads that went in (rule R3).
inline constexpr std::uint32_t kNaNBits = 0x7FFFFFFF;
inline constexpr std::uint16_t kNaN16 = 0x7FFF;  // for bf16 and f16
inline constexpr float kNaN = std::bit_cast<float>(kNaNBits);

GDNSIM_HD inline bool is_nan_bits(std::uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; }

/// A value that came out of arithmetic: NaNs become the canonical one. Copies keep their payload and never pass here.
GDNSIM_HD inline float canonical(float x) { return is_nan_bits(bits_of(x)) ? float_of(kNaNBits) : x; }

// ---- stored 16-bit types (rule R2: round to nearest even; widening is exact and keeps payloads) ----

GDNSIM_HD inline float f32_from_bf16(std::uint16_t word) { return float_of(static_cast<std::uint32_t>(word) << 16); }

GDNSIM_HD inline std::uint16_t bf16_from_f32(float x) {
  const std::uint32_t bits = bits_of(x);
  if (is_nan_bits(bits)) return kNaN16;
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

GDNSIM_HD inline float f32_from_f16(std::uint16_t word) {
  const std::uint32_t sign = static_cast<std::uint32_t>(word & 0x8000u) << 16, magnitude = word & 0x7FFFu;
  if (magnitude >= 0x7C00u) return float_of(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  if (magnitude >= 0x0400u) return float_of(sign | ((magnitude << 13) + 0x38000000u));
  return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24f));
}

GDNSIM_HD inline std::uint16_t f16_from_f32(float x) {
  const std::uint32_t bits = bits_of(x), magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  if (magnitude > 0x7F800000u) return kNaN16;
  if (magnitude >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {  // a denormal half: adding 0.5 puts its last bit at the float's last bit, and rounds
    const std::uint32_t rounded = bits_of(float_of(magnitude) + 0.5f) - 0x3F000000u;
    return static_cast<std::uint16_t>(sign | rounded);
  }
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1)) >> 13));
}

// ---- correctly rounded exp, log, log1p (rules R4-R6) ----

namespace detail {

struct DoubleDouble {
  double hi, lo;  // hi + lo, |lo| at most half an ulp of hi
};

GDNSIM_HD inline DoubleDouble fast_two_sum(double a, double b) {
  const double s = a + b;
  return {s, b - (s - a)};
}
GDNSIM_HD inline DoubleDouble two_sum(double a, double b) {
  const double s = a + b, t = s - a;
  return {s, (a - (s - t)) + (b - t)};
}
GDNSIM_HD inline DoubleDouble add(DoubleDouble a, DoubleDouble b) {
  const DoubleDouble s = two_sum(a.hi, b.hi), t = two_sum(a.lo, b.lo);
  const DoubleDouble r = fast_two_sum(s.hi, s.lo + t.hi);
  return fast_two_sum(r.hi, r.lo + t.lo);
}
GDNSIM_HD inline DoubleDouble multiply(DoubleDouble a, DoubleDouble b) {
  const double p = a.hi * b.hi;
  return fast_two_sum(p, std::fma(a.hi, b.hi, -p) + (a.hi * b.lo + a.lo * b.hi));
}
GDNSIM_HD inline DoubleDouble divide(DoubleDouble a, DoubleDouble b) {
  const double q = a.hi / b.hi;
  const DoubleDouble rest = add(a, multiply({-q, 0}, b));
  const double q2 = rest.hi / b.hi;
  const DoubleDouble rest2 = add(rest, multiply({-q2, 0}, b));
  return add(fast_two_sum(q, q2), {rest2.hi / b.hi, 0});
}

GDNSIM_HD inline double double_of(std::uint64_t bits) { return std::bit_cast<double>(bits); }
GDNSIM_HD inline double power_of_two(int exponent) {
  return double_of(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

/// hi + lo, times 2^exponent, rounded once to float: rounded to odd in 53 bits first, so that the second rounding is innocent.
GDNSIM_HD inline float round_once(DoubleDouble x, int exponent) {
  std::uint64_t bits = std::bit_cast<std::uint64_t>(x.hi);
  if (x.lo != 0 && (bits & 1) == 0) bits += (x.hi > 0) == (x.lo > 0) ? 1 : -1;
  return static_cast<float>(double_of(bits) * power_of_two(exponent));
}

/// True when every value within a relative 2^-46 of `y` rounds to the same float, which goes to `result`.
GDNSIM_HD inline bool rounds_safely(double y, float& result) {
  const double slack = y * 0x1p-46;
  result = static_cast<float>(y - slack);
  return result == static_cast<float>(y + slack);
}

inline constexpr double kLn2Top = 0x1.62E42FEFA38p-1;    // 41 bits: exact times any exponent here
inline constexpr double kLn2Mid = 0x1.EF35793C7673p-45;  // ln 2 - kLn2Top, 53 bits
inline constexpr double kLn2Low = 0x1.F97B57A079A19p-103;

/// e^r for |r| <= 0.36, double precision. Taylor to r^14: the rest is below 2^-60.
GDNSIM_HD inline double exp_reduced(double r) {
  double p = 1.0 / 87178291200.0;
  constexpr double kFactorials[] = {6227020800.0, 479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0,
                                    720.0,        120.0,       24.0,       6.0,       2.0,      1.0,     1.0};
  for (double factorial : kFactorials) p = p * r + 1.0 / factorial;
  return p;
}

/// The same in double-double: sum of r^n / n! by Horner, each step divided by n. The rest after n = 30 is below 2^-150.
GDNSIM_HD inline DoubleDouble exp_reduced(DoubleDouble r) {
  DoubleDouble p{1.0, 0.0};
  for (int n = 30; n >= 1; --n) p = add({1.0, 0.0}, divide(multiply(r, p), {static_cast<double>(n), 0.0}));
  return p;
}

/// log((1 + s) / (1 - s)) / (2 s) - 1 as a series in s^2, |s| <= 0.172: s^2/3 + s^4/5 + ...
GDNSIM_HD inline double log_series(double s2) {
  double p = 0.0;
  for (int n = 23; n >= 3; n -= 2) p = (p + 1.0 / n) * s2;
  return p;
}
GDNSIM_HD inline DoubleDouble log_series(DoubleDouble s2) {
  DoubleDouble p{0.0, 0.0};
  for (int n = 61; n >= 3; n -= 2) p = multiply(add(p, divide({1.0, 0.0}, {static_cast<double>(n), 0.0})), s2);
  return p;
}

/// log(2^exponent * (1 + f)), where 1 + f lies in [sqrt(1/2), sqrt(2)].
GDNSIM_HD inline float log_rounded(int exponent, DoubleDouble f) {
  const double s = f.hi / (2.0 + f.hi);
  const double quick = exponent * (kLn2Top + kLn2Mid) + (2.0 * s + 2.0 * s * log_series(s * s));
  float result;
  if (rounds_safely(quick, result)) return result;
  const DoubleDouble t = divide(f, add({2.0, 0.0}, f));
  const DoubleDouble twice{2.0 * t.hi, 2.0 * t.lo};
  const DoubleDouble series = add(twice, multiply(twice, log_series(multiply(t, t))));
  const double e = exponent;
  const DoubleDouble ln2 = add({e * kLn2Top, 0.0}, multiply({e, 0.0}, fast_two_sum(kLn2Mid, kLn2Low)));
  return round_once(add(ln2, series), 0);
}

/// Splits y > 0 (normal) as 2^exponent * m with m in [sqrt(1/2), sqrt(2)).
GDNSIM_HD inline int split(double y, double& m) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(y);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  m = double_of((bits & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  return exponent;
}

}  // namespace detail

/// e^x, correctly rounded (to nearest even) on all of f32.
GDNSIM_HD inline float exp_cr(float x) {
  using namespace detail;
  if (is_nan_bits(bits_of(x))) return float_of(kNaNBits);
  if (x > 89.0f) return float_of(0x7F800000u);
  if (x < -104.0f) return 0.0f;
  const double n = (x * 1.4426950408889634 + 0x1.8p52) - 0x1.8p52;  // nearest whole number
  const double top = x - n * kLn2Top;                               // exact
  const double quick = exp_reduced(top - n * kLn2Mid) * power_of_two(static_cast<int>(n));
  float result;
  if (rounds_safely(quick, result)) return result;
  const DoubleDouble rest = multiply({-n, 0.0}, fast_two_sum(kLn2Mid, kLn2Low));
  return round_once(exp_reduced(add({top, 0.0}, rest)), static_cast<int>(n));
}

/// log(x), correctly rounded; -0 and +0 give -inf, below zero NaN.
GDNSIM_HD inline float log_cr(float x) {
  if (x == 0.0f) return float_of(0xFF800000u);
  if (!(x > 0.0f)) return float_of(kNaNBits);
  if (bits_of(x) == 0x7F800000u) return x;
  double m;
  const int exponent = detail::split(x, m);
  return detail::log_rounded(exponent, {m - 1.0, 0.0});
}

/// log(1 + x), correctly rounded; -1 gives -inf, below it NaN, zeros themselves.
GDNSIM_HD inline float log1p_cr(float x) {
  using namespace detail;
  if (x == 0.0f || bits_of(x) == 0x7F800000u) return x;
  if (x == -1.0f) return float_of(0xFF800000u);
  if (!(x > -1.0f)) return float_of(kNaNBits);
  const double wide = x;
  const DoubleDouble y = two_sum(1.0, wide);
  double m;
  const int exponent = split(y.hi, m);
  if (exponent == 0) return log_rounded(0, {wide, 0.0});
  return log_rounded(exponent, fast_two_sum(m - 1.0, y.lo * power_of_two(-exponent)));
}

}  // namespace gdnsim
