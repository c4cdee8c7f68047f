// The recurrence of a tile: one V row a lane, element i of all rows in vector i, so that any summation order over a row is a
// sequence of vertical operations. A step is two passes over the tile: decay and S.k, then update and S.q. Where the next step
// is known, its first pass goes along with the second of this one: each element is loaded and stored once a step.
#pragma once

#include "simd_dot.hpp"

namespace gdnsim::golden {
namespace {

struct StepResult {
  F dot_k, u, out;
};

/// S.k of the V rows from `first` on, some of which may be sequential.
F any_dot_k(const DotOrder& order, int first, const F* S, const float* k, F* scratch) {
  I sequential = I{};
  for (int i = 0; i < kWidth; ++i) sequential[i] = is_sequential(order, first + i) ? -1 : 0;
  if (!any(sequential)) return dot(order, S, Same{k}, scratch);
  const F in_order = dot(in_sequence(order), S, Same{k}, scratch);
  return any(~sequential) ? (sequential != I{} ? in_order : dot(order, S, Same{k}, scratch)) : in_order;
}

/// Any contract; `first` is the number of the tile's first V row.
StepResult any_step(const HeadStep& step, int K, int first, F v, F* S, F* scratch) {
  const Rules& rules = *step.rules;
  const F decay = all(step.decay);
  for (int i = 0; i < K; ++i) S[i] = decay * S[i];
  const F dot_k = any_dot_k(rules.state_order, first, S, step.k, scratch);
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

/// The passes of a contract that the compiler knows.
struct Passes {
  F (*first)(const HeadStep& step, int K, F* S);        // S.k
  F (*second)(const HeadStep& step, int K, F u, F* S);  // S.q
  /// S.q, then S.k of the next. Null where there is so much to compute that loads do not count.
  Pair<F> (*both)(const HeadStep& step, const HeadStep& next, int K, F u, F* S);
};

/// Order, update and stored type known to the compiler. An f32 state's NaNs become canonical when it leaves the tile. A bf16
/// state holds NaNs with clear low bits alone: the words do, the arithmetic gives such ones out of such ones, and what comes in
/// from outside is seen to (k's by `passes_of`).
template <class Order, bool kFmaUpdate, bool kToBf16>
struct FixedPasses {
  static GDNSIM_LANE F safe(F x) { return kToBf16 ? plain_nan(x) : x; }
  static GDNSIM_LANE F updated(F S, F k, F u) { return kFmaUpdate ? fma(k, u, S) : S + u * k; }
  static GDNSIM_LANE F stored(F x) { return kToBf16 ? rounded_bf16_quickly(x) : x; }

  static F first(const HeadStep& step, int K, F* S) {
    const F decay = safe(all(step.decay));
    return Order::dot(
        K, [=](int i) GDNSIM_LEAF { return S[i] = decay * S[i]; }, Same{step.k});
  }
  static F second(const HeadStep& step, int K, F exact_u, F* S) {
    const F u = safe(exact_u);
    const Same k{step.k};
    return Order::dot(
        K,
        [=](int i) GDNSIM_LEAF {
          const F x = updated(S[i], k[i], u);
          S[i] = stored(x);
          return x;
        },
        Same{step.q});
  }
  static Pair<F> both(const HeadStep& step, const HeadStep& next, int K, F exact_u, F* S) {
    const F u = safe(exact_u), decay = safe(all(next.decay));
    const Same k{step.k};
    return Order::dot(
        K,
        [=](int i) GDNSIM_LEAF {
          const F x = updated(S[i], k[i], u), decayed = decay * stored(x);
          S[i] = decayed;
          return Pair<F>{x, decayed};
        },
        SamePair{step.q, next.k});
  }
  static constexpr Passes kPasses{first, second, kFmaUpdate ? both : nullptr};
};

template <class Order, bool kFmaUpdate>
const Passes* fixed_for(const Rules& rules) {
  if (!Order::is(rules.state_order) || (rules.contract->update == Update::fma) != kFmaUpdate) return nullptr;
  const DType stored = rules.model->state_dtype;
  if (stored == DType::f16) return nullptr;
  if (stored == DType::f32 && rules.contract->state_store == StateStore::bf16) return nullptr;
  return stored == DType::bf16 ? &FixedPasses<Order, kFmaUpdate, true>::kPasses
                               : &FixedPasses<Order, kFmaUpdate, false>::kPasses;
}

/// Null where the compiler knows none.
const Passes* passes_for(const Rules& rules) {
  if (rules.state_order.sequential_from < kTileRows) return nullptr;
  using Maker = const Passes* (*)(const Rules&);
  constexpr Maker kMakers[] = {
      fixed_for<FixedOrder<1, false, 32>, false>,  // golden
      fixed_for<FixedOrder<4, false, 32>, false>,  // triton-sm90-nofma, f32 state, K = 128
      fixed_for<FixedOrder<8, false, 16>, false>,  // bf16 state
#ifdef __FMA__                                     // without it, the calls of fma are all that counts
      fixed_for<FixedOrder<4, true, 32>, true>,    // triton-sm90, f32 state, K = 128
      fixed_for<FixedOrder<4, true, 16>, true>,    // K = 64
      fixed_for<FixedOrder<8, true, 16>, true>,    // bf16 state, K = 128
      fixed_for<FixedOrder<8, true, 8>, true>,     // K = 64
#endif
  };
  for (Maker maker : kMakers)
    if (const Passes* found = maker(rules)) return found;
  return nullptr;
}

/// The same for one step.
const Passes* passes_of(const HeadStep& step, int K) {
  const Passes* passes = passes_for(*step.rules);
  const bool to_bf16 = step.rules->model->state_dtype == DType::bf16;
  return passes != nullptr && to_bf16 && has_nan(step.k, K) ? nullptr : passes;
}

}  // namespace
}  // namespace gdnsim::golden
