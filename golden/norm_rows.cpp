#include "norm_rows.hpp"

#include <algorithm>
#include <chrono>

#include "gdnsim/error.hpp"

namespace gdnsim::golden {
namespace {

constexpr std::int64_t kChunk = 8192;  // elements that a thread takes at a time

void run(const NormArgs& args, Crew& crew, NormOutputs& outputs) {
  const NormSpec& spec = args.spec;
  const Scalar scalar(args.contract);
  const DotOrder order =
      resolve(args.contract.norm_dot, spec.width, {DType::f32, args.rows, args.contract.multiprocessors});
  const NormRules rules{scalar, args.contract, order, spec.act, spec.gate, spec.eps};
  const Row weight = weight_of(spec, args.weight);
  const auto one = [&](std::int64_t row) {
    Row o(spec.width), z(spec.gated ? spec.width : 0);
    widen(spec.act, args.x.data(), row * spec.width, spec.width, o.data());
    widen(spec.act, args.z.data(), row * z.size(), z.size(), z.data());
    const float rstd = norm_row(rules, o, spec.gated ? &z : nullptr, weight);
    outputs.rstd[static_cast<std::size_t>(row)] = canonical(rstd);
    store_row(spec.act, outputs.out.data(), row * spec.width, spec.width, o.data());
  };
  const std::int64_t chunk = std::max<std::int64_t>(1, kChunk / spec.width);
  crew.share((args.rows + chunk - 1) / chunk, [&](std::int64_t i, int) {
    for (std::int64_t row = i * chunk; row < std::min((i + 1) * chunk, args.rows); ++row) one(row);
  });
}

}  // namespace

float rstd_of(const NormRules& rules, const Row& x) {
  const Scalar& f = rules.scalar;
  const float mean = f.div(dot(rules.order, x.data(), x.data()), static_cast<float>(x.size()));
  const float under_root = mean + rules.eps;
  return rules.contract.rstd == Rstd::rsqrt ? f.rsqrt(under_root) : f.div(1.0f, f.sqrt(under_root));
}

float norm_row(const NormRules& rules, Row& o, const Row* z, const Row& weight) {
  const Scalar& f = rules.scalar;
  const auto to_act = [&](float x) { return rounded_to(rules.act, x); };
  Row gate;
  if (z != nullptr)
    gate = z->unaryExpr([&](float x) { return rules.gate == NormGate::silu ? x * f.sigmoid(x) : f.sigmoid(x); });
  const Norm norm = rules.contract.norm;
  if (z != nullptr && norm == Norm::gate_first) o = o * gate;
  const float rstd = rstd_of(rules, o);
  o = o * rstd;
  if (norm == Norm::hf) o = o.unaryExpr(to_act).eval();
  o = o * weight;
  if (norm == Norm::hf) o = o.unaryExpr(to_act).eval();
  if (z != nullptr && norm != Norm::gate_first) o = o * gate;
  return rstd;
}

Row weight_of(const NormSpec& spec, std::span<const std::byte> words) {
  Row weight(spec.width);
  widen(spec.act, words.data(), 0, spec.width, weight.data());
  if (spec.weight_offset != 0) weight = weight + spec.weight_offset;
  return weight;
}

void norm_rows(const NormArgs& args, Crew& crew, NormOutputs& outputs) {
  using Clock = std::chrono::steady_clock;
  outputs.out.resize(args.x.size());
  outputs.rstd.resize(static_cast<std::size_t>(args.rows));
  run(args, crew, outputs);
  std::vector<double> seconds;
  for (int call = 0; call < args.timed; ++call) {
    const auto start = Clock::now();
    run(args, crew, outputs);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::ranges::sort(seconds);
  outputs.seconds = seconds.empty() ? 0 : seconds[seconds.size() / 2];
}

}  // namespace gdnsim::golden
