// Rows that a fault spoiled: leaving parts of a probe out until the rest agrees with one contract, and naming what is
// left.
#include <algorithm>

#include "fit/stage.hpp"

namespace gdnsim::fitting {
namespace {

constexpr std::size_t kSingleBlocks = 4;
constexpr std::uint64_t kGrossCost = 6;  // of a differing word: 1 and the width of a distance of 16 to 31 ulps

/// The blocks that a probe's rows use, ascending.
std::vector<std::int32_t> blocks_of(const Probe& probe) {
  std::set<std::int32_t> blocks;
  for (const ProbeStep& step : probe.at)
    for (std::int32_t block : step.plan.block)
      if (block >= 0 && !step.carried) blocks.insert(block);
  return {blocks.begin(), blocks.end()};
}

std::int32_t block_at(const Probe& probe, const Unit& unit) {
  return probe.at[unit.step].plan.block[static_cast<std::size_t>(unit.row)];
}

template <class Use>
void for_each_unit(const Probe& probe, const Use& use) {
  for (std::size_t i = 0; i < probe.at.size(); ++i)
    for (int row = 0; row < probe.at[i].plan.rows() && !probe.at[i].carried; ++row)
      if (probe.at[i].plan.block[static_cast<std::size_t>(row)] >= 0) use(Unit{i, row});
}

}  // namespace

std::vector<Mask> masks_for(const Probe& probe) {
  const std::vector<std::int32_t> blocks = blocks_of(probe);
  const auto place = [blocks](const Probe& of, const Unit& unit) {
    return static_cast<std::size_t>(std::ranges::lower_bound(blocks, block_at(of, unit)) - blocks.begin());
  };
  std::vector<Mask> masks;
  if (blocks.size() > 1)
    for (std::size_t parity : {0u, 1u})
      masks.push_back([=](const Probe& of, const Unit& unit) { return place(of, unit) % 2 == parity; });
  if (blocks.size() > 2)
    for (std::size_t only = 0; only < std::min(blocks.size(), kSingleBlocks); ++only)
      masks.push_back([=](const Probe& of, const Unit& unit) { return place(of, unit) != only; });
  const std::int64_t early = probe.at.empty() ? 0 : probe.at[(probe.at.size() - 1) / 3].plan.step;
  if (probe.at.size() > 1)
    masks.push_back([=](const Probe& of, const Unit& unit) { return of.at[unit.step].plan.step > early; });
  return masks;
}

void apply(const Mask& mask, Stage& stage) {
  for (Probe* probe : stage.probes()) {
    probe->ignored.clear();
    if (mask)
      for_each_unit(*probe, [&](const Unit& unit) {
        if (mask(*probe, unit)) probe->ignored.insert(unit);
      });
  }
}

namespace {

bool has_state(const Probe& probe, const Unit& unit) {
  return std::ranges::find(probe.at[unit.step].after, block_at(probe, unit), &BlockState::block) !=
         probe.at[unit.step].after.end();
}

/// What a contract leaves wrong, over all probes of a stage.
struct Tally {
  std::size_t rows = 0, wrong_rows = 0;
  std::size_t states = 0, wrong_states = 0;  // rows after which the state was recorded
  std::set<std::int32_t> wrong_blocks;

  std::uint64_t cost = 0, differing = 0;

  void add(const Probe& probe, const Score& score, const std::set<Unit>& wrong) {
    cost += score.cost, differing += score.differing;
    for_each_unit(probe, [&](const Unit& unit) {
      const bool is_wrong = wrong.contains(unit), state = has_state(probe, unit);
      rows += 1, wrong_rows += is_wrong;
      states += state, wrong_states += state && is_wrong;
      if (is_wrong) wrong_blocks.insert(block_at(probe, unit));
    });
  }
  /// A wrong choice shows in most states, or (an order of summing q's squares) in few, but then by an ulp or two; a
  /// fault shows in few and by far.
  bool is_fault() const {
    return 2 * wrong_rows < rows && 2 * wrong_states <= states && cost >= kGrossCost * differing;
  }
  bool one_block() const { return wrong_blocks.size() <= 1 && states > wrong_states; }
};

}  // namespace

bool ignore_wrong_rows(Stage& stage, Backend& backend, const Contract& contract, bool one_block) {
  apply({}, stage);
  std::vector<std::set<Unit>> wrong;
  Tally tally;
  for (Probe* probe : stage.probes()) {
    wrong.emplace_back();
    tally.add(*probe, evaluate(*probe, backend, contract, kNoLimit, &wrong.back()), wrong.back());
  }
  if (!tally.is_fault() || (one_block && !tally.one_block())) return false;
  std::size_t i = 0;
  for (Probe* probe : stage.probes()) probe->ignored = std::move(wrong[i++]);
  return true;
}

}  // namespace gdnsim::fitting
