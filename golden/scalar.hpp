// The scalar functions of a contract: which exp, which division, which root. One place, so that every equation of the step
// reads the same under every contract.
#pragma once

#include <cmath>

#include "gdnsim/arith.hpp"
#include "gdnsim/contract.hpp"
#include "sfu.hpp"

namespace gdnsim::golden {

/// The f32 constant log2(e) that Triton multiplies by before ex2 (rule T1).
inline constexpr float kLog2E = 1.44269502162933349609375f;  // 0x3FB8AA3B
static_assert(std::bit_cast<std::uint32_t>(kLog2E) == 0x3FB8AA3B);

class Scalar {
 public:
  explicit Scalar(const Contract& contract) : c_(contract) {}

  float exp(float x) const { return c_.exp == Exp::exact ? exp_cr(x) : ex2_approx(x * kLog2E); }

  float div(float a, float b) const {
    switch (c_.div) {
      case Div::ieee:
        return a / b;
      case Div::full:
        return div_full(a, b);
      case Div::reciprocal:
        return a * rcp_approx_ftz(b);
    }
    return a / b;
  }

  float sqrt(float x) const { return c_.sqrt == Sqrt::ieee ? std::sqrt(x) : sqrt_approx_ftz(x); }
  float rsqrt(float x) const { return c_.sqrt == Sqrt::ieee ? 1.0f / std::sqrt(x) : rsqrt_approx_ftz(x); }
  float negate(float x) const { return c_.negate == Negate::sign ? -x : 0.0f - x; }

  /// 1 / (1 + e^-x)
  float sigmoid(float x) const { return div(1.0f, exp(negate(x)) + 1.0f); }
  /// x / (1 + e^-x), the conv's form (rule A2.1)
  float silu(float x) const { return div(x, exp(negate(x)) + 1.0f); }

  /// s where s > 20, else log(1 + e^s) (rule A2.4)
  float softplus(float s) const {
    if (!(s <= 20.0f)) return s;
    switch (c_.softplus) {
      case Softplus::log1p:
        return log1p_cr(exp(s));
      case Softplus::log:
        return log_cr(exp(s) + 1.0f);
      case Softplus::log_libdevice:
        return log_libdevice(exp(s) + 1.0f);
    }
    return s;
  }

 private:
  const Contract& c_;
};

}  // namespace gdnsim::golden
