// Conv, q/k norm, gates and gated norm in lanes. The conv's lanes are channels; elsewhere a lane is a head, so that a row's sum
// runs down a tile in any order.
#pragma once

#include "simd_dot.hpp"
#include "simd_nearly.hpp"

namespace gdnsim::golden {
namespace {

// ---- conv (rules A2.1, C1-C3) ----

ConvProduct product_of(const Rules& rules) {
  const ConvProduct product = rules.contract->conv_product;
  if (product != ConvProduct::rounded_or_fma) return product;
  return rules.model->conv_state_dtype == DType::f32 ? ConvProduct::fma : ConvProduct::rounded;
}

GDNSIM_LANE F add_product(ConvProduct product, DType conv, F acc, F window, F weight) {
  if (product == ConvProduct::fma) return fma(window, weight, acc);
  const F x = window * weight;
  return acc + (product == ConvProduct::f32 || conv == DType::f32 ? x : rounded_to(conv, x));
}

/// x in the conv state's words: copied where the types agree, widened or rounded elsewhere.
GDNSIM_LANE void store_fresh(DType from, DType to, const std::byte* x, std::byte* column, std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(count) * word_size(to);
  const F value = load_words(from, x, count);
  if (from == to)
    __builtin_memcpy(column, x, bytes);
  else if (to == DType::f32)
    __builtin_memcpy(column, &value, bytes);
  else
    store_words(to, column, value, count);
}

/// The sum over the taps for `kWidth` channels of one step, or the `rest` of them; their window rolls. What can be is a constant:
/// the number of channels, and that of the taps (0: any).
template <DType kConv, DType kAct, bool kWhole, int kTaps>
GDNSIM_LANE F conv_sum(const ConvJob& job, const ConvStep& step, std::int64_t channel, std::int64_t rest) {
  const std::int64_t count = kWhole ? kWidth : rest;
  const Rules& rules = *step.rules;
  const Contract& contract = *rules.contract;
  const int W = kTaps > 0 ? kTaps : rules.model->W;
  const ConvProduct product = product_of(rules);
  const std::size_t word = word_size(kConv), bytes = static_cast<std::size_t>(count) * word;
  const auto column = [&](std::byte* window, int j)
                          GDNSIM_LEAF { return window + static_cast<std::size_t>(j * job.dim + channel) * word; };
  const std::byte* x = step.x + static_cast<std::size_t>(channel) * word_size(kAct);

  alignas(64) std::byte fresh[4 * kWidth];
  store_fresh(kAct, kConv, x, fresh, count);
  const F bias = job.bias != nullptr ? load(job.bias + channel, count) : F{};
  const bool bias_first = contract.conv_bias == ConvBias::first;
  F acc = bias_first ? bias : F{};
#pragma GCC unroll 4
  for (int i = 0; i < W; ++i) {
    const int tap = contract.conv_taps == ConvTaps::oldest_first ? i : W - 1 - i;
    const F window = load_words(kConv, tap == W - 1 ? fresh : column(job.window, tap), count);
    acc = add_product(product, kConv, acc, window, load(job.weight + tap * job.dim + channel, count));
  }
  if (job.bias != nullptr && !bias_first) acc = acc + bias;
  if (contract.conv_sum == ConvSum::act) acc = rounded_to(kAct, acc);
  if (step.acc != nullptr) store(step.acc + channel, acc, count);

#pragma GCC unroll 4
  for (int j = 0; j + 2 < W; ++j) __builtin_memcpy(column(job.window, j), column(job.window, j + 1), bytes);
  __builtin_memcpy(column(job.window, W - 2), fresh, bytes);
  if (step.window != nullptr)
    for (int j = 0; j + 1 < W; ++j) __builtin_memcpy(column(step.window, j), column(job.window, j), bytes);
  return acc;
}

constexpr int kVectors = 16;  // that go through the activation together

/// acc through SiLU into words, as the contract has it.
template <DType kAct>
__attribute__((noinline)) void store_exact_silu(const Rules& rules, const F* acc, unsigned which, std::byte* out,
                                                std::int64_t rest) {
  F y[kVectors], x[kVectors];
  int n = 0;
  for (unsigned left = which; left != 0; left &= left - 1) y[n] = x[n] = acc[__builtin_ctz(left)], ++n;
  over_one_plus_exp(rules, y, x, n);
  n = 0;
  for (unsigned left = which; left != 0; left &= left - 1) {
    const std::int64_t first = __builtin_ctz(left) * kWidth;
    store_words(kAct, out + static_cast<std::size_t>(first) * word_size(kAct), y[n++], rest - first);
  }
}

/// `out` is where the first lane goes, `rest` what is left from there on.
template <DType kAct>
GDNSIM_LANE void store_silu(const Rules& rules, const F* acc, int n, std::byte* out, std::int64_t rest) {
  unsigned open = (1u << n) - 1;  // vectors that are not known yet
  if constexpr (kAct == DType::bf16) {
    open = 0;
#pragma GCC unroll 2
    for (int i = 0; i < n; ++i) {
      const NearlyWords y = nearly_words(acc[i] / one_plus_exp_nearly(acc[i]), acc[i]);
      store16(out + i * kWidth * 2, y.word, rest - i * kWidth);
      open |= unsigned{any(y.open)} << i;
    }
  }
  if (open != 0) store_exact_silu<kAct>(rules, acc, open, out, rest);
}

template <DType kConv, DType kAct, int kTaps>
void conv_step(const ConvJob& job, const ConvStep& step, std::int64_t begin) {
  F acc[kVectors];
  int n = 0;
  std::int64_t channel = begin;
  for (; n < kVectors && channel + kWidth <= job.end; channel += kWidth)
    acc[n++] = conv_sum<kConv, kAct, true, kTaps>(job, step, channel, 0);
  if (n < kVectors && channel < job.end)
    acc[n++] = conv_sum<kConv, kAct, false, kTaps>(job, step, channel, job.end - channel);
  std::byte* out = step.out + static_cast<std::size_t>(begin) * word_size(kAct);
  const std::int64_t rest = job.end - begin;
  if (step.rules->model->activation == Activation::silu) return store_silu<kAct>(*step.rules, acc, n, out, rest);
  for (std::int64_t i = 0; i < n; ++i)
    store_words(kAct, out + static_cast<std::size_t>(i * kWidth) * word_size(kAct), acc[i], rest - i * kWidth);
}

template <DType kConv, DType kAct, int kTaps>
void conv_of(const ConvJob& job) {
  for (const ConvStep* step = job.step; step != job.step + job.steps; ++step)
    for (std::int64_t channel = job.begin; channel < job.end; channel += kVectors * kWidth)
      conv_step<kConv, kAct, kTaps>(job, *step, channel);
}
template <DType kConv, DType kAct>
void conv_of(const ConvJob& job) {
  if (kConv == DType::bf16 && kAct == DType::bf16 && job.step->rules->model->W == 4)
    return conv_of<kConv, kAct, 4>(job);
  conv_of<kConv, kAct, 0>(job);
}

void run_conv(const ConvJob& job) {
  constexpr DType f32 = DType::f32, bf16 = DType::bf16, f16 = DType::f16;
  using Function = void (*)(const ConvJob&);
  constexpr Function kFunctions[3][3] = {{conv_of<f32, f32>, conv_of<f32, bf16>, conv_of<f32, f16>},
                                         {conv_of<bf16, f32>, conv_of<bf16, bf16>, conv_of<bf16, f16>},
                                         {conv_of<f16, f32>, conv_of<f16, bf16>, conv_of<f16, f16>}};
  const Model& model = *job.step->rules->model;
  kFunctions[static_cast<int>(model.conv_state_dtype)][static_cast<int>(model.act_dtype)](job);
}

// ---- q and k (rules Q1-Q5) ----

/// Sum of squares of every lane's row.
GDNSIM_LANE F squares(const DotOrder& order, const F* x, F* scratch) { return dot(order, x, x, scratch); }

/// x / sqrt(sum(x*x) + eps) in the contract's form.
void normalise(const Rules& rules, F* x, int K, F* scratch) {
  const F eps = all(1e-6f), sum = squares(rules.qk_order, x, scratch), width = all(static_cast<float>(K));
  const Contract& contract = *rules.contract;
  F under_root = sum;
  if (contract.qk_eps == QkEps::sum) under_root = sum + eps;
  if (contract.qk_eps == QkEps::mean) under_root = divide(rules, sum, width) + eps;
  if (contract.qk_eps == QkEps::sum_k) under_root = sum + width * eps;
  if (contract.qk_norm == QkNorm::multiply && contract.qk_eps != QkEps::max) {
    const F factor = rsqrt_of(rules, under_root);
    for (int i = 0; i < K; ++i) x[i] = factor * x[i];
    return;
  }
  F length = sqrt_of(rules, under_root);
  if (contract.qk_eps == QkEps::max) length = length < eps ? eps : length;
  const Divisor by = divisor_of(rules, length);
  for (int i = 0; i < K; ++i) x[i] = divide(x[i], by);
}

void run_qk(const QkJob& job) {
  const Rules& rules = *job.rules;
  const Contract& contract = *rules.contract;
  const int K = rules.model->K;
  const bool norm = rules.model->use_qk_l2norm && contract.qk_norm != QkNorm::none;
  if (!job.is_q && !norm) {  // copied: payloads stay
    for (std::int64_t i = 0, n = 1LL * job.heads * K; i < n; i += kWidth) {
      const F x = load_words(rules.model->act_dtype,
                             job.words + static_cast<std::size_t>(i) * word_size(rules.model->act_dtype), n - i);
      __builtin_memcpy(job.out + i, &x, 4 * static_cast<std::size_t>(n - i < kWidth ? n - i : kWidth));
    }
    return;
  }
  F* x = reinterpret_cast<F*>(job.scratch);
  load_tile(rules.model->act_dtype, job.words, K, job.heads, x);
  const F scale = all(rules.model->scale);
  if (job.is_q && contract.scale == Scale::before)
    for (int i = 0; i < K; ++i) x[i] = x[i] * scale;
  if (norm) normalise(rules, x, K, x + K);
  if (job.is_q && contract.scale == Scale::after)
    for (int i = 0; i < K; ++i) x[i] = x[i] * scale;
  store_tile(DType::f32, reinterpret_cast<std::byte*>(job.out), K, job.heads, x);
}

// ---- gates (rule A2.4) ----

F decay_of(const Rules& rules, F g) {
  switch (rules.contract->decay) {
    case Decay::exp:
      return exp_of(rules, g);
    case Decay::linear:
      return g;
    case Decay::twice:
      return exp_of(rules, exp_of(rules, g));
    case Decay::none:
      break;
  }
  return all(1.0f);
}

void run_gates(const GatesJob& job) {
  const Rules& rules = *job.rules;
  const DType act = rules.model->act_dtype;
  const bool to_bf16 = rules.contract->params == Params::bf16;
  for (int head = 0; head < job.heads; head += kWidth) {
    const int count = job.heads - head;
    const std::size_t at = static_cast<std::size_t>(head) * word_size(act);
    F A_log = load(job.A_log + head, count), dt_bias = load(job.dt_bias + head, count);
    if (to_bf16) A_log = rounded_bf16(A_log), dt_bias = rounded_bf16(dt_bias);
    const F s = load_words(act, job.a + at, count) + dt_bias;
    const F g = negate_of(rules, exp_of(rules, A_log)) * softplus_of(rules, s);
    F beta = sigmoid_of(rules, load_words(act, job.b + at, count));
    if (rules.contract->beta == Beta::bf16) beta = rounded_bf16(beta);
    if (job.g != nullptr) store(job.g + head, g, count);
    store(job.decay + head, decay_of(rules, g), count);
    store(job.beta + head, beta, count);
  }
}

// ---- gated norm (rules N1-N6) ----

/// What the gate multiplies; under `gate_first` the result, with a gated o.
GDNSIM_LANE F ungated(Norm norm, DType act, F o, F rstd, F weight) {
  return norm == Norm::hf ? rounded_to(act, rounded_to(act, o * rstd) * weight) : (o * rstd) * weight;
}

/// z * sigmoid(z), or sigmoid(z).
void sigmoid_gate(const Rules& rules, F* z, int n) {
  F ones[kVectors], x[kVectors];
  const bool silu = rules.model->norm_gate == NormGate::silu;
  for (int begin = 0; begin < n; begin += kVectors) {
    const int count = n - begin < kVectors ? n - begin : kVectors;
    for (int i = 0; i < count; ++i) ones[i] = all(1.0f), x[i] = z[begin + i];
    over_one_plus_exp(rules, ones, x, count);
    for (int i = 0; i < count; ++i) z[begin + i] = silu ? z[begin + i] * ones[i] : ones[i];
  }
}

F rstd_of(const NormJob& job, const F* o, F* scratch) {
  const Rules& rules = *job.rules;
  const F mean = divide(rules, squares(rules.norm_order, o, scratch), all(static_cast<float>(rules.model->V)));
  const F under_root = mean + all(rules.norm_eps);
  const F rstd = rules.contract->rstd == Rstd::rsqrt ? rsqrt_of(rules, under_root)
                                                     : divide(rules, all(1.0f), sqrt_of(rules, under_root));
  if (job.rstd != nullptr) store(job.rstd, rstd, job.heads);
  return rstd;
}

/// Weight and gate for up to kVectors of one head's elements as they lie, bf16; `at` counts from job.o.
void gate_elements(const NormJob& job, std::int64_t at, int first, F rstd) {
  const Rules& rules = *job.rules;
  const bool silu = rules.model->norm_gate == NormGate::silu;
  F o[kVectors], z[kVectors];
  int place[kVectors], open = 0;  // vectors that are not known yet
  const int end = first + kVectors * kWidth < rules.model->V ? first + kVectors * kWidth : rules.model->V;
  for (int i = first; i < end; i += kWidth) {
    const int count = rules.model->V - i;
    const F x = load_words(DType::bf16, job.z + (at + i) * 2, count), one = all(1.0f);
    const F y = ungated(rules.contract->norm, DType::bf16, load_words(DType::bf16, job.o + (at + i) * 2, count), rstd,
                        load(job.weight + i, count));
    const NearlyWords words = nearly_words(y * ((silu ? x : one) / one_plus_exp_nearly(x)), x);
    store16(job.out + (at + i) * 2, words.word, count);
    if (__builtin_expect(!any(words.open), 1)) continue;
    o[open] = y, z[open] = x, place[open++] = i;
  }
  if (open == 0) return;
  sigmoid_gate(rules, z, open);
  for (int j = 0; j < open; ++j)
    store_words(DType::bf16, job.out + (at + place[j]) * 2, o[j] * z[j], rules.model->V - place[j]);
}

/// Any act, any convention: on tiles.
void gate_tile(const NormJob& job, F* o, F* gate, F* scratch) {
  const Rules& rules = *job.rules;
  const Model& model = *rules.model;
  const bool gate_first = rules.contract->norm == Norm::gate_first;
  if (job.out != nullptr || gate_first) {
    load_tile(model.act_dtype, job.z, model.V, job.heads, gate);
    sigmoid_gate(rules, gate, model.V);
  }
  if (gate_first)
    for (int i = 0; i < model.V; ++i) o[i] = o[i] * gate[i];
  const F rstd = rstd_of(job, o, scratch);
  if (job.out == nullptr) return;
  for (int i = 0; i < model.V; ++i) {
    o[i] = ungated(rules.contract->norm, model.act_dtype, o[i], rstd, all(job.weight[i]));
    if (!gate_first) o[i] = o[i] * gate[i];
  }
  store_tile(model.act_dtype, job.out, model.V, job.heads, o);
}

void run_norm(const NormJob& job) {
  const Rules& rules = *job.rules;
  const Model& model = *rules.model;
  F *o = reinterpret_cast<F*>(job.scratch), *gate = o + model.V, *scratch = gate + model.V;
  load_tile(model.act_dtype, job.o, model.V, job.heads, o);
  if (model.act_dtype != DType::bf16 || rules.contract->norm == Norm::gate_first)
    return gate_tile(job, o, gate, scratch);
  const F rstd = rstd_of(job, o, scratch);
  if (job.out == nullptr) return;
  for (int head = 0; head < job.heads; ++head)
    for (int first = 0; first < model.V; first += kVectors * kWidth)
      gate_elements(job, std::int64_t{head} * model.V, first, all(rstd[head]));
}

}  // namespace
}  // namespace gdnsim::golden
