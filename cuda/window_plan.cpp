#include "window_plan.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "gdnsim/error.hpp"

namespace gdnsim::cuda {
namespace {

/// One block's visits: the step of each, and its flat row.
using Visits = std::vector<std::pair<int, std::int32_t>>;

std::map<std::int32_t, Visits> visits_of(std::span<const StepPlan> plans, WindowPlan& result) {
  std::map<std::int32_t, Visits> visits;
  for (int t = 0; t < result.steps; ++t) {
    const std::vector<std::int32_t>& block = plans[static_cast<std::size_t>(t)].block;
    GDNSIM_CHECK(static_cast<int>(block.size()) == result.rows);
    for (const std::int32_t b : block) {
      const auto flat = static_cast<std::int32_t>(result.row_block.size());
      result.row_block.push_back(b);
      if (b >= 0) visits[b].emplace_back(t, flat);
    }
  }
  return visits;
}

void add_segments(WindowPlan& plan, std::int32_t chain, std::int32_t first, std::int32_t count) {
  for (std::int32_t at = 0; at < count; at += kSegment)
    plan.segments.push_back({chain, first + at, std::min(kSegment, count - at)});
}

/// How many of these visits are done after step t.
std::int32_t done_after(const Visits& visits, int t) {
  const auto after =
      std::upper_bound(visits.begin(), visits.end(), t, [](int step, const auto& visit) { return step < visit.first; });
  return static_cast<std::int32_t>(after - visits.begin());
}

/// The slot after `done` visits, made when it is asked for first.
std::int32_t slot_after(WindowPlan& plan, std::int32_t chain, std::int32_t done) {
  std::int32_t& slot = plan.look[static_cast<std::size_t>(plan.first[static_cast<std::size_t>(chain)] + done - 1)];
  if (slot < 0) {
    slot = static_cast<std::int32_t>(plan.slots.size());
    plan.slots.push_back({chain, done});
  }
  return slot;
}

/// Slots with bytes get the lowest numbers, so that only they need the room.
void bytes_first(WindowPlan& plan, const std::vector<bool>& bytes) {
  plan.with_bytes = static_cast<std::size_t>(std::ranges::count(bytes, true));
  plan.bytes.assign(plan.slots.size(), 0);
  std::fill_n(plan.bytes.begin(), plan.with_bytes, 1);
  std::vector<std::int32_t> number(plan.slots.size());
  const std::vector<Slot> was = plan.slots;
  std::int32_t next = 0;
  for (const bool with : {true, false})
    for (std::size_t slot = 0; slot < number.size(); ++slot)
      if (bytes[slot] == with) number[slot] = next++;
  for (std::size_t slot = 0; slot < number.size(); ++slot)
    plan.slots[static_cast<std::size_t>(number[slot])] = was[slot];
  const auto renumber = [&](std::int32_t& slot) {
    if (slot >= 0) slot = number[static_cast<std::size_t>(slot)];
  };
  std::ranges::for_each(plan.look, renumber);
  for (std::vector<std::int32_t>& kept : plan.kept) std::ranges::for_each(kept, renumber);
}

}  // namespace

bool WindowPlan::has_inactive() const { return std::ranges::find(row_block, -1) != row_block.end(); }
int WindowPlan::longest() const {
  std::int32_t most = 0;
  for (std::size_t chain = 0; chain < block.size(); ++chain) most = std::max(most, first[chain + 1] - first[chain]);
  return most;
}

WindowPlan plan_window(std::span<const StepPlan> plans, std::span<const std::vector<Look>> looks) {
  GDNSIM_CHECK(!plans.empty() && plans.size() == looks.size() && plans.size() <= kMaxVisits);
  WindowPlan plan;
  plan.steps = static_cast<int>(plans.size());
  plan.rows = plans[0].rows();
  const std::map<std::int32_t, Visits> chains = visits_of(plans, plan);
  std::map<std::int32_t, std::int32_t> number;  // of a block's chain
  plan.first.push_back(0);
  for (const auto& [block, visits] : chains) {
    const auto chain = static_cast<std::int32_t>(plan.block.size());
    number[block] = chain;
    plan.block.push_back(block);
    add_segments(plan, chain, plan.first.back(), static_cast<std::int32_t>(visits.size()));
    for (const auto& visit : visits) plan.visit.push_back(visit.second);
    plan.first.push_back(static_cast<std::int32_t>(plan.visit.size()));
  }
  plan.look.assign(plan.visit.size(), -1);
  std::vector<bool> bytes;  // [slots]
  for (int t = 0; t < plan.steps; ++t) {
    std::vector<std::int32_t>& kept = plan.kept.emplace_back();
    for (const Look& look : looks[static_cast<std::size_t>(t)]) {
      const auto chain = chains.find(look.block);
      const std::int32_t done = chain == chains.end() ? 0 : done_after(chain->second, t);
      kept.push_back(done == 0 ? -1 : slot_after(plan, number[look.block], done));
      bytes.resize(plan.slots.size());
      if (done > 0 && look.bytes) bytes[static_cast<std::size_t>(kept.back())] = true;
    }
  }
  bytes_first(plan, bytes);
  return plan;
}

}  // namespace gdnsim::cuda
