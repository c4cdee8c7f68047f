#include "gdnsim/block_history.hpp"

#include <algorithm>
#include <map>

namespace gdnsim {
namespace {

/// One block as the stream goes by.
struct Holder {
  std::vector<Tenure> past;
  bool held = false;
  Tenure now;
  std::vector<std::int64_t> pending;  // filled since the last row: for whoever comes next
  std::int64_t pending_step = 0;      // the first of those
};

class History {
 public:
  explicit History(std::span<const Event> events)
      : owned_(std::ranges::any_of(events, [](const Event& e) { return e.kind == EventKind::allocate; })) {}

  /// `end`: the step before which the stream ends.
  std::vector<Tenure> all(std::int64_t end) {
    std::vector<Tenure> found;
    for (auto& [block, holder] : blocks_) {
      if (!holder.held && !holder.pending.empty()) open(holder, block, -1, holder.pending_step, -1);
      close(holder, end, -1);
      found.insert(found.end(), holder.past.begin(), holder.past.end());
    }
    return found;
  }

  void event(const Event& event, std::int64_t number) {
    Holder& holder = blocks_[event.block];
    if (event.kind == EventKind::allocate) {
      close(holder, event.step, -1);
      open(holder, event.block, event.sequence, event.step, number);
    } else if (event.kind == EventKind::free) {
      if (!holder.held && !holder.pending.empty()) open(holder, event.block, -1, holder.pending_step, -1);
      close(holder, event.step, number);
    } else if (owned_ && holder.held) {
      holder.now.fills.push_back(number);
    } else {
      if (holder.pending.empty()) holder.pending_step = event.step;
      holder.pending.push_back(number);
    }
  }

  void rows(const StepPlan& plan) {
    for (std::size_t row = 0; row < plan.block.size(); ++row)
      if (plan.block[row] >= 0) on_row(blocks_[plan.block[row]], plan, row);
  }

 private:
  void open(Holder& holder, std::int32_t block, std::int64_t sequence, std::int64_t step, std::int64_t event) {
    holder.held = true;
    holder.now = {block, sequence, step, 0, event, -1, std::move(holder.pending), 0, -1, -1};
    holder.pending.clear();
  }

  void close(Holder& holder, std::int64_t step, std::int64_t event) {
    if (!holder.held) return;
    holder.held = false;
    holder.now.last_step = step, holder.now.ended = event;
    holder.now.fills.insert(holder.now.fills.end(), holder.pending.begin(), holder.pending.end());
    holder.pending.clear();
    holder.past.push_back(std::move(holder.now));
  }

  void on_row(Holder& holder, const StepPlan& plan, std::size_t row) {
    const std::int64_t sequence = plan.sequence[row];
    if (holder.held && !owned_ && holder.now.sequence != sequence) {
      std::vector<std::int64_t> pending = std::move(holder.pending);
      holder.pending.clear();
      close(holder, pending.empty() ? plan.step : holder.pending_step, -1);
      holder.pending = std::move(pending);
    }
    if (!holder.held)
      open(holder, plan.block[row], sequence, holder.pending.empty() ? plan.step : holder.pending_step, -1);
    Tenure& now = holder.now;
    now.fills.insert(now.fills.end(), holder.pending.begin(), holder.pending.end());
    holder.pending.clear();
    if (now.sequence < 0) now.sequence = sequence;
    if (now.first_row < 0) now.first_row = plan.step;
    now.last_row = plan.step;
    ++now.rows;
  }

  const bool owned_;
  std::map<std::int32_t, Holder> blocks_;
};

const Event& at(std::span<const Event> events, std::int64_t number) { return events[static_cast<std::size_t>(number)]; }

std::string why_text(const Event& event) {
  return event.why == EventWhy::none ? "" : " (" + std::string(name_of(event.why)) + ")";
}

std::string by_event(std::int64_t number, std::span<const Event> events) {
  return " by event " + std::to_string(number) + why_text(at(events, number));
}

/// The same of the next layer: what a file says for each layer on its own is said once.
bool goes_on(std::int64_t number, std::int64_t next, std::span<const Event> events) {
  const Event &a = at(events, number), &b = at(events, next);
  const bool same = a.kind == b.kind && a.step == b.step && a.why == b.why;
  return next == number + 1 && same && a.layer >= 0 && b.layer == a.layer + 1 &&
         (a.kind != EventKind::copy || a.source == b.source);
}

/// "load in layers 0 to 2 by events 3 to 5 (start)"
std::string fill_text(std::int64_t first, std::int64_t last, std::span<const Event> events) {
  const Event &a = at(events, first), &b = at(events, last);
  const std::string source = a.kind == EventKind::copy ? " of block " + std::to_string(a.source) : "";
  const auto range = [](std::int64_t from, std::int64_t to) {
    return (from == to ? " " : "s ") + std::to_string(from) + (from == to ? "" : " to " + std::to_string(to));
  };
  const std::string layers = a.layer < 0 ? "" : " in layer" + range(a.layer, b.layer);
  return std::string(name_of(a.kind)) + source + layers + " by event" + range(first, last) + why_text(a);
}

}  // namespace

std::vector<Tenure> block_history(const Stream& stream) {
  return block_history(stream.events(), 0, stream.steps(), [&](std::int64_t step) { return stream.plan(step); });
}

std::vector<Tenure> block_history(std::span<const Event> events, std::int64_t first_step, std::int64_t last_step,
                                  const std::function<StepPlan(std::int64_t)>& plan) {
  History history(events);
  std::size_t next = 0;
  for (std::int64_t step = first_step; step < last_step; ++step) {
    for (; next < events.size() && events[next].step == step; ++next)
      history.event(events[next], static_cast<std::int64_t>(next));
    history.rows(plan(step));
  }
  return history.all(last_step);
}

std::string describe(const Tenure& tenure, std::span<const Event> events) {
  std::string text = "block " + std::to_string(tenure.block) + ": ";
  text += tenure.sequence < 0 ? "nobody's sequence" : "sequence " + std::to_string(tenure.sequence);
  text += ", steps " + std::to_string(tenure.first_step) + ":" + std::to_string(tenure.last_step) + ":";
  std::string what;
  const auto add = [&](const std::string& words) { what += (what.empty() ? " " : ", ") + words; };
  if (tenure.began >= 0) add("allocated" + by_event(tenure.began, events));
  for (std::size_t i = 0; i < tenure.fills.size(); ++i) {
    const std::size_t first = i;
    while (i + 1 < tenure.fills.size() && goes_on(tenure.fills[i], tenure.fills[i + 1], events)) ++i;
    add(fill_text(tenure.fills[first], tenure.fills[i], events));
  }
  if (tenure.rows > 0)
    add(std::to_string(tenure.rows) + (tenure.rows == 1 ? " row" : " rows") + " in steps " +
        std::to_string(tenure.first_row) + " to " + std::to_string(tenure.last_row));
  if (tenure.ended >= 0) add("freed" + by_event(tenure.ended, events));
  return text + what;
}

}  // namespace gdnsim
