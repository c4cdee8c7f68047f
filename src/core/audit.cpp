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

enum class Cut : std::uint8_t { none, begin, end };

/// Which part of a row's block an offset of 32 bits puts into another one.
Cut cut_into(const Model& model, std::int64_t block, std::int32_t other, bool conv) {
  if (wrapped_block(model, block, conv) == other) return Cut::begin;
  const std::int64_t size = conv ? model.conv_elements() : model.state_elements();
  const std::int64_t given = conv ? model.conv_block_stride : model.block_stride, stride = given > 0 ? given : size;
  const std::int64_t first = block * stride, last = first + size - 1, end = last & 0xFFFFFFFF;
  return first >> 32 != last >> 32 && other <= end / stride ? Cut::end : Cut::none;
}

}  // namespace

std::string_view name_of(Writer writer) {
  constexpr std::string_view words[] = {"nobody",       "padded-row", "stale-tail",
                                        "from-the-end", "cut-offset", "stale-index"};
  return words[static_cast<std::size_t>(writer)];
}

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

/// What an event puts into a block hides whatever was written there before, so that is looked at first.
void AuditObserver::event_coming(const Event& event, int layer, Pool& pool) {
  if (changes_contents(event.kind) && event.step > audited_) judge(layer, event.block, event.step - 1, pool);
  next_.event_coming(event, layer, pool);
}

/// And what it put there is known: only rows make a block's next content anything.
void AuditObserver::event_applied(const Event& event, int layer, Pool& pool) {
  Known& block = known(layer, pool)[static_cast<std::size_t>(event.block)];
  if (changes_contents(event.kind)) block = {pool.digest(layer, event.block).block, false};
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
  const auto blocks = static_cast<std::int32_t>(known(view.layer, view.pool).size());
  for (std::int32_t block = 0; block < blocks; ++block) judge(view.layer, block, view.step, view.pool);
}

/// Did the block change without a row that has it, until after `last_step`?
void AuditObserver::judge(int layer, std::int32_t block, std::int64_t last_step, Pool& pool) {
  Known& known = this->known(layer, pool)[static_cast<std::size_t>(block)];
  const std::uint64_t now = pool.digest(layer, block).block;
  if (now != known.digest && !known.named) {
    StrayWrite stray{layer, block, audited_, last_step};
    name_writer(stray);
    found_.push_back(std::move(stray));
  }
  known = {now, false};
}

/// Whatever could have led to the block, in the steps where it happened: a padded row that has its index, what a row of an
/// earlier batch left there, an index below 0 counted from the end, an offset that was cut to 32 bits; or else a row that had
/// the index one step earlier.
void AuditObserver::name_writer(StrayWrite& stray) const {
  for (const auto name :
       {&AuditObserver::name_padded_row, &AuditObserver::name_wrapped_row, &AuditObserver::name_late_row})
    for (std::int64_t step = stray.first_step; step <= stray.last_step; ++step)
      if ((this->*name)(simulation_.stream.plan(step), stray)) return;
}

bool AuditObserver::name_padded_row(const StepPlan& plan, StrayWrite& stray) const {
  const std::int64_t blocks = simulation_.stream.model().num_blocks;
  const auto leads = [&](std::size_t row) {
    const std::int64_t index = plan.index[row];
    return plan.block[row] < 0 && (index < 0 ? index + blocks : index) == stray.block;
  };
  std::size_t row = 0;
  while (row < plan.index.size() && !leads(row)) ++row;
  if (row == plan.index.size()) return false;
  const std::int64_t index = plan.index[row];
  const std::int64_t left = index < 0 ? -1 : step_that_left(simulation_.stream, plan.step, row, stray.block);
  stray.writer = index < 0 ? Writer::from_the_end : left < 0 ? Writer::padded_row : Writer::stale_tail;
  stray.row = static_cast<int>(row), stray.step = plan.step;
  stray.likely =
      "row " + std::to_string(row) + " of step " + std::to_string(plan.step) +
      (stray.row < plan.present ? ", which is inactive, has "
                                : ", beyond the " + std::to_string(plan.present) + " rows that are there, has ");
  stray.likely += index < 0  ? "index " + std::to_string(index) + ", which counted from the end is its block"
                  : left < 0 ? "its index (padded row)"
                             : "its index, left from step " + std::to_string(left) + " (stale tail)";
  for (std::size_t other = row + 1; other < plan.index.size(); ++other)
    if (leads(other)) stray.likely += "; row " + std::to_string(other) + " leads there too";
  return true;
}

bool AuditObserver::name_wrapped_row(const StepPlan& plan, StrayWrite& stray) const {
  const Model& model = simulation_.stream.model();
  for (std::size_t row = 0; row < plan.block.size(); ++row)
    for (const bool conv : {false, true}) {
      if (plan.block[row] < 0) continue;
      const Cut cut = cut_into(model, plan.block[row], stray.block, conv);
      if (cut == Cut::none) continue;
      stray.writer = Writer::cut_offset, stray.row = static_cast<int>(row), stray.step = plan.step;
      stray.likely = "the " + std::string(conv ? "conv" : "recurrent") + " state of block " +
                     std::to_string(plan.block[row]) + ", row " + std::to_string(row) + " of step " +
                     std::to_string(plan.step) + (cut == Cut::begin ? ", begins" : ", ends") +
                     " there when its offset is cut to 32 bits";
      return true;
    }
  return false;
}

bool AuditObserver::name_late_row(const StepPlan& plan, StrayWrite& stray) const {
  if (plan.step == 0) return false;
  const StepPlan before = simulation_.stream.plan(plan.step - 1);
  const auto row = std::ranges::find(before.block, stray.block) - before.block.begin();
  if (row >= plan.rows() || plan.block[static_cast<std::size_t>(row)] < 0) return false;
  stray.writer = Writer::stale_index, stray.row = static_cast<int>(row), stray.step = plan.step;
  stray.likely = "row " + std::to_string(row) + " of step " + std::to_string(plan.step) + " had its index in step " +
                 std::to_string(before.step) + " (stale index)";
  return true;
}

}  // namespace gdnsim
