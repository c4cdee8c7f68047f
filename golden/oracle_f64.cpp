// The double-precision oracle: the equations of docs/arithmetic.md as matrices, without a contract.
#include "oracle_f64.hpp"

#include <Eigen/Core>

#include <cmath>
#include <cstring>

#include "gdnsim/arith.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim::golden {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;

Eigen::Map<const Vector> vector(std::span<const double> values) {
  return {values.data(), static_cast<Eigen::Index>(values.size())};
}

double widen(const std::byte* word, DType type) {
  if (type == DType::f32) {
    float value;
    std::memcpy(&value, word, sizeof value);
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, word, sizeof half);
  return type == DType::bf16 ? f32_from_bf16(half) : f32_from_f16(half);
}

void round_through(Doubles& values, DType type) {
  for (double& value : values) {
    const auto single = static_cast<float>(value);
    value = type == DType::f32    ? single
            : type == DType::bf16 ? f32_from_bf16(bf16_from_f32(single))
                                  : f32_from_f16(f16_from_f32(single));
  }
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

std::span<const double> part(std::span<const double> values, std::int64_t from, std::int64_t count) {
  return values.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(count));
}

}  // namespace

Doubles widened(std::span<const std::byte> words, DType type) {
  Doubles values(words.size() / size_of(type));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = widen(words.data() + i * size_of(type), type);
  return values;
}

OracleF64::OracleF64(const Model& model, const LayerParams& params, OracleOptions options)
    : model_(model),
      options_(options),
      A_log_(params.A_log.begin(), params.A_log.end()),
      dt_bias_(params.dt_bias.begin(), params.dt_bias.end()),
      conv_weight_(widened(params.conv_weight, model.act_dtype)),
      conv_bias_(widened(params.conv_bias, model.act_dtype)),
      norm_weight_(widened(params.norm_weight, model.act_dtype)) {}

Doubles OracleF64::conv(std::span<const double> x, OracleBlock& block) const {
  const std::int64_t dim = model_.dim();
  GDNSIM_CHECK(static_cast<std::int64_t>(x.size()) == dim);
  // The window as a matrix [W, dim]: the stored columns, then the new one.
  Doubles window = block.conv;
  window.insert(window.end(), x.begin(), x.end());
  const Eigen::Map<const Matrix> columns(window.data(), model_.W, dim), weight(conv_weight_.data(), dim, model_.W);
  Vector acc = columns.transpose().cwiseProduct(weight).rowwise().sum();
  if (!conv_bias_.empty()) acc += vector(conv_bias_);
  Doubles out(acc.data(), acc.data() + dim);
  if (model_.activation == Activation::silu)
    for (double& value : out) value *= sigmoid(value);
  if (options_.round_activations) round_through(out, model_.act_dtype);
  block.conv.assign(window.begin() + static_cast<std::ptrdiff_t>(dim), window.end());
  if (options_.round_state) round_through(block.conv, model_.conv_state_dtype);
  return out;
}

Doubles OracleF64::heads(std::span<const double> values, double scale) const {
  Doubles out(values.begin(), values.end());
  Eigen::Map<Matrix> rows(out.data(), model_.H, model_.K);
  if (model_.use_qk_l2norm) {
    const Vector roots = (rows.rowwise().squaredNorm().array() + 1e-6).sqrt();
    rows.array().colwise() /= roots.array();
  }
  rows *= scale;
  return out;
}

void OracleF64::gates(std::span<const double> a, std::span<const double> b, OracleCore& core) const {
  for (std::size_t hv = 0; hv < a.size(); ++hv) {
    core.beta.push_back(sigmoid(b[hv]));
    core.g.push_back(-std::exp(A_log_[hv]) * softplus(a[hv] + dt_bias_[hv]));
    core.decay.push_back(std::exp(core.g[hv]));
  }
}

OracleCore OracleF64::recurrence(std::span<const double> conv_out, std::span<const double> a, std::span<const double> b,
                                 OracleBlock& block) const {
  const std::int64_t H = model_.H, HV = model_.HV, K = model_.K, V = model_.V;
  OracleCore core;
  core.q = heads(part(conv_out, 0, H * K), model_.scale);
  core.k = heads(part(conv_out, H * K, H * K), 1);
  gates(a, b, core);
  for (std::int64_t hv = 0; hv < HV; ++hv) {
    const std::int64_t h = hv / (HV / H);
    const auto at = static_cast<std::size_t>(hv);
    const auto q = vector(part(core.q, h * K, K)), k = vector(part(core.k, h * K, K));
    const auto v = vector(part(conv_out, 2 * H * K + hv * V, V));
    Eigen::Map<Matrix> S(block.recurrent.data() + hv * V * K, V, K);
    S *= core.decay[at];
    const Vector dot = S * k;
    const Vector u = core.beta[at] * (v - dot);
    S += u * k.transpose();
    const Vector o = S * q;
    core.dot_k.insert(core.dot_k.end(), dot.begin(), dot.end());
    core.u.insert(core.u.end(), u.begin(), u.end());
    core.core_out.insert(core.core_out.end(), o.begin(), o.end());
  }
  if (options_.round_activations) round_through(core.core_out, model_.act_dtype);
  if (options_.round_state) round_through(block.recurrent, model_.state_dtype);
  return core;
}

OracleNorm OracleF64::norm(std::span<const double> core_out, std::span<const double> z) const {
  GDNSIM_CHECK(model_.norm_eps.has_value() && !norm_weight_.empty());
  OracleNorm norm;
  for (std::int64_t hv = 0; hv < model_.HV; ++hv) {
    const auto o = vector(part(core_out, hv * model_.V, model_.V)), gate = vector(part(z, hv * model_.V, model_.V));
    const double rstd = 1 / std::sqrt(o.squaredNorm() / model_.V + *model_.norm_eps);
    norm.rstd.push_back(rstd);
    for (std::int64_t v = 0; v < model_.V; ++v) {
      const double open = model_.norm_gate == NormGate::silu ? gate[v] * sigmoid(gate[v]) : sigmoid(gate[v]);
      norm.norm_out.push_back(o[v] * rstd * norm_weight_[static_cast<std::size_t>(v)] * open);
    }
  }
  if (options_.round_activations) round_through(norm.norm_out, model_.act_dtype);
  return norm;
}

}  // namespace gdnsim::golden
