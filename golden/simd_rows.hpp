// One step of the recurrence on rows as they lie, for a step or a few: the lanes are elements of one row, nothing is transposed,
// and the state is read and written in place. A row's sum crosses lanes; kWidth rows share the exchanges, so that each halves
// the number of vectors (`join`), and their sums come out one row a lane.
#pragma once

#include "simd_tile.hpp"

namespace gdnsim::golden {
namespace {

constexpr int kFewSteps = 3;

/// at(0), at(kLast), at(2 kLast), ... exchanged over the distances from kWidth / 2 down to kLast; at(i) ends in lanes i and on.
template <int kLast, int kDistance, class At>
GDNSIM_LANE F joined(int first, const At& at) {
  if constexpr (kDistance == kWidth) {
    return at(first);
  } else {
    const F near = joined<kLast, 2 * kDistance>(first, at);
    return join<kDistance>(near, joined<kLast, 2 * kDistance>(first + kDistance, at));
  }
}

/// vector(i) for the vectors i < kVectors, exchanged over all distances between vectors, widest first.
template <int kDistance, int kVectors, class Vector>
GDNSIM_LANE F exchanged(int i, const Vector& vector) {
  if constexpr (kDistance == kVectors) {
    return vector(i);
  } else {
    const F near = exchanged<2 * kDistance, kVectors>(i, vector);
    return near + exchanged<2 * kDistance, kVectors>(i + kDistance, vector);
  }
}

/// FixedOrder<1, false, 32>: one element a lane. K is known to the compiler, or half of the instructions would be addresses.
template <int kK>
struct RowsOfOnes {
  static constexpr int K = kK, kChunk = 32;
  static constexpr bool kAskAhead = true;  // jumps from row to row, which the hardware does not foresee

  // Sixteen lanes pay more for the exchanges than for making a tile, once.
  static constexpr int kMostSteps = kWidth == 16 ? 5 : 1 << 30;
  static constexpr int kPrepared = 0;

  static void prepare(const HeadStep&, F*) {}
  static const F* prepared_q(const F* prepared) { return prepared; }

  /// Sums over kWidth rows of K elements; `element(row, i)` gives elements i to i + kWidth - 1, and is called once for each.
  template <class Element>
  static GDNSIM_LANE F sums(const float* y, const F*, const Element& element) {
    const auto chunk = [&](int begin) GDNSIM_LEAF {
      return joined<1, 1>(0, [&](int row) GDNSIM_LEAF {
        return exchanged<1, kChunk / kWidth>(
            0, [&](int i) GDNSIM_LEAF { return element(row, begin + i * kWidth) * load(y + begin + i * kWidth); });
      });
    };
    F sum = chunk(0);
#pragma GCC unroll 1
    for (int begin = kChunk; begin < K; begin += kChunk) sum += chunk(begin);
    return sum;
  }
};

/// FixedOrder<4, kFma, K / 4>: lanes of four consecutive elements. Four rows at a time: their fours are transposed, so that
/// element j of each lies in one vector.
template <int kK, bool kFma>
struct RowsOfFours {
  static constexpr int K = kK;
  static constexpr bool kAskAhead = false;

  static constexpr int kMostSteps = kFewSteps;
  static constexpr int kPrepared = 8 * K / kWidth;

  /// Each element of k, then of q, four times, in the order in which the transposed elements meet them.
  static void prepare(const HeadStep& step, F* to) {
    for (int i = 0; i < 2 * K; i += kWidth, to += 4) {
      const F part = load(i < K ? step.k + i : step.q + i - K);
      to[0] = spread<0>(part);
      to[1] = spread<1>(part);
      to[2] = spread<2>(part);
      to[3] = spread<3>(part);
    }
  }
  static const F* prepared_q(const F* prepared) { return prepared + 4 * K / kWidth; }

  template <class Element>
  static GDNSIM_LANE F sums(const float*, const F* y, const Element& element) {
    const auto four_rows = [&](int row) GDNSIM_LEAF {
      return exchanged<1, K / kWidth>(0, [&](int i) GDNSIM_LEAF {
        F x[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) x[j] = element(row + j, i * kWidth);
        transpose_fours(x);
        const F* at = y + 4 * i;
        if constexpr (kFma) return fma(x[3], at[3], fma(x[2], at[2], fma(x[0], at[0], x[1] * at[1])));
        return x[1] * at[1] + x[0] * at[0] + x[2] * at[2] + x[3] * at[3];
      });
    };
    return joined<4, 4>(0, four_rows);
  }
};

/// kWidth rows of an f32 state. Two passes: S.k, then update and S.q; each takes the state times the decay, so that it is
/// written once. A NaN among a row's new elements makes its sum one too: only then is it looked for.
template <class Rows, bool kFmaUpdate>
StepResult rows_step(const HeadStep& step, const F* prepared, F v, float* state) {
  constexpr int K = Rows::K;
  const F decay = all(step.decay);
  const auto decayed = [=](int row, int i) GDNSIM_LEAF { return decay * load(state + row * K + i); };
  const F dot_k = Rows::sums(step.k, prepared, decayed), u = (v - dot_k) * all(step.beta);
  alignas(64) float each_u[kWidth];
  store(each_u, u);
  const float *k = step.k, *us = each_u;
  const F out = Rows::sums(step.q, Rows::prepared_q(prepared), [=](int row, int i) GDNSIM_LEAF {
    const F S = decayed(row, i), u_of_row = all(us[row]);
    const F x = kFmaUpdate ? fma(load(k + i), u_of_row, S) : S + u_of_row * load(k + i);
    store(state + row * K + i, x);
    if (Rows::kAskAhead) __builtin_prefetch(state + (kWidth + row) * K + i);
    return x;
  });
  if (__builtin_expect(any(out != out), 0))
    for (int i = 0; i < kWidth * K; i += kWidth) store(state + i, canonical(load(state + i)));
  return {dot_k, u, out};
}

}  // namespace
}  // namespace gdnsim::golden
