#include "check/norm_share.hpp"

#include <cmath>
#include <numbers>

#include "gdnsim/order.hpp"

namespace gdnsim {
namespace {

// Of one f32 operation, in units of 2^-24 of its result: the error is uniform, the result's mantissa logarithmic.
constexpr double kVariance = 0.18;
// Of mean + eps (halved by the root), root, and reciprocal; then of the two products of an element.
constexpr double kRootSteps = 0.25 + 1 + 1, kElementSteps = 2;

constexpr double squared(double x) { return x * x; }

/// Sum over the additions that join `count` sums, each of that share of the whole, of the squared share of what they
/// give.
double joined(Tree tree, int count, double share) {
  double all = 0;
  if (tree == Tree::sequential)
    for (int i = 2; i <= count; ++i) all += squared(i * share);
  else
    for (int half = count / 2; half >= 1; half /= 2) all += half * squared(share * count / half);
  return all;
}

/// The same over all additions of a row of equal squares.
double joined(const DotOrder& order) {
  const double one = 1.0 / order.n, lane = one * order.lane, group = lane * order.group;
  const int groups = (order.lanes + order.group - 1) / order.group;
  return order.lanes * joined(Tree::sequential, order.lane, one) + groups * joined(order.tree, order.group, lane) +
         joined(order.groups, groups, group);
}

int digits_of(DType type) { return type == DType::bf16 ? 8 : type == DType::f16 ? 11 : 24; }

}  // namespace

double expected_misses(const NormSpec& spec, const Contract& contract) {
  const DotOrder order = resolve(contract.norm_dot, spec.width, {DType::f32, 1, contract.multiprocessors});
  const double variance = kVariance * (joined(order) / 4 + kRootSteps + kElementSteps);
  const double error = std::sqrt(variance * 2 / std::numbers::pi) * 0x1p-24;  // mean, relative
  return error * std::ldexp(std::numbers::log2e, digits_of(spec.act) - 1);    // over the mean distance of two words
}

Share expected_share(const NormSpec& spec, const Contract& contract, std::uint64_t elements) {
  if (spec.act == DType::f32) return {0, 1, "nothing is expected of f32"};
  if (contract.norm == Norm::hf && spec.act == DType::bf16)
    return spec.gated ? Share{0.645, 0.665, "rounded three times"} : Share{0.72, 0.78, "rounded twice"};
  if (contract.norm == Norm::hf) return {0, 1, "nothing is expected of twice rounded f16"};
  if (spec.gated) return {1 - std::ldexp(2e-5, digits_of(spec.act) - digits_of(DType::bf16)), 1, "rounded once"};
  const double misses = expected_misses(spec, contract), count = static_cast<double>(elements);
  return {1 - 1.25 * misses - 4 * std::sqrt(misses / count), 1, "rounded once, after a sum in this order"};
}

}  // namespace gdnsim
