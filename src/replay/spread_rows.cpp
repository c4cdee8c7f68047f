#include "replay/spread_rows.hpp"

#include <algorithm>
#include <numeric>

namespace gdnsim {
namespace {

/// Blocks that belong together, each by the lowest of its group.
class Groups {
 public:
  explicit Groups(std::int32_t blocks) : above_(static_cast<std::size_t>(blocks)) {
    std::iota(above_.begin(), above_.end(), 0);
  }
  std::int32_t of(std::int32_t block) {
    std::int32_t& above = above_[static_cast<std::size_t>(block)];
    return above == block ? block : above = of(above);
  }
  void join(std::int32_t a, std::int32_t b) {
    a = of(a), b = of(b);
    above_[static_cast<std::size_t>(std::max(a, b))] = std::min(a, b);
  }

 private:
  std::vector<std::int32_t> above_;
};

struct Group {
  std::int32_t first;  // block
  std::int64_t steps;  // of rows
};

/// The groups that have something to do, the largest first.
std::vector<Group> groups_of(const Stream& stream, std::int64_t last_step, Groups& groups) {
  std::vector<std::int64_t> steps(static_cast<std::size_t>(stream.model().num_blocks));
  for (const Event& event : stream.events())
    if (event.kind == EventKind::copy && event.step < last_step) groups.join(event.source, event.block);
  for (std::int64_t step = 0; step < last_step; ++step) {
    const StepPlan plan = stream.plan(step);
    for (std::size_t row = 0; row < plan.block.size(); ++row) {
      if (plan.block[row] < 0) continue;
      groups.join(plan.start(row), plan.block[row]);
      ++steps[static_cast<std::size_t>(plan.block[row])];
    }
  }
  for (std::int32_t block = 0; block < stream.model().num_blocks; ++block)
    if (const std::int32_t first = groups.of(block); first != block)
      steps[static_cast<std::size_t>(first)] += steps[static_cast<std::size_t>(block)];
  std::vector<Group> found;
  for (std::int32_t block = 0; block < stream.model().num_blocks; ++block)
    if (groups.of(block) == block && steps[static_cast<std::size_t>(block)] > 0)
      found.push_back({block, steps[static_cast<std::size_t>(block)]});
  std::stable_sort(found.begin(), found.end(), [](const Group& a, const Group& b) { return a.steps > b.steps; });
  return found;
}

}  // namespace

std::vector<std::shared_ptr<const Portion>> portions_of(const Stream& stream, std::int64_t last_step, int most) {
  Groups groups(stream.model().num_blocks);
  const std::vector<Group> found = groups_of(stream, last_step, groups);
  const int count = std::max(1, std::min(most, static_cast<int>(found.size())));
  Portion portion{std::vector<int>(static_cast<std::size_t>(stream.model().num_blocks)), 0};
  std::vector<std::int64_t> load(static_cast<std::size_t>(count));
  for (const Group& group : found) {  // each to whoever has least
    const auto least = std::ranges::min_element(load);
    *least += group.steps;
    portion.part[static_cast<std::size_t>(group.first)] = static_cast<int>(least - load.begin());
  }
  for (std::int32_t block = 0; block < stream.model().num_blocks; ++block)
    portion.part[static_cast<std::size_t>(block)] = portion.part[static_cast<std::size_t>(groups.of(block))];
  std::vector<std::shared_ptr<const Portion>> portions;
  for (portion.mine = 0; portion.mine < count; ++portion.mine)
    portions.push_back(std::make_shared<const Portion>(portion));
  return portions;
}

}  // namespace gdnsim
