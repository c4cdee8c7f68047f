// The recurrence of a few V rows of one head through many steps: their state is loaded once into a tile (one row a lane), stays
// there, and goes back at the end. A step is two passes over the tile: decay and S.k, then update and S.q.
#pragma once

#include "simd_digest.hpp"
#include "simd_dot.hpp"

namespace gdnsim::golden {
namespace {

struct StepResult {
  F dot_k, u, out;
};

/// Any contract.
StepResult any_step(const HeadStep& step, int K, F v, F* S, F* scratch) {
  const Rules& rules = *step.rules;
  const F decay = all(step.decay);
  for (int i = 0; i < K; ++i) S[i] = decay * S[i];
  const F dot_k = dot(rules.state_order, S, Same{step.k}, scratch);
  const F u = (v - dot_k) * all(step.beta);
  if (rules.contract->update == Update::fma)
    for (int i = 0; i < K; ++i) S[i] = fma(all(step.k[i]), u, S[i]);
  else
    for (int i = 0; i < K; ++i) S[i] = S[i] + u * all(step.k[i]);
  const F out = dot(rules.state_order, S, Same{step.q}, scratch);
  if (rules.contract->state_store == StateStore::bf16)
    for (int i = 0; i < K; ++i) S[i] = rounded_bf16(S[i]);
  const DType stored = rules.model->state_dtype;
  if (stored != DType::f32)
    for (int i = 0; i < K; ++i) S[i] = rounded_to(stored, S[i]);
  return {dot_k, u, out};
}

/// To bf16 without a look at NaNs: right for all whose low 16 bits are clear, so that no carry runs through a payload.
GDNSIM_LANE F rounded_bf16_quickly(F x) {
  const U b = bits(x), t = b + all(0x7FFFu);
  return float_bits(((b & all(0x10000u)) != U{} ? t + all(1u) : t) & all(0xFFFF0000u));
}
/// The NaN of x86, whose low bits are clear.
GDNSIM_LANE F plain_nan(F x) { return x != x ? float_bits(all(0xFFC00000u)) : x; }
bool has_nan(const float* x, int n) {
  I found = I{};
  for (int i = 0; i < n; i += kWidth) {
    const F part = load(x + i, n - i);
    found |= part != part;
  }
  return any(found);
}

/// The same with the order, the update and the stored type known to the compiler. An f32 state's NaNs become canonical when it
/// leaves the tile. A bf16 state holds NaNs with clear low bits alone: the words do, the arithmetic gives such ones out of
/// such ones, and what comes in from outside is seen to.
template <class Order, bool kFmaUpdate, bool kToBf16>
StepResult fixed_step(const HeadStep& step, int K, F v, F* S, F* scratch) {
  if (kToBf16 && has_nan(step.k, K)) return any_step(step, K, v, S, scratch);
  const F decay = kToBf16 ? plain_nan(all(step.decay)) : all(step.decay);
  const Same k{step.k}, q{step.q};
  const F dot_k = Order::dot(
      K, [S, decay](int i) GDNSIM_LEAF { return S[i] = decay * S[i]; }, k);
  const F exact_u = (v - dot_k) * all(step.beta), u = kToBf16 ? plain_nan(exact_u) : exact_u;
  const F out = Order::dot(
      K,
      [S, u, k](int i) GDNSIM_LEAF {
        const F x = kFmaUpdate ? fma(k[i], u, S[i]) : S[i] + u * k[i];
        S[i] = kToBf16 ? rounded_bf16_quickly(x) : x;
        return x;
      },
      q);
  return {dot_k, exact_u, out};
}

using StepFunction = StepResult (*)(const HeadStep& step, int K, F v, F* S, F* scratch);

template <class Order, bool kFmaUpdate>
StepFunction fixed_for(const Rules& rules) {
  if (!Order::is(rules.state_order) || (rules.contract->update == Update::fma) != kFmaUpdate) return nullptr;
  const DType stored = rules.model->state_dtype;
  if (stored == DType::f16) return nullptr;
  if (stored == DType::f32 && rules.contract->state_store == StateStore::bf16) return nullptr;
  return stored == DType::bf16 ? fixed_step<Order, kFmaUpdate, true> : fixed_step<Order, kFmaUpdate, false>;
}

StepFunction step_for(const Rules& rules) {
  using Maker = StepFunction (*)(const Rules&);
  constexpr Maker kMakers[] = {
      fixed_for<FixedOrder<1, false, 32>, false>,  // golden
#ifdef __FMA__                                     // without it, the calls of fma are all that counts
      fixed_for<FixedOrder<4, true, 32>, true>,    // triton-sm90, f32 state, K = 128
      fixed_for<FixedOrder<4, true, 16>, true>,    // K = 64
      fixed_for<FixedOrder<8, true, 16>, true>,    // bf16 state, K = 128
      fixed_for<FixedOrder<8, true, 8>, true>,     // K = 64
#endif
  };
  for (Maker maker : kMakers)
    if (const StepFunction found = maker(rules)) return found;
  return any_step;
}

/// What leaves one step: rounded, NaNs canonical.
void store_result(const HeadJob& job, const HeadStep& step, const StepResult& result) {
  const DType act = step.rules->model->act_dtype;
  store_words(act, step.out + static_cast<std::size_t>(job.first) * word_size(act), result.out, job.rows);
  if (step.dot_k != nullptr) store(step.dot_k + job.first, result.dot_k, job.rows);
  if (step.u != nullptr) store(step.u + job.first, result.u, job.rows);
}

void run_head(const HeadJob& job) {
  const std::size_t begin =
      static_cast<std::size_t>(job.first) * static_cast<std::size_t>(job.K) * word_size(job.state_dtype);
  F* S = reinterpret_cast<F*>(job.scratch);
  F* scratch = S + job.K;
  load_tile(job.state_dtype, job.state + begin, job.K, job.rows, S);
  const Rules* rules = nullptr;
  StepFunction function = nullptr;
  for (const HeadStep* step = job.step; step != job.step + job.steps; ++step) {
    if (step->rules != rules) function = step_for(*(rules = step->rules));
    const DType act = rules->model->act_dtype;
    const F v = load_words(act, step->v + static_cast<std::size_t>(job.first) * word_size(act), job.rows);
    store_result(job, *step, function(*step, job.K, v, S, scratch));
    if (step->state != nullptr) store_tile(job.state_dtype, step->state + begin, job.K, job.rows, S);
    if (step->digest != nullptr) *step->digest = digest_tile(job, S);
  }
  store_tile(job.state_dtype, job.state + begin, job.K, job.rows, S);
}

}  // namespace
}  // namespace gdnsim::golden
