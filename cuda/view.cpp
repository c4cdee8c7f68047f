#include "view.hpp"

namespace gdnsim::cuda {
namespace {

Rules rules_of(const Contract& c) {
  return {.conv_product = c.conv_product,
          .conv_taps = c.conv_taps,
          .conv_bias = c.conv_bias,
          .conv_sum = c.conv_sum,
          .exp = c.exp,
          .div = c.div,
          .sqrt = c.sqrt,
          .negate = c.negate,
          .softplus = c.softplus,
          .beta = c.beta,
          .params = c.params,
          .decay = c.decay,
          .qk_norm = c.qk_norm,
          .qk_eps = c.qk_eps,
          .scale = c.scale,
          .update = c.update,
          .state_store = c.state_store,
          .head_map = c.head_map,
          .norm = c.norm,
          .rstd = c.rstd};
}

Shape shape_from(const Model& m, std::int64_t rows) {
  return {.H = m.H,
          .HV = m.HV,
          .K = m.K,
          .V = m.V,
          .W = m.W,
          .dim = m.dim(),
          .rows = rows,
          .scale = m.scale,
          .norm_eps = m.norm_eps.value_or(0.0f),
          .silu = m.activation == Activation::silu,
          .qk_l2norm = m.use_qk_l2norm,
          .gate_silu = m.norm_gate == NormGate::silu,
          .state_type = m.state_dtype,
          .conv_type = m.conv_state_dtype,
          .act_type = m.act_dtype};
}

}  // namespace

StepView view_of(const Model& model, const Contract& contract, std::int64_t rows) {
  const DotContext context{model.state_dtype, rows * model.HV, contract.multiprocessors};
  StepView view{};
  view.shape = shape_from(model, rows);
  view.rules = rules_of(contract);
  view.qk_order = resolve(contract.qk_dot, model.K, context);
  view.state_order = resolve(contract.state_dot, model.K, context);
  view.norm_order = resolve(contract.norm_dot, model.V, context);
  return view;
}

}  // namespace gdnsim::cuda
