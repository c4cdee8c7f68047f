#include "check/norm_share.hpp"

#include <algorithm>
#include <cmath>

namespace gdnsim {
namespace {

int digits_of(DType type) { return type == DType::bf16 ? 8 : type == DType::f16 ? 11 : 24; }

/// Golden's and Triton's orders of sums: the shares were asked of these.
bool is_of_a_preset(const Dot& order) {
  return std::ranges::find(contract_presets(), order, &Contract::norm_dot) != contract_presets().end();
}

}  // namespace

Share expected_share(const NormSpec& spec, const Contract& contract) {
  if (!spec.gated || spec.act == DType::f32) return {0, 1, ""};
  if (contract.norm == Norm::gate_first) return {0, 1, "no share is expected of a gate that comes first"};
  if (!is_of_a_preset(contract.norm_dot)) return {0, 1, "no share is expected of this order of sums"};
  if (contract.norm == Norm::hf && spec.act == DType::bf16) return {0.645, 0.665, "rounded three times"};
  if (contract.norm == Norm::hf) return {0, 1, ""};
  return {1 - std::ldexp(2e-5, digits_of(spec.act) - digits_of(DType::bf16)), 1, "rounded once"};
}

}  // namespace gdnsim
