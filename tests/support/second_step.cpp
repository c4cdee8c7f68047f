// The second implementation. Read it beside docs/arithmetic.md: one function per numbered line of the step.
#include "support/second_step.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/approximate.hpp"
#include "support/exact.hpp"
#include "support/rounding.hpp"

namespace gdnsim::second {
namespace {

using Row = std::vector<Num>;

constexpr Num kOne{1};
const Num kQkEps{1e-6f};

// ---- scalar functions: what the two families of contracts mean by exp, division, root, sigmoid ----

struct Scalars {
  bool triton;

  Num exp(Num x) const { return triton ? Num{ex2((x * Num{1.44269502f}).value)} : Num{exact_exp(x.value)}; }
  Num divide(Num x, Num y) const { return triton ? Num{div_full(x.value, y.value)} : x / y; }
  Num root(Num x) const { return triton ? Num{sqrt_ftz(x.value)} : square_root(x); }
  Num minus(Num x) const { return triton ? Num{0} - x : Num{-x.value}; }
  Num one_plus_exp_minus(Num x) const { return triton ? exp(minus(x)) + kOne : kOne + exp(minus(x)); }
  Num sigmoid(Num x) const { return divide(kOne, one_plus_exp_minus(x)); }
  Num softplus(Num s) const {
    if (triton) return s.value <= 20 ? Num{log_ftz((exp(s) + kOne).value)} : s;
    return s.value > 20 ? s : Num{exact_log1p(exp(s).value)};
  }
};

// ---- sums ----

/// Butterfly: x[j] += x[j ^ w] for w = n/2 .. 1; every x[j] ends as the same sum.
Num butterfly(Row x) {
  for (std::size_t w = x.size() / 2; w >= 1; w /= 2) {
    const Row before = x;
    for (std::size_t j = 0; j < x.size(); ++j) x[j] = before[j] + before[j ^ w];
  }
  return x[0];
}

/// Rounded products, chunks of 32 padded with zeros, the chunks' sums left to right.
Num golden_dot(const Row& x, const Row& y) {
  Num total;
  for (std::size_t from = 0; from < x.size(); from += 32) {
    Row chunk(32);
    for (std::size_t j = 0; j < 32 && from + j < x.size(); ++j) chunk[j] = x[from + j] * y[from + j];
    const Num sum = butterfly(chunk);
    total = from == 0 ? sum : total + sum;
  }
  return total;
}

/// Lanes of `width` elements, in a lane element 1 first, then 0, then the rest, fused; then the butterfly over the
/// lanes.
Num triton_dot(const Row& x, const Row& y, std::size_t width) {
  Row lanes;
  for (std::size_t from = 0; from < x.size(); from += width) {
    Num sum;
    if (width == 1) {
      sum = x[from] * y[from];
    } else {
      sum = x[from + 1] * y[from + 1];
      sum = fused(x[from], y[from], sum);
      for (std::size_t j = 2; j < width; ++j) sum = fused(x[from + j], y[from + j], sum);
    }
    lanes.push_back(sum);
  }
  return butterfly(lanes);
}

/// The same lanes, each from element 0 on.
Num plain_lanes_dot(const Row& x, const Row& y, std::size_t width) {
  Row lanes;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (i % width == 0)
      lanes.push_back(x[i] * y[i]);
    else
      lanes.back() = fused(x[i], y[i], lanes.back());
  return butterfly(lanes);
}

/// The mixed kernel's sum of squares: one element a thread, warps of 32, the first exchange fused, then over the warps.
Num mixed_squares(const Row& x) {
  Row warps;
  for (std::size_t from = 0; from < x.size(); from += 32) {
    Row halves;
    for (std::size_t t = 0; t < 16; ++t)
      halves.push_back(fused(x[from + t], x[from + t], x[from + t + 16] * x[from + t + 16]));
    warps.push_back(butterfly(halves));
  }
  return butterfly(warps);
}

// ---- the step ----

Row load_row(const Bytes& bytes, DType type, std::size_t from, std::size_t count) {
  Row row(count);
  for (std::size_t i = 0; i < count; ++i) row[i] = load(bytes.data(), type, from + i);
  return row;
}

struct Step {
  const Model& model;
  const LayerParams& params;
  const Rules rules;
  const Mistake mistake;
  const StepInputs& inputs;
  Taps& taps;
  Held* const held;
  const int draft;
  const Scalars f{rules != Rules::golden};
  const std::size_t H = static_cast<std::size_t>(model.H), HV = static_cast<std::size_t>(model.HV);
  const std::size_t K = static_cast<std::size_t>(model.K), V = static_cast<std::size_t>(model.V);
  const std::size_t W = static_cast<std::size_t>(model.W), dim = static_cast<std::size_t>(model.dim());

  void put(Tap tap, std::size_t i, Num value) { store(taps[tap].data(), shape_of(tap, model).type, i, value); }
  Num get(Tap tap, std::size_t i) const { return load(taps[tap].data(), shape_of(tap, model).type, i); }

  Num state_dot(const Row& x, const Row& y) const {
    return rules == Rules::golden ? golden_dot(x, y) : triton_dot(x, y, 16 / size_of(model.state_dtype));
  }

  /// S.k of V row v. The gating kernel walks over 32 rows with 128 threads, each thread on 16 bytes of a row: where it comes by
  /// in the last round, or in all when there are but one or two, lanes are summed from their first element on.
  Num key_dot(const Row& S, const Row& k, std::size_t v) const {
    const std::size_t width = 16 / size_of(model.state_dtype), threads_a_row = K / width;
    const std::size_t rows_a_round = std::min<std::size_t>(32, 128 / threads_a_row), rounds = 32 / rows_a_round;
    const bool last = v % 32 / rows_a_round == rounds - 1;
    if (rules == Rules::triton_sm90_mixed_gating && (last || rounds < 3)) return plain_lanes_dot(S, k, width);
    return state_dot(S, k);
  }

  // Line 1. The window holds the W-1 stored columns, oldest first, then the new one, in the conv state's type.
  void conv(std::size_t row, Block& block) {
    const DType type = model.conv_state_dtype;
    const std::size_t column = dim * size_of(type);
    Bytes window = block.conv;
    window.resize(W * column);
    for (std::size_t c = 0; c < dim; ++c) {
      const std::byte* x = inputs.mixed_qkv.data() + (row * dim + c) * size_of(model.act_dtype);
      std::byte* slot = window.data() + (W - 1) * column + c * size_of(type);
      if (model.act_dtype == type)
        std::memcpy(slot, x, size_of(type));  // a copy keeps a NaN's payload
      else
        store(slot, type, 0, load(x, model.act_dtype, 0));
    }
    for (std::size_t c = 0; c < dim; ++c) {
      const Num acc = conv_sum(window, c);
      put(Tap::conv_acc, row * dim + c, acc);
      const bool silu = model.activation == Activation::silu;
      put(Tap::conv_out, row * dim + c, silu ? f.divide(acc, f.one_plus_exp_minus(acc)) : acc);
    }
    block.conv.assign(window.begin() + static_cast<std::ptrdiff_t>(column), window.end());
  }

  Num conv_sum(const Bytes& window, std::size_t c) const {
    const DType type = model.conv_state_dtype;
    Num acc = params.conv_bias.empty() ? Num{0} : load(params.conv_bias.data(), model.act_dtype, c);
    for (std::size_t j = 0; j < W; ++j) {
      const Num x = load(window.data(), type, j * dim + c);
      const Num weight = load(params.conv_weight.data(), model.act_dtype, c * W + j);
      acc = f.triton && type == DType::f32 ? fused(x, weight, acc) : acc + rounded(x * weight, type);
    }
    return acc;
  }

  // Line 3.
  Row normalised(Row x) const {
    if (!model.use_qk_l2norm || mistake == Mistake::no_qk_norm) return x;
    Num squares;
    if (rules == Rules::golden) squares = golden_dot(x, x);
    if (rules == Rules::triton_sm90) squares = triton_dot(x, x, K / 32);
    const bool mixed = rules == Rules::triton_sm90_mixed || rules == Rules::triton_sm90_mixed_gating;
    if (mixed) squares = mixed_squares(x);
    const Num sum = squares + kQkEps;
    for (Num& value : x) value = mixed ? Num{rsqrt_ftz(sum.value)} * value : f.divide(value, f.root(sum));
    return x;
  }

  void queries_and_keys(std::size_t row) {
    const DType type = model.act_dtype;
    for (std::size_t h = 0; h < H; ++h) {
      const Row q = normalised(load_row(taps[Tap::conv_out], type, row * dim + h * K, K));
      const Row k = normalised(load_row(taps[Tap::conv_out], type, row * dim + (H + h) * K, K));
      for (std::size_t i = 0; i < K; ++i) {
        put(Tap::q, (row * H + h) * K + i, Num{model.scale} * q[i]);
        put(Tap::k, (row * H + h) * K + i, k[i]);
      }
    }
  }

  // Line 4.
  void gates(std::size_t row) {
    for (std::size_t hv = 0; hv < HV; ++hv) {
      const std::size_t at = row * HV + hv;
      const Num s = load(inputs.a.data(), model.act_dtype, at) + Num{params.dt_bias[hv]};
      const Num g = f.minus(f.exp(Num{params.A_log[hv]})) * f.softplus(s);
      put(Tap::beta, at, f.sigmoid(load(inputs.b.data(), model.act_dtype, at)));
      put(Tap::g, at, g);
      put(Tap::decay, at, factor(g));
    }
  }

  Num factor(Num g) const {
    if (mistake == Mistake::no_decay) return kOne;
    if (mistake == Mistake::log_as_factor) return g;
    return mistake == Mistake::factor_as_log ? f.exp(f.exp(g)) : f.exp(g);
  }

  // Line 5, one head: S row by row, v the row's number.
  void recurrence(std::size_t row, std::size_t hv, Block& block) {
    const std::size_t h = hv / (HV / H), head = row * HV + hv;
    const Row q = load_row(taps[Tap::q], DType::f32, (row * H + h) * K, K);
    const Row k = load_row(taps[Tap::k], DType::f32, (row * H + h) * K, K);
    const Num decay = get(Tap::decay, head), beta = get(Tap::beta, head);
    for (std::size_t v = 0; v < V; ++v) {
      const std::size_t from = (hv * V + v) * K;
      Row S = held != nullptr && draft > 0 ? load_row(held->at(row), DType::f32, from, K)
                                           : load_row(block.recurrent, model.state_dtype, from, K);
      for (Num& s : S) s = decay * s;
      const Num dot = key_dot(S, k, v);
      const Num u =
          (load(taps[Tap::conv_out].data(), model.act_dtype, row * dim + 2 * H * K + hv * V + v) - dot) * beta;
      for (std::size_t i = 0; i < K; ++i) S[i] = f.triton ? fused(k[i], u, S[i]) : S[i] + u * k[i];
      put(Tap::dot_k, head * V + v, dot);
      put(Tap::u, head * V + v, u);
      put(Tap::core_out, head * V + v, state_dot(S, q));
      for (std::size_t i = 0; i < K; ++i) store(block.recurrent.data(), model.state_dtype, from + i, S[i]);
      for (std::size_t i = 0; held != nullptr && i < K; ++i) store(held->at(row).data(), DType::f32, from + i, S[i]);
    }
  }

  // Line 6, on every row, active or not.
  void norm(std::size_t row, std::size_t hv) {
    const std::size_t head = row * HV + hv;
    const Row o = load_row(taps[Tap::core_out], model.act_dtype, head * V, V);
    const Num squares = f.triton ? triton_dot(o, o, V / 32) : golden_dot(o, o);
    const Num mean = f.divide(squares, Num{static_cast<float>(V)});
    const Num rstd = f.divide(kOne, f.root(mean + Num{*model.norm_eps}));
    put(Tap::rstd, head, rstd);
    for (std::size_t v = 0; v < V; ++v) {
      const Num z = load(inputs.z.data(), model.act_dtype, head * V + v);
      const Num weight = load(params.norm_weight.data(), model.act_dtype, v);
      const Num gate = model.norm_gate == NormGate::silu ? z * f.sigmoid(z) : f.sigmoid(z);
      put(Tap::norm_out, head * V + v, ((o[v] * rstd) * weight) * gate);
    }
  }
};

/// All taps of all rows as zeros.
void clear(Taps& taps, const Model& model, std::size_t rows, bool with_norm) {
  for (std::size_t t = 0; t < kTaps; ++t) {
    const Tap tap = static_cast<Tap>(t);
    const bool of_norm = tap == Tap::rstd || tap == Tap::norm_out;
    taps[tap].assign(of_norm && !with_norm ? 0 : rows * shape_of(tap, model).bytes(), std::byte{0});
  }
}

}  // namespace

Taps step(const Model& model, const LayerParams& params, Rules rules, const StepPlan& plan, const StepInputs& inputs,
          std::vector<Block>& blocks, Mistake mistake, Held* held) {
  Taps taps;
  const bool with_norm = !inputs.z.empty() && !params.norm_weight.empty() && model.norm_eps.has_value();
  const std::size_t rows = plan.block.size(), heads = static_cast<std::size_t>(model.HV);
  clear(taps, model, rows, with_norm);
  Step step{model, params, rules, mistake, inputs, taps, held, plan.draft};
  for (std::size_t row = 0; row < rows; ++row) {
    if (plan.block[row] >= 0) {
      Block& block = blocks.at(static_cast<std::size_t>(plan.block[row]));
      if (held != nullptr) (*held)[row].resize(4 * static_cast<std::size_t>(model.state_elements()));
      step.conv(row, block);
      step.queries_and_keys(row);
      step.gates(row);
      for (std::size_t hv = 0; hv < heads; ++hv) step.recurrence(row, hv, block);
      std::memcpy(taps[Tap::state].data() + row * model.state_bytes(), block.recurrent.data(), model.state_bytes());
      std::memcpy(taps[Tap::conv_state].data() + row * model.conv_bytes(), block.conv.data(), model.conv_bytes());
    }
    for (std::size_t hv = 0; with_norm && hv < heads; ++hv) step.norm(row, hv);
  }
  return taps;
}

}  // namespace gdnsim::second
