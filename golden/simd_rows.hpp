// One step of the recurrence on rows as they lie, for a step or a few: the lanes are elements of one row, nothing is kept
// transposed, and the state is read and written in place. A row's sum crosses lanes; a group of rows shares the exchanges, so that
// each halves the number of vectors, and the sums come out one row a lane. The first pass of a group (decay, S.k) goes before the
// second (update, S.q) of the one before it: what the second waits for has long been there.
#pragma once

#include "simd_tile.hpp"

namespace gdnsim::golden {
namespace {

constexpr int kFewSteps = 3;

/// What goes into a step and comes out of it beside the state, one value a row.
struct RowValues {
  float *v, *dot_k, *u, *out;
};

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

template <bool kFma>
GDNSIM_LANE F updated(F S, F k, F u) {
  return kFma ? fma(k, u, S) : S + u * k;
}

/// All lanes plus those at the distances from kDistance down to kLast, one after another.
template <int kDistance, int kLast>
GDNSIM_LANE F crossed(F x) {
  if constexpr (kDistance < kLast)
    return x;
  else
    return crossed<kDistance / 2, kLast>(x + across<kDistance>(x));
}

/// FixedOrder<1, false, 32>: one element a lane. K is known to the compiler, or half of the instructions would be addresses.
template <int kK>
struct RowsOfOnes {
  static constexpr int K = kK, kChunk = 32, kGroup = kWidth;

  // Sixteen lanes pay more for the exchanges than for making a tile, once.
  static constexpr int kMostSteps = kWidth == 16 ? 5 : 1 << 30;
  static constexpr int kPrepared = 0;

  static void prepare(const HeadStep&, F*) {}
  static GDNSIM_LANE F group_of(const float* values) { return load(values); }

  /// Sums over a group; `element(row, i)` gives elements i to i + kWidth - 1, and is called once for each.
  template <class Element>
  static GDNSIM_LANE F sums(const float* y, const Element& element) {
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

  static GDNSIM_LANE F first(const HeadStep& step, const F*, F decay, float* state) {
    return sums(step.k, [=](int row, int i) GDNSIM_LEAF {
      const F x = decay * load(state + row * K + i);
      store(state + row * K + i, x);
      return x;
    });
  }
  template <bool kFmaUpdate>
  static GDNSIM_LANE F second(const HeadStep& step, const F*, const float* u, float* state) {
    const float* k = step.k;
    float each[kGroup];  // a copy, which the state cannot overwrite
    __builtin_memcpy(each, u, sizeof each);
    return sums(step.q, [=, &each](int row, int i) GDNSIM_LEAF {
      const F x = updated<kFmaUpdate>(load(state + row * K + i), load(k + i), all(each[row]));
      store(state + row * K + i, x);
      __builtin_prefetch(state + (2 * kGroup + row) * K + i);  // the hardware does not foresee jumps from row to row
      return x;
    });
  }
};

/// FixedOrder<4, kFma, K / 4>: lanes of four consecutive elements. Four rows at a time: their fours are transposed, so that
/// element j of each lies in one vector.
template <int kK, bool kFma>
struct RowsOfFours {
  static constexpr int K = kK, kGroup = 4;

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
  static GDNSIM_LANE F group_of(const float* values) { return all_fours(values); }

  /// Sums over a group, in every four lanes the same; `elements(i, x)` gives those from i on of each row, once for each i.
  template <class Elements>
  static GDNSIM_LANE F sums(const F* y, const Elements& elements) {
    return crossed<kWidth / 2, 4>(exchanged<1, K / kWidth>(0, [&](int i) GDNSIM_LEAF {
      F x[4];
      elements(i * kWidth, x);
      transpose_fours(x);
      const F* at = y + 4 * i;
      if constexpr (kFma) return fma(x[3], at[3], fma(x[2], at[2], fma(x[0], at[0], x[1] * at[1])));
      return x[1] * at[1] + x[0] * at[0] + x[2] * at[2] + x[3] * at[3];
    }));
  }

  static GDNSIM_LANE F first(const HeadStep&, const F* prepared, F decay, float* state) {
    return sums(prepared, [=](int i, F(&x)[4]) GDNSIM_LEAF {
#pragma GCC unroll 4
      for (int row = 0; row < 4; ++row) {
        x[row] = decay * load(state + row * K + i);
        store(state + row * K + i, x[row]);
      }
    });
  }
  template <bool kFmaUpdate>
  static GDNSIM_LANE F second(const HeadStep& step, const F* prepared, const float* u, float* state) {
    const F each[] = {all(u[0]), all(u[1]), all(u[2]), all(u[3])};
    return sums(prepared + 4 * K / kWidth, [&](int i, F(&x)[4]) GDNSIM_LEAF {
      const F k = load(step.k + i);
#pragma GCC unroll 4
      for (int row = 0; row < 4; ++row) {
        x[row] = updated<kFmaUpdate>(load(state + row * K + i), k, each[row]);
        store(state + row * K + i, x[row]);
      }
    });
  }
};

/// `rows` rows of an f32 state. The first pass leaves the state times the decay. A NaN among a row's new elements makes its sum one
/// too: only then is it looked for.
template <class Rows, bool kFmaUpdate>
void rows_step(const HeadStep& step, const F* prepared, const RowValues& values, float* state, int rows) {
  constexpr int K = Rows::K, kGroup = Rows::kGroup;
  const F decay = all(step.decay), beta = all(step.beta);
  I nan = I{};
#pragma GCC unroll 1
  for (int row = -kGroup; row < rows; row += kGroup) {
    const int next = row + kGroup;
    if (next < rows) {
      const F dot_k = Rows::first(step, prepared, decay, state + next * K);
      const F u = (Rows::group_of(values.v + next) - dot_k) * beta;
      __builtin_memcpy(values.dot_k + next, &dot_k, 4 * kGroup);
      __builtin_memcpy(values.u + next, &u, 4 * kGroup);
    }
    if (row < 0) continue;
    const F out = Rows::template second<kFmaUpdate>(step, prepared, values.u + row, state + row * K);
    __builtin_memcpy(values.out + row, &out, 4 * kGroup);
    nan |= out != out;
  }
  if (__builtin_expect(any(nan), 0))
    for (int i = 0; i < rows * K; i += kWidth) store(state + i, canonical(load(state + i)));
}

}  // namespace
}  // namespace gdnsim::golden
