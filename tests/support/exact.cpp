// Correctly rounded exp, log and log1p: MPFR, and enclosures in double.
//
// Why a quick_ function may stand for its exact_ one. Each computes y in double with a relative error that is derived
// below, term by term, and is far below kSlack = 2^-42. The true value then lies between y(1 - kSlack) and y(1 +
// kSlack). Rounding to f32 is monotonic, so if both ends round to one float, the true value rounds to that float too.
// Where the ends differ, MPFR answers. That happens for 2 * 2^-42 of each gap of 2^-24: about one input in 10^5. libm
// gives fma and exact scaling only; the tables are MPFR's, the series are ours. u = 2^-53.
//
// Where a result is constant (exp beyond its range), the ends of the constant range are asked of MPFR
// (`constant_ranges`), and monotonicity does the rest.
#include "support/exact.hpp"

#include <mpfr.h>

#include <array>
#include <cmath>
#include <cstdlib>

#include "support/rounding.hpp"

namespace gdnsim::second {
namespace {

constexpr double kSlack = 0x1p-42;

/// One MPFR number of `bits` bits, freed with its scope.
struct Exact {
  explicit Exact(int bits) { mpfr_init2(value, bits); }
  ~Exact() { mpfr_clear(value); }
  Exact(const Exact&) = delete;
  Exact& operator=(const Exact&) = delete;
  mpfr_t value;
};

/// Applies `function` in f32: 24 bits, exponents of f32 (MPFR's mantissa is in [1/2, 1)), then MPFR's own denormal
/// rounding, which uses the direction of the first rounding so that nothing is rounded twice.
template <class Function>
float in_f32(float x, Function function) {
  static thread_local Exact argument(24), result(24);
  const mpfr_exp_t emin = mpfr_get_emin(), emax = mpfr_get_emax();
  mpfr_set_emin(-148);
  mpfr_set_emax(128);
  mpfr_set_flt(argument.value, x, MPFR_RNDN);
  const int direction = function(result.value, argument.value, MPFR_RNDN);
  mpfr_subnormalize(result.value, direction, MPFR_RNDN);
  const float rounded = mpfr_get_flt(result.value, MPFR_RNDN);
  mpfr_set_emin(emin);
  mpfr_set_emax(emax);
  return canonical(rounded);
}

template <class Function>
double table_entry(double x, Function function) {
  Exact argument(53), result(53);
  mpfr_set_d(argument.value, x, MPFR_RNDN);
  function(result.value, argument.value, MPFR_RNDN);
  return mpfr_get_d(result.value, MPFR_RNDN);
}

struct Tables {
  std::array<double, 64> exp2;   // 2^(j/64)
  std::array<double, 257> over;  // c: 1/m to 10 bits for m near 1/2 + j/256, exactly 1 around m = 1
  std::array<double, 257> log;   // -log(over[j])
  double ln2 = table_entry(2, mpfr_log);
  double ln2_64_top, ln2_64_low;  // ln2/64: 32 bits, and the next 53

  Tables() {
    for (int j = 0; j < 64; ++j) exp2[static_cast<std::size_t>(j)] = table_entry(j / 64.0, mpfr_exp2);
    for (int j = 0; j <= 256; ++j) {
      const double m = 0.5 + j / 256.0;
      const double c = std::fabs(m - 1) < 1.5 / 256 ? 1 : std::nearbyint(512 / m) / 512;
      over[static_cast<std::size_t>(j)] = c;
      log[static_cast<std::size_t>(j)] = c == 1 ? 0 : -table_entry(c, mpfr_log);
    }
    Exact whole(200), top(32);
    mpfr_const_log2(whole.value, MPFR_RNDN);
    mpfr_div_2ui(whole.value, whole.value, 6, MPFR_RNDN);
    mpfr_set(top.value, whole.value, MPFR_RNDN);
    ln2_64_top = mpfr_get_d(top.value, MPFR_RNDN);
    mpfr_sub(whole.value, whole.value, top.value, MPFR_RNDN);
    ln2_64_low = mpfr_get_d(whole.value, MPFR_RNDN);
  }
};

const Tables& tables() {
  static const Tables result;
  return result;
}

/// The float that the enclosure around `y` rounds to, or MPFR's when it holds a rounding boundary.
template <class Function>
float decide(double y, float x, Function exact, std::uint64_t& undecided) {
  const auto low = static_cast<float>(y - y * kSlack), high = static_cast<float>(y + y * kSlack);
  if (bits_of(low) == bits_of(high)) return low;
  ++undecided;
  return exact(x);
}

// exp(x) = 2^(k/64) e^r, k = round(64 x / ln 2), |k| < 10000, |r| < ln2/128 + tiny < 0.00542. k * ln2_64_top has 14 +
// 32 bits, exact; the two subtractions err by u |r| each and the low product by 10000 * 2^-38 * u: an error of r, which
// is a relative error of e^r. The series stops before r^6/720 < 2^-54. Each of its five steps, the table entry and the
// product add at most u or so: in all below 16 u = 2^-49 < kSlack.
double enclosed_exp(float x) {
  const Tables& t = tables();
  const double k = std::nearbyint(static_cast<double>(x) * 92.332482616893656877);
  const double r = (static_cast<double>(x) - k * t.ln2_64_top) - k * t.ln2_64_low;
  const double series = 1 + r * (1 + r * (1 / 2. + r * (1 / 6. + r * (1 / 24. + r / 120))));
  const int whole = static_cast<int>(std::floor(k / 64));
  return std::ldexp(t.exp2[static_cast<std::size_t>(static_cast<int>(k) - 64 * whole)] * series, whole);
}

// log(1 + r) for |r| < 2^-7: the series stops before r^10/10, relative to r below 2^-66; the relative error is a few u,
// since the leading term is r itself, added last.
double log_series(double r) {
  double sum = 0;
  for (int n = 9; n >= 2; --n) sum = (n % 2 == 0 ? -1.0 : 1.0) / n + r * sum;
  return r + r * r * sum;
}

// log(v), v = 2^e m, m in [3/4, 3/2): c = over[j] has 10 bits and |c m - 1| < 2^-7 (1.5/256 where c = 1; else c errs by
// 1/1024 and m by 1/512); the fma rounds once, to within u |r|. log v = e ln2 - log c + log(1 + r). Where e = 0 and c =
// 1 the relative error is that of the series and of r. Elsewhere |log v| > 1/200 and grows with |e|, and the terms err
// by at most 4 u max(1, |e|) together: a relative error below 1000 u < 2^-42.
double enclosed_log(double v) {
  const Tables& t = tables();
  int e;
  double m = std::frexp(v, &e);  // [1/2, 1)
  if (m < 0.75) m *= 2, --e;
  const auto j = static_cast<std::size_t>(std::nearbyint((m - 0.5) * 256));
  const double r = std::fma(t.over[j], m, -1.0);
  if (e == 0 && t.log[j] == 0) return log_series(r);
  return e * t.ln2 + (t.log[j] + log_series(r));
}

/// Asks MPFR for the ends of the ranges that the quick functions treat as constant; aborts if they are not what is
/// assumed.
bool constant_ranges() {
  const float inf = float_of(0x7F800000u);
  const bool sure = bits_of(exact_exp(89.0f)) == bits_of(inf) && bits_of(exact_exp(-104.0f)) == 0;
  if (!sure) std::abort();
  return true;
}

}  // namespace

float exact_exp(float x) { return in_f32(x, mpfr_exp); }
float exact_log(float x) { return in_f32(x, mpfr_log); }
float exact_log1p(float x) { return in_f32(x, mpfr_log1p); }

float quick_exp(float x, std::uint64_t& undecided) {
  static const bool checked = constant_ranges();
  (void)checked;
  if (x != x) return exact_exp(x);
  if (x >= 89) return float_of(0x7F800000u);
  if (x <= -104) return 0;
  return decide(enclosed_exp(x), x, exact_exp, undecided);
}

float quick_log(float x, std::uint64_t& undecided) {
  if (!(x > 0) || std::isinf(x) || x == 1) return exact_log(x);  // NaN, poles, and the one exact zero
  return decide(enclosed_log(x), x, exact_log, undecided);
}

// Below 2^-7 the series of log1p serves directly (x is exact). From there on, 1 + x is exact in double up to 2^52 and
// errs by u beyond, which moves a logarithm above 36 by u.
float quick_log1p(float x, std::uint64_t& undecided) {
  if (!(x > -1) || std::isinf(x) || x == 0) return exact_log1p(x);
  const double y = std::fabs(x) < 0x1p-7f ? log_series(x) : enclosed_log(1.0 + static_cast<double>(x));
  return decide(y, x, exact_log1p, undecided);
}

}  // namespace gdnsim::second
