// Summation orders, as one would explain them: cut in lanes, sum each lane, combine the lanes of a group, combine the groups.
#include "gdnsim/order.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "gdnsim/clones.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

int lane_width(Lane lane, int n, const DotContext& context) {
  switch (lane) {
    case Lane::one:
      return 1;
    case Lane::two:
      return 2;
    case Lane::four:
      return 4;
    case Lane::eight:
      return 8;
    case Lane::sixteen:
      return 16;
    case Lane::row_32nd:
      return n >= 32 ? n / 32 : 1;
    case Lane::bytes16:
      return static_cast<int>(16 / size_of(context.state_dtype));
    case Lane::whole:
      return n;
    case Lane::by_rows:
      return rows_per_block(context.launch_rows, context.multiprocessors) == 1 ? 4 : 8;
  }
  GDNSIM_CHECK(false);
  return 0;
}

int power_of_two_above(int n) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(n))); }

GDNSIM_INLINE float accumulate(Product product, float x, float y, float sum) {
  return product == Product::fma ? std::fma(x, y, sum) : sum + x * y;
}

/// One lane: its first product is rounded on its own; the others follow in order.
GDNSIM_INLINE float lane_sum(const DotOrder& order, const float* x, const float* y, int begin, int end) {
  const bool swapped = order.order == LaneOrder::swapped && end - begin >= 2;
  const int first = swapped ? begin + 1 : begin;
  float sum = x[first] * y[first];
  if (swapped) sum = accumulate(order.product, x[begin], y[begin], sum);
  for (int i = begin + (swapped ? 2 : 1); i < end; ++i) sum = accumulate(order.product, x[i], y[i], sum);
  return sum;
}

/// Combines `n` values in place and returns the result. Both butterflies need n to be a power of two.
GDNSIM_INLINE float combine(Tree tree, float* values, int n) {
  if (tree == Tree::sequential) {
    float sum = values[0];
    for (int i = 1; i < n; ++i) sum += values[i];
    return sum;
  }
  if (tree == Tree::widest) {
    for (int distance = n / 2; distance >= 1; distance /= 2)
      for (int i = 0; i < distance; ++i) values[i] += values[i + distance];
  } else {
    for (int distance = 1; distance < n; distance *= 2)
      for (int i = 0; i + distance < n; i += 2 * distance) values[i] += values[i + distance];
  }
  return values[0];
}

/// The first exchange of a group with one element a lane, fused: fma(x, y, round(x' * y')) over the two halves (rule D5).
GDNSIM_INLINE float fused_exchange(const DotOrder& order, const float* x, const float* y, int begin) {
  std::array<float, 64> half{};
  const int distance = order.group / 2;
  const auto at = [&](const float* row, int i) { return i < order.n ? row[i] : 0.0f; };
  for (int i = 0; i < distance; ++i) {
    const int near = begin + i, far = near + distance;
    half[static_cast<std::size_t>(i)] = std::fma(at(x, near), at(y, near), at(x, far) * at(y, far));
  }
  return combine(order.tree, half.data(), distance);
}

GDNSIM_INLINE float group_sum(const DotOrder& order, const float* x, const float* y, int first_lane, float* lanes) {
  if (order.exchange == Exchange::fused) return fused_exchange(order, x, y, first_lane);
  for (int i = 0; i < order.group; ++i) {
    const int begin = (first_lane + i) * order.lane, end = std::min(begin + order.lane, order.n);
    lanes[i] = begin < end ? lane_sum(order, x, y, begin, end) : 0.0f;
  }
  return combine(order.tree, lanes, order.group);
}

/// The first row of a tile whose S.k is sequential (rule D7): four warps take 128 lanes a pass, each row its lanes.
int sequential_from(SequentialK rows, int lanes) {
  if (rows == SequentialK::none) return kTileRows;
  const int rows_a_pass = std::clamp(128 / power_of_two_above(lanes), 1, kTileRows), passes = kTileRows / rows_a_pass;
  return rows == SequentialK::all || passes <= 2 ? 0 : kTileRows - rows_a_pass;
}

}  // namespace

int rows_per_block(std::int64_t launch_rows, int multiprocessors) {
  const std::int64_t wave = 2LL * multiprocessors;
  const std::int64_t needed = (launch_rows + wave - 1) / wave;
  return needed <= 1 ? 1 : needed == 2 ? 2 : 4;
}

Contract for_launch(Contract contract, std::int64_t launch_rows) {
  Lane& lane = contract.norm_dot.lane;
  if (lane == Lane::by_rows)
    lane = rows_per_block(launch_rows, contract.multiprocessors) == 1 ? Lane::four : Lane::eight;
  return contract;
}

DotOrder resolve(const Dot& dot, int n, const DotContext& context) {
  GDNSIM_CHECK(n >= 1 && n <= kMaxRow);
  DotOrder order{.n = n,
                 .order = dot.order,
                 .product = dot.product,
                 .exchange = dot.exchange,
                 .tree = dot.tree,
                 .groups = dot.groups};
  order.lane = lane_width(dot.lane, n, context);
  order.lanes = (n + order.lane - 1) / order.lane;
  order.group = dot.group == 0 ? order.lanes : dot.group;
  if (dot.tree != Tree::sequential) order.group = power_of_two_above(order.group);
  order.sequential_from = sequential_from(dot.sequential_k, order.lanes);
  if (dot.exchange == Exchange::fused) GDNSIM_CHECK(order.lane == 1 && order.group >= 2 && order.group <= 128);
  return order;
}

GDNSIM_CLONES float dot(const DotOrder& order, const float* x, const float* y) {
  std::array<float, kMaxRow> lanes, sums;
  lanes[0] = 0.0f;
  const int groups = (order.lanes + order.group - 1) / order.group;
  sums[0] = group_sum(order, x, y, 0, lanes.data());
  if (groups == 1) return sums[0];
  for (int i = 1; i < groups; ++i)
    sums[static_cast<std::size_t>(i)] = group_sum(order, x, y, i * order.group, lanes.data());
  int padded = groups;
  if (order.groups != Tree::sequential) padded = power_of_two_above(groups);
  for (int i = groups; i < padded; ++i) sums[static_cast<std::size_t>(i)] = 0.0f;
  return combine(order.groups, sums.data(), padded);
}

}  // namespace gdnsim
