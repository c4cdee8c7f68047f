// Summation orders over tiles: order.cpp once more, where each number is a vector and each vector holds one element of many
// rows. Any order; and two shapes of it with everything known to the compiler, for the orders that are hot.
#pragma once

#include "simd.hpp"
#include "simd_words.hpp"

namespace gdnsim::golden {
namespace {

/// One number for all lanes.
struct Same {
  const float* y;
  GDNSIM_LANE F operator[](int i) const { return all(y[i]); }
};

/// Two numbers that go through the same operations.
template <class T>
struct Pair {
  T a, b;
};
template <class T>
GDNSIM_LANE Pair<T> operator+(Pair<T> x, Pair<T> y) {
  return {x.a + y.a, x.b + y.b};
}
template <class T>
GDNSIM_LANE Pair<T> operator*(Pair<T> x, Pair<T> y) {
  return {x.a * y.a, x.b * y.b};
}
template <class T>
GDNSIM_LANE Pair<T> fma(Pair<T> x, Pair<T> y, Pair<T> z) {
  return {fma(x.a, y.a, z.a), fma(x.b, y.b, z.b)};
}

/// Two numbers for all lanes.
struct SamePair {
  const float *a, *b;
  GDNSIM_LANE Pair<F> operator[](int i) const { return {all(a[i]), all(b[i])}; }
};

// ---- S.k in sequence (rule D7): order.hpp's functions, which a linker would share ----

GDNSIM_LANE bool is_sequential(const DotOrder& order, int v) { return v % kTileRows >= order.sequential_from; }
GDNSIM_LANE DotOrder in_sequence(DotOrder order) {
  order.order = LaneOrder::sequential;
  return order;
}

// ---- any order (rules D1-D6); `lanes` and `sums` are scratch ----

template <class Y>
struct AnyOrder {
  const DotOrder& order;
  const F* x;
  Y y;
  F* lanes;

  F accumulate(int i, F sum) const { return order.product == Product::fma ? fma(x[i], y[i], sum) : sum + x[i] * y[i]; }
  F lane_sum(int begin, int end) const {
    const bool swapped = order.order == LaneOrder::swapped && end - begin >= 2;
    const int first = swapped ? begin + 1 : begin;
    F sum = x[first] * y[first];
    if (swapped) sum = accumulate(begin, sum);
    for (int i = begin + (swapped ? 2 : 1); i < end; ++i) sum = accumulate(i, sum);
    return sum;
  }
  static F combine(Tree tree, F* values, int n) {
    if (tree == Tree::widest) {
      for (int distance = n / 2; distance >= 1; distance /= 2)
        for (int i = 0; i < distance; ++i) values[i] += values[i + distance];
    } else if (tree == Tree::narrowest) {
      for (int distance = 1; distance < n; distance *= 2)
        for (int i = 0; i + distance < n; i += 2 * distance) values[i] += values[i + distance];
    } else {
      for (int i = 1; i < n; ++i) values[0] += values[i];
    }
    return values[0];
  }
  F fused_exchange(int begin) const {
    const int distance = order.group / 2;
    for (int i = 0; i < distance; ++i) {
      const int near = begin + i, far = near + distance;
      const F product = far < order.n ? x[far] * y[far] : F{};
      lanes[i] = near < order.n ? fma(x[near], y[near], product) : fma(F{}, F{}, product);
    }
    return combine(order.tree, lanes, distance);
  }
  F group_sum(int first_lane) const {
    if (order.exchange == Exchange::fused) return fused_exchange(first_lane);
    for (int i = 0; i < order.group; ++i) {
      const int begin = (first_lane + i) * order.lane,
                end = begin + order.lane < order.n ? begin + order.lane : order.n;
      lanes[i] = begin < end ? lane_sum(begin, end) : F{};
    }
    return combine(order.tree, lanes, order.group);
  }
  F sum(F* sums) const {
    const int groups = (order.lanes + order.group - 1) / order.group;
    for (int i = 0; i < groups; ++i) sums[i] = group_sum(i * order.group);
    if (groups == 1) return sums[0];
    int padded = groups;
    if (order.groups != Tree::sequential)
      for (padded = 1; padded < groups; padded *= 2) {
      }
    for (int i = groups; i < padded; ++i) sums[i] = F{};
    return combine(order.groups, sums, padded);
  }
};

/// Vectors of scratch that `dot` needs: a group's lanes, and the groups.
constexpr std::int64_t dot_scratch(const DotOrder& order) {
  return order.group + 2 * ((order.lanes + order.group - 1) / order.group);
}

template <class Y>
__attribute__((noinline)) F dot(const DotOrder& order, const F* x, Y y, F* scratch) {
  return AnyOrder<Y>{order, x, y, scratch}.sum(scratch + order.group);
}

// ---- orders known to the compiler: groups of kGroup lanes of kLane elements, widest butterfly, groups left to right ----

/// The butterfly depth first: few sums are alive at a time, and each element is asked for once.
template <int kLane, bool kFma, int kGroup>
struct FixedOrder {
  static constexpr int kElements = kLane * kGroup;

  static bool is(const DotOrder& order) {
    return order.n % kElements == 0 && order.lane == kLane && order.group == kGroup && order.tree == Tree::widest &&
           order.exchange == Exchange::plain && (order.n == kElements || order.groups == Tree::sequential) &&
           (kLane == 1 ||
            (order.order == LaneOrder::swapped && order.product == (kFma ? Product::fma : Product::rounded)));
  }

  /// `element(i)` gives x[i], a vector or several; it may do more than that, and is called once for each i.
  template <class Element, class Y>
  static GDNSIM_LANE auto lane(int begin, const Element& element, const Y& y) {
    if constexpr (kLane == 1) {
      return element(begin) * y[begin];
    } else {
      auto sum = element(begin + 1) * y[begin + 1];
#pragma GCC unroll 8
      for (int j = 0; j < kLane; ++j) {
        if (j == 1) continue;
        const auto x = element(begin + j);
        sum = kFma ? fma(x, y[begin + j], sum) : sum + x * y[begin + j];
      }
      return sum;
    }
  }

  /// Lane i after the exchanges over all distances from kGroup / 2 down to kDistance.
  template <int kDistance, class Element, class Y>
  static GDNSIM_LANE auto after(int i, int begin, const Element& element, const Y& y) {
    if constexpr (kDistance == kGroup) {
      return lane(begin + i * kLane, element, y);
    } else {
      const auto near = after<2 * kDistance>(i, begin, element, y);
      return near + after<2 * kDistance>(i + kDistance, begin, element, y);
    }
  }

  template <class Element, class Y>
  static GDNSIM_LANE auto dot(int n, const Element& element, const Y& y) {
    auto sum = after<1>(0, 0, element, y);
    for (int begin = kElements; begin < n; begin += kElements) sum = sum + after<1>(0, begin, element, y);
    return sum;
  }
};

}  // namespace
}  // namespace gdnsim::golden
