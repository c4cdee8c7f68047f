#include "decode_step.hpp"

#include "gdnsim/clones.hpp"
#include "norm_rows.hpp"

namespace gdnsim::golden {
namespace {

Row widen_all(DType type, const Bytes& words) {
  Row result(static_cast<Eigen::Index>(words.size() / size_of(type)));
  widen(type, words.data(), 0, result.size(), result.data());
  return result;
}

DotContext dot_context(const Model& model, const Contract& contract, const StepPlan& plan) {
  return {model.state_dtype, plan.norm_rows(model.HV), contract.multiprocessors};
}

/// S = fma(k, u, S)
GDNSIM_CLONES void fused_update(Row& S, const float* k, float u) {
  float* s = S.data();
  for (Eigen::Index j = 0; j < S.size(); ++j) s[j] = std::fma(k[j], u, s[j]);
}

/// sum = fma(window, weight, acc)
GDNSIM_CLONES void fused_products(const Row& acc, const Row& window, const Row& weight, Row& sum) {
  for (Eigen::Index i = 0; i < acc.size(); ++i)
    sum.data()[i] = std::fma(window.data()[i], weight.data()[i], acc.data()[i]);
}

/// acc + window * weight as the contract multiplies (rules C1, T5).
Row add_product(const StepContext& context, const Row& acc, const Row& window, const Row& weight) {
  const DType conv = context.model.conv_state_dtype;
  ConvProduct product = context.contract.conv_product;
  if (product == ConvProduct::rounded_or_fma) product = conv == DType::f32 ? ConvProduct::fma : ConvProduct::rounded;
  if (product == ConvProduct::fma) {
    Row sum(acc.size());
    fused_products(acc, window, weight, sum);
    return sum;
  }
  if (product == ConvProduct::f32) return acc + window * weight;
  return acc + (window * weight).unaryExpr([conv](float x) { return rounded_to(conv, x); });
}

/// Rolls the window by one column; copies keep NaN payloads. `fresh` is x in the conv state's words.
void roll(const Model& model, std::int64_t begin, std::int64_t end, const std::byte* fresh, std::byte* conv) {
  const std::size_t word = size_of(model.conv_state_dtype), bytes = static_cast<std::size_t>(end - begin) * word;
  const auto column = [&](int j) { return conv + static_cast<std::size_t>(j * model.dim() + begin) * word; };
  for (int j = 0; j + 2 < model.W; ++j) std::memcpy(column(j), column(j + 1), bytes);
  std::memcpy(column(model.W - 2), fresh, bytes);
}

/// x in the conv state's type: copied where the types agree or widen, else rounded.
Bytes to_conv_words(const Model& model, const std::byte* x, std::int64_t first, std::int64_t count) {
  const DType from = model.act_dtype, to = model.conv_state_dtype;
  Bytes words(static_cast<std::size_t>(count) * size_of(to));
  if (from == to) {
    std::memcpy(words.data(), x + static_cast<std::size_t>(first) * size_of(from), words.size());
  } else if (to == DType::f32) {
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = widened(from, x, first + i);
      std::memcpy(words.data() + 4 * i, &value, 4);
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) store(to, words.data(), i, widened(from, x, first + i));
  }
  return words;
}

/// x / sqrt(sum(x*x) + eps) in the contract's form (rules Q1-Q3).
Row normalised(const StepContext& context, const Row& x) {
  constexpr float eps = 1e-6f;
  const Contract& contract = context.contract;
  const Scalar& f = context.scalar;
  const float sum = dot(context.qk_order, x.data(), x.data());
  const float under_root = contract.qk_eps == QkEps::sum     ? sum + eps
                           : contract.qk_eps == QkEps::mean  ? f.div(sum, static_cast<float>(x.size())) + eps
                           : contract.qk_eps == QkEps::sum_k ? sum + static_cast<float>(x.size()) * eps
                                                             : sum;
  if (contract.qk_eps == QkEps::max) {
    const float length = f.sqrt(sum), root = length < eps ? eps : length;
    return x.unaryExpr([&](float e) { return f.div(e, root); });
  }
  if (contract.qk_norm == QkNorm::multiply) return f.rsqrt(under_root) * x;
  const float root = f.sqrt(under_root);
  return x.unaryExpr([&](float e) { return f.div(e, root); });
}

float rounded_param(const StepContext& context, float x) {
  return context.contract.params == Params::bf16 ? rounded_to(DType::bf16, x) : x;
}

/// The factor of the state from its log (rule A2.4).
float decay_of(const StepContext& context, float g) {
  const Scalar& f = context.scalar;
  switch (context.contract.decay) {
    case Decay::exp:
      return f.exp(g);
    case Decay::linear:
      return g;
    case Decay::twice:
      return f.exp(f.exp(g));
    case Decay::none:
      break;
  }
  return 1.0f;
}

int key_head(const StepContext& context, int head) {
  const Model& model = context.model;
  return context.contract.head_map == HeadMap::grouped ? head / (model.HV / model.H) : head % model.H;
}

/// Overwrites x with its canonical form: what a tap holds came out of arithmetic.
void canonicalise(Row& x) {
  x = x.unaryExpr([](float e) { return canonical(e); });
}

}  // namespace

Weights widen_params(const Model& model, const LayerParams& params) {
  Weights w;
  w.A_log = ConstRowMap(params.A_log.data(), model.HV);
  w.dt_bias = ConstRowMap(params.dt_bias.data(), model.HV);
  const Row flat = widen_all(model.act_dtype, params.conv_weight);  // [dim][W]
  w.conv = Eigen::Map<const Eigen::ArrayXXf>(flat.data(), model.W, model.dim()).transpose();
  w.conv_bias = widen_all(model.act_dtype, params.conv_bias);
  w.norm = widen_all(model.act_dtype, params.norm_weight);
  return w;
}

void Values::resize(const Model& model, std::int64_t rows) {
  const auto zero = [&](Row& row, std::int64_t per_row) { row = Row::Zero(rows * per_row); };
  const std::int64_t keys = 1LL * model.H * model.K, values = 1LL * model.HV * model.V;
  zero(conv_acc, model.dim());
  zero(q, keys), zero(k, keys);
  zero(beta, model.HV), zero(g, model.HV), zero(decay, model.HV), zero(rstd, model.HV);
  zero(dot_k, values), zero(u, values);
  const std::size_t word = size_of(model.act_dtype), count = static_cast<std::size_t>(rows);
  conv_out.assign(count * static_cast<std::size_t>(model.dim()) * word, std::byte{0});
  core_out.assign(count * static_cast<std::size_t>(values) * word, std::byte{0});
  norm_out.assign(core_out.size(), std::byte{0});
}

StepContext::StepContext(const Model& model_, const Weights& weights_, const Contract& contract_, const StepPlan& plan_,
                         const StepInputs& inputs_)
    : model(model_),
      weights(weights_),
      contract(contract_),
      plan(plan_),
      inputs(inputs_),
      scalar(contract_),
      qk_order(resolve(contract_.qk_dot, model_.K, dot_context(model_, contract_, plan_))),
      state_order(resolve(contract_.state_dot, model_.K, dot_context(model_, contract_, plan_))),
      sequential_k_order(sequential_k(state_order)),
      norm_order(resolve(contract_.norm_dot, model_.V, dot_context(model_, contract_, plan_))) {}

void conv_update(const StepContext& context, int row, std::int64_t begin, std::int64_t end, std::byte* conv,
                 Values& values) {
  const Model& model = context.model;
  const Weights& w = context.weights;
  const std::int64_t n = end - begin, dim = model.dim(), here = row * dim + begin;
  const Bytes fresh = to_conv_words(model, context.inputs.mixed_qkv.data(), here, n);

  // acc = bias + sum over taps, oldest first, of window * weight
  const bool bias = w.conv_bias.size() > 0, bias_first = context.contract.conv_bias == ConvBias::first;
  Row acc = bias && bias_first ? Row(w.conv_bias.segment(begin, n)) : Row(Row::Zero(n));
  Row window(n);
  for (int i = 0; i < model.W; ++i) {
    const int tap = context.contract.conv_taps == ConvTaps::oldest_first ? i : model.W - 1 - i;
    if (tap == model.W - 1)
      widen(model.conv_state_dtype, fresh.data(), 0, n, window.data());
    else
      widen(model.conv_state_dtype, conv, tap * dim + begin, n, window.data());
    acc = add_product(context, acc, window, w.conv.col(tap).segment(begin, n));
  }
  if (bias && !bias_first) acc = acc + w.conv_bias.segment(begin, n);
  if (context.contract.conv_sum == ConvSum::act)
    acc = acc.unaryExpr([&](float x) { return rounded_to(model.act_dtype, x); }).eval();
  canonicalise(acc);
  values.conv_acc.segment(here, n) = acc;

  // out = silu(acc), rounded to the activation type
  if (model.activation == Activation::silu) acc = acc.unaryExpr([&](float x) { return context.scalar.silu(x); });
  store_row(model.act_dtype, values.conv_out.data(), here, n, acc.data());

  roll(model, begin, end, fresh.data(), conv);
}

void normalise_head(const StepContext& context, int row, int head, Values& values) {
  const Model& model = context.model;
  const std::int64_t K = model.K, in_q = row * model.dim() + head * K, in_k = in_q + model.H * K;
  const bool scale_first = context.contract.scale == Scale::before;
  const bool norm = model.use_qk_l2norm && context.contract.qk_norm != QkNorm::none;
  Row q(K), k(K);
  widen(model.act_dtype, values.conv_out.data(), in_q, K, q.data());
  widen(model.act_dtype, values.conv_out.data(), in_k, K, k.data());
  if (scale_first) q = q * model.scale;
  if (norm) {
    q = normalised(context, q);
    k = normalised(context, k);
  }
  if (!scale_first) q = q * model.scale;
  canonicalise(q);
  if (norm) canonicalise(k);  // without a norm k is a copy and keeps its payload
  const std::int64_t out = (1LL * row * model.H + head) * K;
  values.q.segment(out, K) = q;
  values.k.segment(out, K) = k;
}

void gates(const StepContext& context, int row, int head, Values& values) {
  const Model& model = context.model;
  const Scalar& f = context.scalar;
  const std::int64_t at = 1LL * row * model.HV + head;
  const float a = widened(model.act_dtype, context.inputs.a.data(), at);
  const float b = widened(model.act_dtype, context.inputs.b.data(), at);
  const float A_log = rounded_param(context, context.weights.A_log[head]);
  const float dt_bias = rounded_param(context, context.weights.dt_bias[head]);

  const float s = a + dt_bias;
  const float g = f.negate(f.exp(A_log)) * f.softplus(s);
  float beta = f.sigmoid(b);
  if (context.contract.beta == Beta::bf16) beta = rounded_to(DType::bf16, beta);

  values.g[at] = canonical(g);
  values.decay[at] = canonical(decay_of(context, g));
  values.beta[at] = canonical(beta);
}

bool store_rounds(const Model& model, const Contract& contract) {
  return model.state_dtype != DType::f32 || contract.state_store == StateStore::bf16;
}

void recurrent_head(const StepContext& context, int row, int head, std::byte* state, const HeldState& held,
                    Values& values) {
  const Model& model = context.model;
  const Contract& contract = context.contract;
  const std::int64_t K = model.K, V = model.V, at = 1LL * row * model.HV + head;
  const std::int64_t keys = (1LL * row * model.H + key_head(context, head)) * K;
  const ConstRowMap q(values.q.data() + keys, K), k(values.k.data() + keys, K);
  const float decay = values.decay[at], beta = values.beta[at];
  const std::int64_t in_v = row * model.dim() + 2LL * model.H * K + head * V;

  Row S(K);  // one row of the state, f32
  for (std::int64_t i = 0; i < V; ++i) {
    const float v = widened(model.act_dtype, values.conv_out.data(), in_v + i);
    if (held.read)
      std::memcpy(S.data(), held.S + i * K, static_cast<std::size_t>(K) * sizeof(float));
    else
      widen(model.state_dtype, state, i * K, K, S.data());

    S = decay * S;
    const DotOrder& k_order =
        is_sequential_k(context.state_order, i) ? context.sequential_k_order : context.state_order;
    const float dot_k = dot(k_order, S.data(), k.data());
    const float u = (v - dot_k) * beta;
    if (contract.update == Update::multiply_add)
      S = S + u * k;
    else
      fused_update(S, k.data(), u);
    const float out = dot(context.state_order, S.data(), q.data());

    values.dot_k[at * V + i] = canonical(dot_k);
    values.u[at * V + i] = canonical(u);
    store(model.act_dtype, values.core_out.data(), at * V + i, out);
    if (held.write) std::memcpy(held.S + i * K, S.data(), static_cast<std::size_t>(K) * sizeof(float));
    if (contract.state_store == StateStore::bf16) S = S.unaryExpr([](float x) { return rounded_to(DType::bf16, x); });
    store_row(model.state_dtype, state, i * K, K, S.data());
  }
}

void gated_norm(const StepContext& context, int row, int head, Values& values) {
  const Model& model = context.model;
  const DType act = model.act_dtype;
  const std::int64_t V = model.V, at = 1LL * row * model.HV + head;
  Row o(V), z(V);
  widen(act, values.core_out.data(), at * V, V, o.data());
  widen(act, context.inputs.z.data(), at * V, V, z.data());

  const NormRules rules{context.scalar, context.contract, context.norm_order, act, model.norm_gate, *model.norm_eps};
  values.rstd[at] = canonical(norm_row(rules, o, &z, context.weights.norm));
  store_row(act, values.norm_out.data(), at * V, V, o.data());
}

}  // namespace gdnsim::golden
