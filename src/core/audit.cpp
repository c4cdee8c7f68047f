#include "gdnsim/audit.hpp"

#include <algorithm>

#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

constexpr std::int64_t kLookBack = 64;  // steps in which a stale index is looked for

/// Where an earlier step had this index in this row, as a live one; -1 without.
std::int64_t step_that_left(const Stream& stream, std::int64_t step, std::size_t row, std::int32_t block) {
  for (std::int64_t at = step - 1; at >= 0 && at >= step - kLookBack; --at)
    if (stream.plan(at).block[row] == block) return at;
  return -1;
}

}  // namespace

std::string StrayWrite::text() const {
  std::string steps = "step " + std::to_string(first_step);
  if (last_step > first_step) steps = "steps " + std::to_string(first_step) + " to " + std::to_string(last_step);
  return "block " + std::to_string(block) + " of layer " + std::to_string(layer) + " was written in " + steps +
         ", though no row and no event names it" + (likely.empty() ? "" : ": " + likely);
}

AuditObserver::AuditObserver(const Simulation& simulation, std::int64_t every, Observer& next)
    : simulation_(simulation),
      every_(every),
      next_(next),
      known_(simulation.layers.size()),
      audited_(simulation.first_step) {
  GDNSIM_CHECK(every >= 1);
}

std::vector<AuditObserver::Known>& AuditObserver::known(int layer, Pool& pool) {
  const auto slot = std::ranges::lower_bound(simulation_.layers, layer) - simulation_.layers.begin();
  std::vector<Known>& known = known_[static_cast<std::size_t>(slot)];
  if (!known.empty()) return known;
  known.resize(static_cast<std::size_t>(pool.model().num_blocks));
  for (std::size_t block = 0; block < known.size(); ++block)
    known[block].digest = pool.digest(layer, static_cast<std::int32_t>(block)).block;
  return known;
}

void AuditObserver::event_coming(const Event& event, int layer, Pool& pool) {
  known(layer, pool)[static_cast<std::size_t>(event.block)].named |= changes_contents(event.kind);
  next_.event_coming(event, layer, pool);
}

void AuditObserver::event_applied(const Event& event, int layer, Pool& pool) {
  next_.event_applied(event, layer, pool);
}

void AuditObserver::before(std::int64_t step, int layer, const StepPlan& plan, Pool& pool) {
  std::vector<Known>& blocks = known(layer, pool);
  for (std::int32_t block : plan.block)
    if (block >= 0 && plan.path != Path::opaque) blocks[static_cast<std::size_t>(block)].named = true;
  next_.before(step, layer, plan, pool);
}

void AuditObserver::after(const StepView& view) {
  if (due(view.step)) audit(view);
  next_.after(view);
}

void AuditObserver::step_done(std::int64_t step) {
  if (due(step)) audited_ = step + 1;
  next_.step_done(step);
}

bool AuditObserver::due(std::int64_t step) const {
  return (step + 1 - simulation_.first_step) % every_ == 0 || step + 1 == simulation_.last_step;
}

void AuditObserver::audit(const StepView& view) {
  std::vector<Known>& blocks = known(view.layer, view.pool);
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    Known& known = blocks[block];
    const std::int32_t number = static_cast<std::int32_t>(block);
    const std::uint64_t now = view.pool.digest(view.layer, number).block;
    if (now != known.digest && !known.named) {
      StrayWrite stray{view.layer, number, audited_, view.step, {}};
      stray.likely = likely_writer(stray);
      found_.push_back(std::move(stray));
    }
    known = {now, false};
  }
}

/// Whatever could have led to the block, in the steps where it happened: a padded row that has its index, what a row of an
/// earlier batch left there, an index below 0 counted from the end, or an offset that was cut to 32 bits.
std::string AuditObserver::likely_writer(const StrayWrite& stray) const {
  for (std::int64_t step = stray.first_step; step <= stray.last_step; ++step) {
    const StepPlan plan = simulation_.stream.plan(step);
    std::string found = padded_row(plan, stray.block);
    if (found.empty()) found = wrapped_row(plan, stray.block);
    if (!found.empty()) return found;
  }
  return "";
}

std::string AuditObserver::padded_row(const StepPlan& plan, std::int32_t block) const {
  const std::int64_t last = simulation_.stream.model().num_blocks - 1;
  for (std::size_t row = 0; row < plan.index.size(); ++row) {
    if (plan.block[row] >= 0) continue;
    const std::string who = "row " + std::to_string(row) + " of step " + std::to_string(plan.step) +
                            (row < static_cast<std::size_t>(plan.present)
                                 ? ", which is inactive,"
                                 : ", beyond the " + std::to_string(plan.present) + " rows that are there,");
    if (plan.index[row] == -1 && block == last) return who + " has index -1, which counted from the end is its block";
    if (plan.index[row] != block) continue;
    const std::int64_t left = step_that_left(simulation_.stream, plan.step, row, block);
    if (left < 0) return who + " has its index (padded row)";
    return who + " has its index, left from step " + std::to_string(left) + " (stale tail)";
  }
  return "";
}

std::string AuditObserver::wrapped_row(const StepPlan& plan, std::int32_t block) const {
  const Model& model = simulation_.stream.model();
  for (std::size_t row = 0; row < plan.block.size(); ++row)
    for (const bool conv : {false, true})
      if (plan.block[row] >= 0 && wrapped_block(model, plan.block[row], conv) == block)
        return "the " + std::string(conv ? "conv" : "recurrent") + " state of block " +
               std::to_string(plan.block[row]) + ", row " + std::to_string(row) + " of step " +
               std::to_string(plan.step) + ", begins there when its offset is cut to 32 bits";
  return "";
}

}  // namespace gdnsim
