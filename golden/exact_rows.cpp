// What accuracy is measured against: rows of the double-precision oracle (check.hpp).
#include <Eigen/Core>
#include <cmath>

#include "gdnsim/check.hpp"
#include "oracle_f64.hpp"
#include "words.hpp"

namespace gdnsim {
namespace {

using Wide = Eigen::ArrayXd;

Wide wide(DType type, std::span<const std::byte> words, std::int64_t first, std::int64_t count) {
  Wide values(count);
  for (std::int64_t i = 0; i < count; ++i) values[i] = golden::widened(type, words.data(), first + i);
  return values;
}

Wide exact_gate(NormGate gate, const Wide& z) {
  const Wide sigmoid = 1 / (1 + (-z).exp());
  return gate == NormGate::silu ? z * sigmoid : sigmoid;
}

}  // namespace

void exact_norm(const NormArgs& args, std::span<double> out) {
  const NormSpec& spec = args.spec;
  const std::int64_t n = spec.width;
  Wide weight = wide(spec.act, args.weight, 0, n);
  if (spec.weight_offset != 0) weight += spec.weight_offset;
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < args.rows; ++row) {
    Wide x = wide(spec.act, args.x, row * n, n), gate = Wide::Ones(n);
    if (spec.gated) gate = exact_gate(spec.gate, wide(spec.act, args.z, row * n, n));
    if (args.contract.norm == Norm::gate_first) x *= gate, gate.setOnes();
    Eigen::Map<Wide> y(out.data() + row * n, n);
    y = x / std::sqrt(x.square().mean() + static_cast<double>(spec.eps)) * weight * gate;
  }
}

ExactOutputs exact_row(const Model& model, const LayerParams& params, const ExactRow& row) {
  const golden::OracleF64 oracle(model, params);
  golden::OracleBlock block{golden::widened(row.recurrent, model.state_dtype),
                            golden::widened(row.conv, model.conv_state_dtype)};
  ExactOutputs outputs;
  outputs.conv_out = oracle.conv(golden::widened(row.mixed_qkv, model.act_dtype), block);
  outputs.core_out =
      oracle
          .recurrence(golden::widened(row.conv_out, model.act_dtype), golden::widened(row.a, model.act_dtype),
                      golden::widened(row.b, model.act_dtype), block)
          .core_out;
  return outputs;
}

}  // namespace gdnsim
