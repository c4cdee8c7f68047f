// Hypotheses about inactive rows: one that was computed all the same and wrote a block.
#include <algorithm>
#include <optional>

#include "explain/kinds.hpp"

namespace gdnsim::explaining {
namespace {

/// The block that an earlier step left in this row of the index buffer, if any.
std::int32_t left_over(const Scene& scene, std::int64_t step, int row) {
  for (std::int64_t t = step - 1; t >= 0; --t)
    if (const std::int32_t block = scene.plan(t).block[static_cast<std::size_t>(row)]; block >= 0) return block;
  return -1;
}

bool inactive(const StepPlan& plan, int row) {
  return plan.path != Path::opaque && plan.block[static_cast<std::size_t>(row)] < 0;
}

std::string says(const StepPlan& plan, int row, std::int32_t block, bool stale) {
  std::string text = "this inactive row";
  if (row >= plan.present) text += ", beyond the " + std::to_string(plan.present) + " rows present,";
  text += " wrote block " + std::to_string(block);
  if (stale) text += "; an earlier step left that index in the row";
  return text;
}

Twist one_padded(std::int64_t step, const PaddedRow& row) {
  Twist twist;
  twist.padded = [=](const StepPlan& plan) {
    return plan.step == step ? std::vector<PaddedRow>{row} : std::vector<PaddedRow>{};
  };
  twist.blocks = {row.block};
  return twist;
}

bool is_stale(const Scene& scene, std::int64_t step, int row, std::int32_t block) {
  return left_over(scene, step, row) == block;
}

Mechanism mechanism_of(const Scene& scene, std::int64_t step, int row, std::int32_t block) {
  const bool stale = is_stale(scene, step, row, block);
  return {stale ? "stale-tail" : "padded-row-wrote", scene.scope(step, row, block),
          says(scene.plan(step), row, block, stale), "", Proof::rerun};
}

void one_row(const Scene& scene, std::int64_t step, int row, std::int32_t block, Hypotheses& out) {
  const StepPlan& plan = scene.plan(step);
  const bool other_writer = std::ranges::find(plan.block, block) != plan.block.end();
  for (Part part : {Part::both, Part::recurrent, Part::conv})
    for (bool outputs : {false, true})
      for (bool parallel : {false, true}) {
        if (parallel && !other_writer) continue;
        Hypothesis hypothesis;
        hypothesis.mechanisms = {mechanism_of(scene, step, row, block)};
        if (other_writer) hypothesis.mechanisms[0].says += ", which another row of the step names: two writers";
        hypothesis.twists = {one_padded(step, {row, block, part, outputs, true, parallel})};
        out.push_back(hypothesis);
        if (!outputs || part != Part::both) continue;  // computed and shown, but what it wrote was lost
        hypothesis.mechanisms[0].says += "; what it wrote did not stay";
        hypothesis.twists = {one_padded(step, {row, block, part, outputs, false, parallel})};
        out.push_back(std::move(hypothesis));
      }
}

/// A rule for all inactive rows from a step on: where the row's index leads when nothing skips it.
using Rule = std::function<std::int32_t(const Scene&, const StepPlan&, int row)>;

using Placed = std::map<std::pair<std::int64_t, int>, std::int32_t>;  // (step, row): block

constexpr std::size_t kListed = 4;  // so many are reported one by one

std::vector<Mechanism> mechanisms_of(const Scene& scene, const char* id, const std::string& how, const Placed& placed) {
  std::vector<Mechanism> mechanisms;
  if (placed.size() <= kListed) {
    for (const auto& [at, block] : placed) mechanisms.push_back(mechanism_of(scene, at.first, at.second, block));
    return mechanisms;
  }
  const int row = placed.begin()->first.second;
  const std::int32_t block = placed.begin()->second;
  const bool one_row = std::ranges::all_of(placed, [&](const auto& p) { return p.first.second == row; });
  const bool one_block = std::ranges::all_of(placed, [&](const auto& p) { return p.second == block; });
  const Scope scope{placed.begin()->first.first, placed.rbegin()->first.first, scene.bench.layer,
                    one_row ? row : -1,          one_block ? block : -1,       -1};
  return {{id, scope, "inactive rows wrote " + how, "", Proof::rerun}};
}

void by_rule(const Scene& scene, const char* id, std::int64_t from, const std::string& how, const Rule& rule,
             Hypotheses& out) {
  const auto placed = std::make_shared<Placed>();
  for (const StepPlan& plan : scene.plans)
    for (int row = 0; row < plan.rows() && plan.step >= from; ++row) {
      const std::int32_t block = inactive(plan, row) ? rule(scene, plan, row) : -1;
      if (block >= 0 && block < scene.model().num_blocks) (*placed)[{plan.step, row}] = block;
    }
  if (placed->size() < 2) return;
  for (Part part : {Part::both, Part::recurrent, Part::conv})
    for (bool outputs : {false, true})
      for (bool parallel : {false, true}) {
        Twist twist;
        twist.padded = [=](const StepPlan& plan) {
          std::vector<PaddedRow> rows;
          for (int row = 0; row < plan.rows(); ++row)
            if (const auto found = placed->find({plan.step, row}); found != placed->end())
              rows.push_back({row, found->second, part, outputs, true, parallel});
          return rows;
        };
        for (const auto& [at, block] : *placed) twist.blocks.push_back(block);
        Hypothesis hypothesis;
        hypothesis.mechanisms = mechanisms_of(scene, id, how, *placed);
        hypothesis.twists = {twist};
        hypothesis.whole = from < scene.anchor;
        out.push_back(std::move(hypothesis));
      }
}

}  // namespace

void propose_padded_rows(const Scene& scene, Hypotheses& out) {
  const bool own_output = scene.at.block < 0 && scene.at.row >= 0;  // an inactive row's output is wrong
  for (std::int64_t step = scene.at.step; step >= scene.anchor; --step)
    for (int row = 0; row < scene.plan(step).rows(); ++row) {
      if (!inactive(scene.plan(step), row)) continue;
      if (own_output && (step != scene.at.step || row != scene.at.row)) continue;
      if (!own_output) one_row(scene, step, row, scene.at.block, out);
      for (std::int32_t block : scene.blocks)
        if (own_output) one_row(scene, step, row, block, out);
    }
  const std::int32_t last_block = static_cast<std::int32_t>(scene.model().num_blocks) - 1;
  for (const std::int64_t from : std::set<std::int64_t>{scene.anchor, scene.at.step, 0}) {
    by_rule(
        scene, "stale-tail", from, "the block that an earlier step left in their index",
        [](const Scene& s, const StepPlan& plan, int row) { return left_over(s, plan.step, row); }, out);
    by_rule(
        scene, "padded-row-wrote", from, "the block that their index names",
        [](const Scene&, const StepPlan& plan, int row) { return plan.index[static_cast<std::size_t>(row)]; }, out);
    by_rule(
        scene, "padded-row-wrote", from, "block 0", [](const Scene&, const StepPlan&, int) { return 0; }, out);
    by_rule(
        scene, "padded-row-wrote", from, "the last block of the pool",
        [=](const Scene&, const StepPlan&, int) { return last_block; }, out);
  }
}

}  // namespace gdnsim::explaining
