// Two f32 numbers added, multiplied or divided in double precision and then rounded to f32 are rounded as if once: 53
// digits are more than twice 24 and two. So is a root. A product of two is exact.
#include "check/norm_words.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "check/subject.hpp"
#include "gdnsim/arith.hpp"
#include "gdnsim/order.hpp"
#include "gdnsim/words.hpp"

namespace gdnsim {
namespace {

using Row = std::vector<double>;

double single(double x) { return static_cast<float>(x); }
/// NaNs become the canonical one, as in all that is stored (rule R3).
std::uint32_t stored_word(DType type, double x) {
  const std::uint32_t word = nearest_word(type, x);
  return type == DType::f32 ? bits_of(canonical(float_of(word))) : word;
}
double stored(DType type, double x) { return value_of(type, nearest_word(type, x)); }

Row widened(DType type, std::span<const std::byte> words, std::int64_t row, int width) {
  Row values(static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = value_of(type, word_at(type, words, static_cast<std::size_t>(row * width) + i));
  return values;
}

/// Rules D3 and D6: neighbours `distance` apart meet, the widest distance first or the narrowest.
double joined(Tree tree, Row sums) {
  if (tree == Tree::sequential) {
    double all = sums[0];
    for (std::size_t i = 1; i < sums.size(); ++i) all = single(all + sums[i]);
    return all;
  }
  std::size_t size = 1;
  while (size < sums.size()) size *= 2;
  sums.resize(size);
  for (std::size_t half = size / 2; half >= 1; half /= 2) {
    for (std::size_t i = 0; i < half; ++i)
      sums[i] = tree == Tree::widest ? single(sums[i] + sums[i + half]) : single(sums[2 * i] + sums[2 * i + 1]);
    sums.resize(half);
  }
  return sums[0];
}

/// Rule D2, of products that are rounded.
double lane_sum(const DotOrder& order, const Row& squares, std::size_t lane) {
  const std::size_t begin = lane * static_cast<std::size_t>(order.lane),
                    end = std::min(begin + static_cast<std::size_t>(order.lane), squares.size());
  if (begin >= end) return 0;  // rule D4
  const bool swapped = order.order == LaneOrder::swapped && end - begin >= 2;
  double sum = squares[swapped ? begin + 1 : begin];
  for (std::size_t i = begin + 1; i < end; ++i) sum = single(sum + squares[swapped && i == begin + 1 ? begin : i]);
  return sum;
}

double sum_of(const DotOrder& order, const Row& squares) {
  const auto group = static_cast<std::size_t>(order.group), lanes = static_cast<std::size_t>(order.lanes);
  Row groups, sums(group);
  for (std::size_t first = 0; first < lanes; first += group) {
    for (std::size_t i = 0; i < group; ++i) sums[i] = lane_sum(order, squares, first + i);
    groups.push_back(joined(order.tree, sums));
  }
  return joined(order.groups, groups);
}

double gate_of(NormGate gate, double z) {
  const double sigmoid = single(1 / single(exp_cr(static_cast<float>(-z)) + 1.0));
  return gate == NormGate::silu ? single(z * sigmoid) : sigmoid;
}

struct Rules {
  const NormArgs& args;
  DotOrder order;
  Row weight;

  /// Rule N5; with an exact root, `rsqrt` is the same.
  double root(const Row& x) const {
    Row squares;
    for (const double value : x) squares.push_back(single(value * value));
    const double mean = single(sum_of(order, squares) / args.spec.width);
    return single(1 / single(std::sqrt(single(mean + args.spec.eps))));
  }

  /// Rules N2, N3, N6 and N8.
  double run(std::int64_t row, std::span<double> out) const {
    const NormSpec& spec = args.spec;
    const Norm norm = args.contract.norm;
    Row x = widened(spec.act, args.x, row, spec.width), gate(x.size(), 1);  // a product with 1 changes nothing
    if (spec.gated) gate = widened(spec.act, args.z, row, spec.width);
    for (double& z : gate) z = spec.gated ? gate_of(spec.gate, z) : z;
    for (std::size_t i = 0; i < x.size() && norm == Norm::gate_first; ++i) x[i] = single(x[i] * gate[i]);
    const double rstd = root(x);
    const auto after = [&](double value) { return norm == Norm::hf ? stored(spec.act, value) : value; };
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double weighted = after(single(after(single(x[i] * rstd)) * weight[i]));
      out[i] = norm == Norm::gate_first ? weighted : single(weighted * gate[i]);
    }
    return rstd;
  }
};

}  // namespace

bool is_written_out(const NormSpec& spec, const Contract& contract) {
  return contract.div == Div::ieee && contract.sqrt == Sqrt::ieee && contract.norm_dot.product == Product::rounded &&
         contract.norm_dot.exchange == Exchange::plain && (!spec.gated || contract.exp == Exp::exact);
}

NormOutputs written_out(const NormArgs& args) {
  const NormSpec& spec = args.spec;
  Rules rules{args, resolve(args.contract.norm_dot, spec.width, {DType::f32, args.rows, args.contract.multiprocessors}),
              widened(spec.act, args.weight, 0, spec.width)};
  for (double& weight : rules.weight)
    if (spec.weight_offset != 0) weight = single(weight + spec.weight_offset);
  NormOutputs outputs;
  outputs.out.resize(args.x.size()), outputs.rstd.resize(static_cast<std::size_t>(args.rows));
  const std::size_t width = static_cast<std::size_t>(spec.width), word = size_of(spec.act);
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < args.rows; ++row) {
    Row out(width);
    outputs.rstd[static_cast<std::size_t>(row)] = canonical(static_cast<float>(rules.run(row, out)));
    for (std::size_t i = 0; i < width; ++i) {
      const std::uint32_t bits = stored_word(spec.act, out[i]);
      std::memcpy(outputs.out.data() + (static_cast<std::size_t>(row) * width + i) * word, &bits, word);
    }
  }
  return outputs;
}

}  // namespace gdnsim
