// The scalar functions of a contract, a vector at a time: scalar.hpp and sfu.cpp once more, with the same bits. The correctly
// rounded ones are evaluated in double precision with an error below 2^-46 (in any way: FMA or not); where that does not decide
// the rounding, the scalar function does.
#pragma once

#include "sfu_rows.hpp"
#include "simd.hpp"
#include "simd_words.hpp"

namespace gdnsim::golden {
namespace {

constexpr double kLn2Top = 0x1.62E42FEFA38p-1, kLn2Mid = 0x1.EF35793C7673p-45;

GDNSIM_LANE F quiet_nan() { return float_bits(all(0x7FFFFFFFu)); }
GDNSIM_LANE F infinity() { return float_bits(all(0x7F800000u)); }

/// Wide y, within a relative 2^-46 of the truth, rounded to float; lanes that this does not decide are done by `slow`.
GDNSIM_LANE F rounded_safely(Wide y, F x, float (*slow)(float)) {
  const D slack = all(0x1p-46);
  F low = narrow({y.low - y.low * slack, y.high - y.high * slack});
  const F high = narrow({y.low + y.low * slack, y.high + y.high * slack});
  const I open = low != high;
  if (__builtin_expect(any(open), 0))
    for (int i = 0; i < kWidth; ++i)
      if (open[i]) low[i] = slow(x[i]);
  return low;
}

/// e^x in double precision, for -105 < x < 90. The rest of the series beyond r^12 is below 2^-51.
GDNSIM_LANE D exp_wide(D x) {
  const D magic = all(0x1.8p52);
  const D shifted = near_fma(x, all(1.4426950408889634), magic), n = shifted - magic;
  const D r = near_fma(n, all(-kLn2Mid), near_fma(n, all(-kLn2Top), x));
  constexpr double kFactorials[] = {39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0,
                                    120.0,      24.0,      6.0,      2.0,     1.0,    1.0};
  D p = all(1.0 / 479001600.0);
#pragma GCC unroll 12
  for (double factorial : kFactorials) p = near_fma(p, r, all(1.0 / factorial));
  return p * double_bits((bits(shifted) + all(std::uint64_t{1023})) << 52);
}

/// Rule R4. The ends round to +inf and to 0 by themselves.
GDNSIM_LANE F exp_exact(F x, const Slow& slow) {
  F inside = x < all(89.0f) ? x : all(89.0f);
  inside = inside > all(-104.0f) ? inside : all(-104.0f);
  const Wide wide = widen(inside);
  const F y = rounded_safely({exp_wide(wide.low), exp_wide(wide.high)}, inside, slow.exp);
  return x != x ? quiet_nan() : y;
}

/// Whole numbers below 2^52, as doubles.
GDNSIM_LANE D whole(L x) { return double_bits(x | all(std::uint64_t{0x4330000000000000})) - all(0x1p52); }

/// y = 2^exponent * m, m in [sqrt(1/2), sqrt(2)); y > 0 and normal.
struct Split {
  D exponent, m;
  L power;  // bits of 2^-exponent
};
GDNSIM_LANE Split split(D y) {
  const L raw = bits(y) >> 52;
  const D m = double_bits((bits(y) & all(std::uint64_t{0xFFFFFFFFFFFFF})) | all(std::uint64_t{0x3FF0000000000000}));
  const M above = m > all(1.4142135623730951);
  const L one = (L)above & all(std::uint64_t{1});
  return {whole(raw + one) - all(1023.0), above ? m * all(0.5) : m, (all(std::uint64_t{2046}) - raw - one) << 52};
}

/// log(2^exponent * (1 + f))
GDNSIM_LANE D log_wide(D exponent, D f) {
  const D s = f / (all(2.0) + f), s2 = s * s;
  D p = D{};
#pragma GCC unroll 11
  for (int n = 23; n >= 3; n -= 2) p = (p + all(1.0 / n)) * s2;
  return exponent * all(kLn2Top + kLn2Mid) + (all(2.0) * s + all(2.0) * s * p);
}
GDNSIM_LANE D log_of(D x) {
  const Split y = split(x);
  return log_wide(y.exponent, y.m - all(1.0));
}
/// log(1 + x): x itself where 1 + x needs no exponent, else with the rounding error of 1 + x put back.
GDNSIM_LANE D log1p_of(D x) {
  const D one = all(1.0), sum = one + x, t = sum - one, error = (one - (sum - t)) + (x - t);
  const Split y = split(sum);
  return log_wide(y.exponent, y.exponent == D{} ? x : (y.m - one) + error * double_bits(y.power));
}

/// Rule R5.
GDNSIM_LANE F log_exact(F x, const Slow& slow) {
  const I ordinary = (x > F{}) & (x < infinity());
  const F inside = ordinary ? x : all(1.0f);
  const Wide wide = widen(inside);
  const F y = rounded_safely({log_of(wide.low), log_of(wide.high)}, inside, slow.log);
  const F special = x == F{} ? negated(infinity()) : x == infinity() ? x : quiet_nan();
  return ordinary ? y : special;
}
/// Rule R6.
GDNSIM_LANE F log1p_exact(F x, const Slow& slow) {
  const I ordinary = (x > all(-1.0f)) & (x < infinity()) & (x != F{});
  const F inside = ordinary ? x : all(1.0f);
  const Wide wide = widen(inside);
  const F y = rounded_safely({log1p_of(wide.low), log1p_of(wide.high)}, inside, slow.log1p);
  const I itself = (x == F{}) | (x == infinity());
  const F special = itself ? x : x == all(-1.0f) ? negated(infinity()) : quiet_nan();
  return ordinary ? y : special;
}

// ---- the approximate functions (rules S1-S7) ----

constexpr std::uint32_t kMantissaBits = 0x7FFFFF;

/// Rule S1. With x = 2^10 h + l, the rows' parts of h are whole and make 2 h^2; those of l are cut.
GDNSIM_LANE U truncated_square(U x) {
  const U h = x >> 10, l = x & all(0x3FFu);
  U sum = multiply_16(h, h + h);
#pragma GCC unroll 7
  for (unsigned j = 10; j <= 16; ++j) sum = add_where(x, 1u << j, sum, l >> (18 - j));
  return sum;
}

/// The coefficients once more, two of them in one word: a look-up costs as much as ten other instructions.
template <int kRows>
struct Packed {
  alignas(64) std::int32_t c0[kRows], c1_c2[kRows];  // C1 in the upper 20 bits, C2 in the lower 12
  explicit constexpr Packed(const SfuRow (&rows)[kRows]) : c0(), c1_c2() {
    for (int i = 0; i < kRows; ++i) c0[i] = rows[i].c0, c1_c2[i] = rows[i].c1 * 4096 + (rows[i].c2 & 0xFFF);
  }
};
constexpr Packed kPackedEx2(kEx2);
constexpr Packed kPackedRcp(kRcp);
constexpr Packed kPackedSqrt(kSqrt);
constexpr Packed kPackedRsqrt(kRsqrt);

/// Rule S2 in 32 bits. C2 has 12 bits with its sign, the square at most 15. The sum (up to 41 bits) is cut as 2^kLow * top + low; its low part, shifted down, carries into the
/// top. Before the last shift the true value is at most 2^31, so wrapping on the way does no harm.
template <int kShift, int kCurve, int kRows>
GDNSIM_LANE U quadratic(const Packed<kRows>& rows, U index, U x, U square, std::uint32_t round) {
  constexpr int kLow = kShift - 7;
  const U c0 = look_up(rows.c0, index), both = look_up(rows.c1_c2, index);
  const U c1 = (U)((I)both >> 12), c2 = (U)((I)(both << 20) >> 20);
  const U top = (c0 << 5) + c1 * (x >> kLow);
  const U low = c1 * (x & all((1u << kLow) - 1)) + (multiply_16(c2, square) << kCurve) + all(round);
  return (top + (U)((I)low >> kLow)) >> 7;
}

GDNSIM_LANE U sign_of(U x) { return x & all(0x80000000u); }
GDNSIM_LANE I below_normal(U size) { return (I)size < (I)all(0x00800000u); }
GDNSIM_LANE U ex2_bits(U i) {
  const U x = i & all(0x1FFFFu);
  return all(0x3F000000u) + quadratic<15, 0>(kPackedEx2, i >> 17, x, truncated_square(x), 0x77E2);
}

/// Rule S5. Beyond the ends the integers stay in range and their results are not taken.
GDNSIM_LANE F ex2_ftz(F x) {
  F inside = x < all(128.0f) ? x : all(128.0f);
  inside = inside > all(-127.0f) ? inside : all(-127.0f);
  const I t = to_int(magnitude(inside) * all(0x1p23f));
  const I whole_number = ((U)t & all(kMantissaBits)) == U{};
  const I fixed = inside >= F{} ? t : -t - (whole_number ? I{} : (I)all(1u));
  const U index = (U)fixed & all(kMantissaBits);
  const U result = ex2_bits(index) + ((U)fixed - index);
  F y = below_normal(result) ? F{} : float_bits(result);
  y = x >= all(128.0f) ? infinity() : x <= all(-127.0f) ? F{} : y;
  return x != x ? quiet_nan() : y;
}
GDNSIM_LANE F ex2(F x) {
  const I low = x < all(-126.0f);
  const F y = ex2_ftz(low ? x * all(0.5f) : x);
  return low ? y * y : y;
}

/// Rule S3.
GDNSIM_LANE F rcp(F x) {
  const U size = bits(magnitude(x)), sign = sign_of(bits(x)), i = size & all(kMantissaBits), w = i & all(0xFFFFu);
  const U mantissa = all(0x3E800000u) + quadratic<15, 0>(kPackedRcp, i >> 16, w, truncated_square(w << 1), 0x47E7);
  const U result = mantissa - (size - i) + all(127u << 23);
  U y = below_normal(result) ? U{} : result;
  y = below_normal(size) ? all(0x7F800000u) : size == all(0x7F800000u) ? U{} : y;
  return x != x ? quiet_nan() : float_bits(sign | y);
}

/// Rule S4: index and half of the exponent.
struct Root {
  U index, half;
};
GDNSIM_LANE Root root_of(U b) {
  return {(((b >> 23) + all(1u)) & all(1u)) << 23 | (b & all(kMantissaBits)), (U)(((I)(b >> 23) - (I)all(127u)) >> 1)
                                                                                  << 23};
}
GDNSIM_LANE F sqrt_approx(F x) {
  const U b = bits(x), size = bits(magnitude(x));
  const Root r = root_of(b);
  const U w = r.index & all(0x1FFFFu);
  const U y = all(0x3F000000u) + quadratic<17, 1>(kPackedSqrt, r.index >> 17, w, truncated_square(w), 0xFFFF) + r.half;
  const F special = sign_of(b) != U{} ? quiet_nan() : size == all(0x7F800000u) ? infinity() : float_bits(y);
  return below_normal(size) ? float_bits(sign_of(b)) : x != x ? quiet_nan() : special;
}
GDNSIM_LANE F rsqrt_approx(F x) {
  const U b = bits(x), size = bits(magnitude(x));
  const Root r = root_of(b);
  const U w = r.index & all(0x1FFFFu);
  U y = all(0x3E800000u) + quadratic<16, 2>(kPackedRsqrt, r.index >> 17, w, truncated_square(w), 0x7FFF);
  y = (r.index == U{} ? all(0x3F800000u) : y) - r.half;
  const F special = sign_of(b) != U{} ? quiet_nan() : size == all(0x7F800000u) ? F{} : float_bits(y);
  const F end = float_bits(sign_of(b) | all(0x7F800000u));
  return below_normal(size) ? end : x != x ? quiet_nan() : special;
}

GDNSIM_LANE F flushed(F x) { return below_normal(bits(magnitude(x))) ? float_bits(sign_of(bits(x))) : x; }
GDNSIM_LANE F fma_ftz(F a, F b, F c) { return flushed(fma(flushed(a), flushed(b), flushed(c))); }

/// Rule S7.
GDNSIM_LANE F log_libdevice(F x) {
  constexpr std::uint32_t kCoefficients[] = {0x3E1039F6, 0xBDF8CDCC, 0x3E0F2955, 0xBE2AD8B9,
                                             0x3E4CED0B, 0xBE7FFF22, 0x3EAAAA78, 0xBF000000};
  const I tiny = x < all(0x1p-126f);
  const F scaled = tiny ? x * all(0x1p23f) : x;
  const U b = bits(scaled), exponent = (b - all(1059760811u)) & all(0xFF800000u);
  const F e = fma_ftz(from_int((I)exponent), all(0x1p-23f), tiny ? all(-23.0f) : F{});
  const F f = float_bits(b - exponent) - all(1.0f);
  F r = float_bits(all(0xBE055027u));
  for (std::uint32_t coefficient : kCoefficients) r = fma_ftz(r, f, float_bits(all(coefficient)));
  r = flushed(flushed(f) * flushed(r));
  r = fma_ftz(r, f, f);
  r = fma_ftz(e, float_bits(all(0x3F317218u)), r);
  r = b >= all(0x7F800000u) ? fma_ftz(scaled, infinity(), infinity()) : r;
  return canonical(scaled == F{} ? negated(infinity()) : r);
}

// ---- by contract ----

constexpr float kLog2E = 1.44269502162933349609375f;  // 0x3FB8AA3B (rule T1)

/// Not inlined: each is some hundred instructions, and has many callers.
__attribute__((noinline)) F exp_of(const Rules& rules, F x) {
  return rules.contract->exp == Exp::exact ? exp_exact(x, *rules.slow) : ex2(x * all(kLog2E));
}
__attribute__((noinline)) F rcp_of(F x) { return rcp(x); }

/// Divides by one number again and again: rule S6 scales by the divisor alone.
struct Divisor {
  Div kind;
  F divisor, scale, reciprocal;
};
template <bool kInline>
GDNSIM_LANE Divisor divisor_of(Div kind, F b) {
  Divisor d{kind, b, all(1.0f), F{}};
  if (d.kind == Div::full) {
    const F size = magnitude(b);
    d.scale = size > all(0x1p126f) ? all(0.25f) : size < all(0x1p-126f) ? all(0x1p24f) : all(1.0f);
  }
  if (d.kind != Div::ieee) d.reciprocal = kInline ? rcp(b * d.scale) : rcp_of(b * d.scale);
  return d;
}
GDNSIM_LANE Divisor divisor_of(const Rules& rules, F b) { return divisor_of<false>(rules.contract->div, b); }
GDNSIM_LANE F divide(F a, const Divisor& d) {
  if (d.kind == Div::ieee) return a / d.divisor;
  return (a * d.scale) * d.reciprocal;
}
GDNSIM_LANE F divide(const Rules& rules, F a, F b) { return divide(a, divisor_of(rules, b)); }

GDNSIM_LANE F sqrt_of(const Rules& rules, F x) { return rules.contract->sqrt == Sqrt::ieee ? root(x) : sqrt_approx(x); }
GDNSIM_LANE F rsqrt_of(const Rules& rules, F x) {
  return rules.contract->sqrt == Sqrt::ieee ? all(1.0f) / root(x) : rsqrt_approx(x);
}
GDNSIM_LANE F negate_of(const Rules& rules, F x) {
  return rules.contract->negate == Negate::sign ? negated(x) : F{} - x;
}
/// sigmoid of one vector
GDNSIM_LANE F sigmoid_of(const Rules& rules, F x) {
  return divide(rules, all(1.0f), exp_of(rules, negate_of(rules, x)) + all(1.0f));
}

// Many vectors at once: a function has dozens of constants, which are fetched once for all of them.

/// x = e^x
__attribute__((noinline)) void exp_all(const Rules& rules, F* x, int n) {
  if (rules.contract->exp == Exp::exact)
    for (int i = 0; i < n; ++i) x[i] = exp_exact(x[i], *rules.slow);
  else
    for (int i = 0; i < n; ++i) x[i] = ex2(x[i] * all(kLog2E));
}
/// a = a / b
__attribute__((noinline)) void divide_all(const Rules& rules, F* a, const F* b, int n) {
  const auto divide_each = [=](Div kind) GDNSIM_LEAF {
    for (int i = 0; i < n; ++i) a[i] = divide(a[i], divisor_of<true>(kind, b[i]));
  };
  if (rules.contract->div == Div::ieee) return divide_each(Div::ieee);
  if (rules.contract->div == Div::full) return divide_each(Div::full);
  divide_each(Div::reciprocal);
}
/// a = a / (1 + e^-x): sigmoid with a = 1, silu with a = x; x is overwritten.
void over_one_plus_exp(const Rules& rules, F* a, F* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = negate_of(rules, x[i]);
  exp_all(rules, x, n);
  for (int i = 0; i < n; ++i) x[i] = x[i] + all(1.0f);
  divide_all(rules, a, x, n);
}
GDNSIM_LANE F softplus_of(const Rules& rules, F s) {
  F y = exp_of(rules, s);
  if (rules.contract->softplus == Softplus::log1p)
    y = log1p_exact(y, *rules.slow);
  else if (rules.contract->softplus == Softplus::log)
    y = log_exact(y + all(1.0f), *rules.slow);
  else
    y = log_libdevice(y + all(1.0f));
  return s <= all(20.0f) ? y : s;
}

}  // namespace
}  // namespace gdnsim::golden
