// How far f32 arithmetic may be from the double-precision oracle, stage by stage: first-order sums of what each
// rounding may add, from the oracle's magnitudes. u = 2^-24. kC is the number of roundings on the longest path of a dot
// of up to 128 elements (the product, 5 to 8 additions, and what is left), and covers the 2 ulp of the approximate
// functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>

#include "golden/oracle_f64.hpp"

namespace gdnsim::second {

using golden::Doubles;
using golden::OracleCore;
using golden::OracleNorm;
using golden::widened;

constexpr double kU = 0x1p-24, kC = 12;

/// What storing `value` in a 16-bit type may move it by: half a unit of 8 or 11 significant bits, or half the smallest
/// step.
inline double store_error(double value, DType type) {
  if (type == DType::f32) return 0;
  return type == DType::bf16 ? std::fabs(value) * 0x1p-8 + 0x1p-134 : std::fabs(value) * 0x1p-11 + 0x1p-25;
}

/// The largest |got - want| / bound seen, by name of the value.
struct Worst {
  double conv = 0, qk = 0, gates = 0, dot = 0, state = 0, core = 0, norm = 0;
  static void note(double& worst, double got, double want, double bound) {
    const double ratio = std::fabs(got - want) / (bound + 0x1p-140);  // the floor: a few denormal roundings
    worst = std::max(worst, std::isnan(ratio) ? HUGE_VAL : ratio);
  }
};

/// Inputs of one row, widened.
struct RowInputs {
  Doubles x, a, b, z;
};

/// One backend row's taps, widened.
using RowTaps = std::function<Doubles(Tap)>;

/// conv: W products (rounded to the conv state's type under the rounding contracts), W additions, silu with slope below
/// 1.1.
inline void judge_conv(const Model& m, const LayerParams& p, const Doubles& window, const Doubles& want,
                       const Doubles& got, Worst& worst) {
  const Doubles weight = widened(p.conv_weight, m.act_dtype), bias = widened(p.conv_bias, m.act_dtype);
  const auto dim = static_cast<std::size_t>(m.dim()), W = static_cast<std::size_t>(m.W);
  for (std::size_t c = 0; c < dim; ++c) {
    double size = bias.empty() ? 0 : std::fabs(bias[c]);
    for (std::size_t j = 0; j < W; ++j) size += std::fabs(window[j * dim + c] * weight[c * W + j]);
    const double sum = store_error(size, m.conv_state_dtype) + size * static_cast<double>(W + 1) * kU;
    // exp(-acc) errs by |acc| u (its argument) and a few u.
    const double silu = std::fabs(want[c]) * (size + 8) * 2 * kU;
    Worst::note(worst.conv, got[c], want[c], 1.1 * sum + silu + store_error(want[c], m.act_dtype));
  }
}

/// What the gates may be off by: absolute errors of beta and of decay (relative), per value head.
struct GateErrors {
  Doubles beta, decay;
};

inline GateErrors judge_gates(const LayerParams& p, const RowInputs& in, const OracleCore& want, const RowTaps& got,
                              Worst& worst) {
  GateErrors errors;
  const Doubles beta = got(Tap::beta), g = got(Tap::g), decay = got(Tap::decay);
  for (std::size_t hv = 0; hv < want.beta.size(); ++hv) {
    const double A = std::exp(static_cast<double>(p.A_log[hv])), softplus = -want.g[hv] / A;
    const double s = std::fabs(in.a[hv]) + std::fabs(static_cast<double>(p.dt_bias[hv]));
    // log(1 + e) loses up to 2u absolutely where e is small; e itself errs by s u and its argument's error.
    const double softplus_error = softplus * (2 * s + 8) * kU + 4 * kU;
    const double g_error =
        A * softplus_error + std::fabs(want.g[hv]) * (2 * std::fabs(static_cast<double>(p.A_log[hv])) + 4) * kU;
    errors.beta.push_back(want.beta[hv] * (2 * std::fabs(in.b[hv]) + 8) * kU);
    errors.decay.push_back(g_error + (2 * std::fabs(want.g[hv]) + 4) * kU);
    Worst::note(worst.gates, beta[hv], want.beta[hv], errors.beta[hv]);
    Worst::note(worst.gates, g[hv], want.g[hv], g_error);
    Worst::note(worst.gates, decay[hv], want.decay[hv], want.decay[hv] * errors.decay[hv]);
  }
  return errors;
}

inline void judge_qk(const OracleCore& want, const RowTaps& got, Worst& worst) {
  const Doubles q = got(Tap::q), k = got(Tap::k);
  for (std::size_t i = 0; i < q.size(); ++i) {
    Worst::note(worst.qk, q[i], want.q[i], std::fabs(want.q[i]) * kC * kU);
    Worst::note(worst.qk, k[i], want.k[i], std::fabs(want.k[i]) * kC * kU);
  }
}

/// A block's state [HV, V, K] around the step: `before` both started from, `after` the oracle's, `stored` the
/// backend's.
struct StateView {
  const Doubles &before, &after, &stored;
};

inline void judge_recurrence(const Model& m, const Doubles& conv_out, const OracleCore& want, const RowTaps& got,
                             const StateView& state, const GateErrors& gate, Worst& worst) {
  const auto K = static_cast<std::size_t>(m.K), V = static_cast<std::size_t>(m.V),
             group = static_cast<std::size_t>(m.HV / m.H);
  const Doubles dot = got(Tap::dot_k), core = got(Tap::core_out);
  for (std::size_t at = 0; at < want.core_out.size(); ++at) {
    const std::size_t hv = at / V, h = hv / group;
    const double *S0 = &state.before[at * K], *S1 = &state.after[at * K], *k = &want.k[h * K], *q = &want.q[h * K];
    const double decay = want.decay[hv], v = conv_out[2 * static_cast<std::size_t>(m.H) * K + at];
    double size = 0;
    for (std::size_t i = 0; i < K; ++i) size += std::fabs(decay * S0[i] * k[i]);
    const double dot_error = size * (gate.decay[hv] + (2 * kC + 1) * kU);  // decay, its multiply, k's error, the dot
    const double u_error =
        want.beta[hv] * dot_error + std::fabs(v - want.dot_k[at]) * (gate.beta[hv] + 2 * want.beta[hv] * kU);
    Worst::note(worst.dot, dot[at], want.dot_k[at], dot_error);
    double core_error = 0, core_size = 0;
    for (std::size_t i = 0; i < K; ++i) {
      const double outer = std::fabs(want.u[at] * k[i]);
      const double error =
          std::fabs(decay * S0[i]) * (gate.decay[hv] + 2 * kU) + u_error * std::fabs(k[i]) + outer * (kC + 2) * kU;
      Worst::note(worst.state, state.stored[at * K + i], S1[i], error + store_error(S1[i], m.state_dtype));
      core_error += error * std::fabs(q[i]);
      core_size += std::fabs(S1[i] * q[i]);
    }
    Worst::note(worst.core, core[at], want.core_out[at],
                core_error + core_size * 2 * kC * kU + store_error(want.core_out[at], m.act_dtype));
  }
}

inline void judge_norm(const Model& m, const RowInputs& in, const OracleNorm& want, const RowTaps& got, Worst& worst) {
  const Doubles rstd = got(Tap::rstd), out = got(Tap::norm_out);
  for (std::size_t hv = 0; hv < rstd.size(); ++hv)
    Worst::note(worst.norm, rstd[hv], want.rstd[hv], want.rstd[hv] * kC * kU);
  for (std::size_t i = 0; i < out.size(); ++i)
    Worst::note(worst.norm, out[i], want.norm_out[i],
                std::fabs(want.norm_out[i]) * (kC + 2 * std::fabs(in.z[i]) + 12) * kU +
                    store_error(want.norm_out[i], m.act_dtype));
}

}  // namespace gdnsim::second
