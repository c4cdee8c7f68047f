// The plain gated norm over V: one warp a value head of a row, active or not (rules A2.6, N1-N4).
#include "launch.cuh"
#include "scalar.cuh"

namespace gdnsim::cuda {
namespace {

/// z * sigmoid(z), or sigmoid(z) alone.
__device__ float gate(const StepView& s, std::int64_t i) {
  const float z = load(s.shape.act_type, s.in.z, i), sigma = sigmoid(s.rules, z);
  return s.shape.gate_silu ? __fmul_rn(z, sigma) : sigma;
}

/// One element after the root is known, in the convention's order of rounding.
__device__ float finish(const StepView& s, float o, float rstd, float weight, float gate) {
  const DType act = s.shape.act_type;
  const float scaled = __fmul_rn(o, rstd);
  switch (s.rules.norm) {
    case Norm::gate_first:
      return __fmul_rn(scaled, weight);  // `o` met the gate before
    case Norm::hf:
      return __fmul_rn(rounded_to(act, __fmul_rn(rounded_to(act, scaled), weight)), gate);
    case Norm::vllm:
      break;
  }
  return __fmul_rn(__fmul_rn(scaled, weight), gate);
}

__device__ float rstd_of(const StepView& s, float sum) {
  const float mean = divide(s.rules, sum, static_cast<float>(s.shape.V));
  const float under_root = __fadd_rn(mean, s.shape.norm_eps);
  if (s.rules.rstd == Rstd::rsqrt) return reciprocal_root(s.rules, under_root);
  return divide(s.rules, 1.0f, root(s.rules, under_root));
}

__global__ void norm_kernel(StepView s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool gate_first = s.rules.norm == Norm::gate_first;
  float* scratch = warp_scratch(s.norm_order);
  for (std::int64_t at = first_warp(); at < s.shape.rows * s.shape.HV; at += all_warps()) {
    const std::int64_t first = at * s.shape.V;
    const auto o = [&](int i) {
      const float value = load(s.shape.act_type, s.out.core_out, first + i);
      return gate_first ? __fmul_rn(value, gate(s, first + i)) : value;
    };
    const float rstd = rstd_of(s, dot(s.norm_order, o, o, scratch));
    if (lane == 0) s.out.rstd[at] = canonical(rstd);
    for (int i = lane; i < s.shape.V; i += kWarp) {
      const float weight = load(s.shape.act_type, s.params.norm_weight, i);
      const float factor = gate_first ? 1.0f : gate(s, first + i);
      store(s.shape.act_type, s.out.norm_out, first + i, finish(s, o(i), rstd, weight, factor));
    }
  }
}

}  // namespace

void launch_norm(const StepView& step) {
  launch_warps(norm_kernel, step.shape.rows * step.shape.HV, step.norm_order, step);
}

}  // namespace gdnsim::cuda
