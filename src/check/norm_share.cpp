#include "check/norm_share.hpp"

#include <cmath>

namespace gdnsim {
namespace {

int digits_of(DType type) { return type == DType::bf16 ? 8 : type == DType::f16 ? 11 : 24; }

}  // namespace

Share expected_share(const NormSpec& spec, const Contract& contract) {
  if (!spec.gated || spec.act == DType::f32) return {0, 1, ""};
  if (contract.norm == Norm::hf && spec.act == DType::bf16) return {0.645, 0.665, "rounded three times"};
  if (contract.norm == Norm::hf) return {0, 1, ""};
  return {1 - std::ldexp(2e-5, digits_of(spec.act) - digits_of(DType::bf16)), 1, "rounded once"};
}

}  // namespace gdnsim
