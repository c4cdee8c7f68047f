// Running a probe under a contract and measuring how far its bits are from the recorded ones.
#include "fit/probe.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "gdnsim/compare.hpp"

namespace gdnsim::fitting {
namespace {

constexpr std::uint64_t kNaNCost = 40;          // more than any distance in ulps
constexpr std::uint64_t kRefused = 1ull << 39;  // the backend cannot give this contract's bits

void add_words(Score& score, DType type, std::span<const std::byte> got, std::span<const std::byte> want) {
  const std::size_t n = want.size() / size_of(type);
  score.compared += n;
  if (std::memcmp(got.data(), want.data(), want.size()) == 0) return;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t a = word_at(type, got, i), b = word_at(type, want, i);
    if (a == b) continue;
    const auto ulp = ulp_distance(type, a, b);
    ++score.differing;
    score.cost += ulp ? 1 + static_cast<std::uint64_t>(std::bit_width(*ulp)) : kNaNCost;
  }
}

/// One tap, head by head: rows that the probe runs, or (norm) heads whose input passed unchanged.
void add_tap(Score& score, const Probe& probe, std::size_t at_step, Tap tap, const StepOutputs& outputs,
             const Bytes& want, std::uint64_t limit, std::set<Unit>* wrong) {
  const ProbeStep& step = probe.at[at_step];
  const TapShape shape = shape_of(tap, probe.small);
  const std::size_t head_bytes = static_cast<std::size_t>(shape.per_head) * size_of(shape.type);
  const std::size_t passed_bytes = static_cast<std::size_t>(probe.small.V) * size_of(probe.small.act_dtype);
  for (std::size_t row = 0; row < step.plan.block.size() && score.cost < limit; ++row) {
    const Unit unit{at_step, static_cast<int>(row)};
    if (step.plan.block[row] < 0 || probe.ignored.contains(unit)) continue;
    const std::uint64_t before = score.cost;
    for (std::size_t head = 0; head < static_cast<std::size_t>(shape.heads); ++head) {
      const std::size_t at = row * static_cast<std::size_t>(shape.heads) + head;
      if (!step.norm_input.empty() && std::memcmp(outputs[Tap::core_out].data() + at * passed_bytes,
                                                  step.norm_input.data() + at * passed_bytes, passed_bytes) != 0)
        continue;
      add_words(score, shape.type, {outputs[tap].data() + at * head_bytes, head_bytes},
                {want.data() + at * head_bytes, head_bytes});
    }
    if (wrong != nullptr && score.cost > before) wrong->insert(unit);
  }
}

void put_states(const Probe& probe, const ProbeStep& step, Pool& pool, Bytes& recurrent, Bytes& conv) {
  for (const BlockState& state : step.before) pool.write(0, state.block, state.recurrent, state.conv);
  if (!probe.reset_window) return;
  for (std::int32_t block : step.plan.block) {
    if (block < 0) continue;
    pool.read(0, block, recurrent, conv);
    std::ranges::fill(conv, std::byte{0});
    pool.write(0, block, recurrent, conv);
  }
}

/// Compares with the recorded states, and goes on from those.
void add_states(Score& score, const Probe& probe, std::size_t at_step, Pool& pool, Bytes& recurrent, Bytes& conv,
                std::set<Unit>* wrong) {
  const ProbeStep& step = probe.at[at_step];
  for (const BlockState& state : step.after) {
    const auto row = std::ranges::find(step.plan.block, state.block) - step.plan.block.begin();
    const Unit unit{at_step, static_cast<int>(row)};
    pool.read(0, state.block, recurrent, conv);
    const std::uint64_t before = score.cost;
    if (!probe.ignored.contains(unit)) add_words(score, probe.small.state_dtype, recurrent, state.recurrent);
    if (wrong != nullptr && score.cost > before) wrong->insert(unit);
    pool.write(0, state.block, state.recurrent, conv);
  }
}

}  // namespace

Score evaluate(Probe& probe, Backend& backend, const Contract& contract, std::uint64_t limit, std::set<Unit>* wrong) {
  Contract any = contract;
  any.shapes = Shapes::any;
  if (!backend.refuses(any).empty()) return {kRefused, 1, 1};
  Contract other = probe.other.value_or(any);
  other.shapes = Shapes::any;
  Score score;
  StepOutputs outputs;
  outputs.want = probe.taps;
  Bytes recurrent(probe.small.state_bytes()), conv(probe.small.conv_bytes());
  backend.prepare(probe, {0});
  const auto pool = backend.make_pool(probe.small, {0});
  for (std::size_t i = 0; i < probe.at.size() && score.cost < limit; ++i) {
    const ProbeStep& step = probe.at[i];
    put_states(probe, step, *pool, recurrent, conv);
    backend.step({0, step.plan, step.inputs, step.carried ? other : any}, *pool, outputs);
    for (const auto& [tap, want] : step.want) add_tap(score, probe, i, tap, outputs, want, limit, wrong);
    add_states(score, probe, i, *pool, recurrent, conv, wrong);
  }
  return score;
}

}  // namespace gdnsim::fitting
