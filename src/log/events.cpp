#include "log/events.hpp"

#include <algorithm>
#include <limits>

#include "file/schema.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {

using namespace schema;

namespace {

template <class T, class Field>
void write_column(h5::Group& group, std::string_view name, const std::vector<Event>& events, Field field) {
  std::vector<T> column;
  for (const Event& event : events) column.push_back(static_cast<T>(field(event)));
  group.create_vector(name, {column.size()}, column);
}

}  // namespace

std::vector<std::size_t> events_of_layer(const Log& log, std::int64_t step, int layer) {
  const auto& events = log.header().events;
  std::vector<std::size_t> found;
  for (auto at = std::ranges::lower_bound(events, step, {}, &Event::step); at != events.end() && at->step == step; ++at)
    if (names(*at, layer)) found.push_back(static_cast<std::size_t>(at - events.begin()));
  return found;
}

void write_events(h5::Group& root, const LogHeader& header) {
  if (header.events.empty()) return;
  h5::Group group = root.create_group(kEvents);
  write_column<std::int32_t>(group, kStep, header.events, [](const Event& e) { return e.step; });
  write_column<std::int32_t>(group, kLayer, header.events, [](const Event& e) { return e.layer; });
  write_column<std::int32_t>(group, kBlock, header.events, [](const Event& e) { return e.block; });
  write_column<std::int8_t>(group, kKind, header.events, [](const Event& e) { return e.kind; });
  write_column<std::int32_t>(group, kSource, header.events, [](const Event& e) { return e.source; });
  write_column<std::int64_t>(group, kSequence, header.events, [](const Event& e) { return e.sequence; });
  write_column<std::int8_t>(group, kWhy, header.events, [](const Event& e) { return e.why; });
}

void read_events(const h5::Group& root, LogHeader& header) {
  const std::optional<h5::Group> group = root.find_group(kEvents);
  if (!group) return;
  const auto step = group->read_vector<std::int32_t>(kStep, {h5::kAny});
  const h5::Dims E{step.size()};
  const auto layer = group->read_vector<std::int32_t>(kLayer, E), block = group->read_vector<std::int32_t>(kBlock, E),
             source = group->read_vector<std::int32_t>(kSource, E);
  const auto kind = group->read_vector<std::int8_t>(kKind, E), why = group->read_vector<std::int8_t>(kWhy, E);
  const auto sequence = group->read_vector<std::int64_t>(kSequence, E);
  for (std::size_t e = 0; e < step.size(); ++e)
    header.events.push_back({step[e], layer[e], block[e], static_cast<EventKind>(kind[e]), source[e], sequence[e],
                             static_cast<EventWhy>(why[e])});
  constexpr std::int64_t any_load = std::numeric_limits<std::int32_t>::max();
  validate_events(header.model, header.first_step + header.steps, any_load, header.events, group->where());
  if (!header.events.empty() && header.events.front().step < header.first_step)
    throw error(group->where(kStep), "[0]: expected at least ", header.first_step, ", found ",
                header.events.front().step);
}

LaunchWords launch_words(const std::vector<StepPlan>& plans) {
  LaunchWords words;
  const auto add = [](std::vector<std::int32_t>& to, const StepPlan& plan, const std::vector<std::int32_t>& rows,
                      std::int32_t absent) {
    if (rows.empty())
      to.insert(to.end(), plan.block.size(), absent);
    else
      to.insert(to.end(), rows.begin(), rows.end());
    return !rows.empty();
  };
  for (const StepPlan& plan : plans) {
    words.draft.push_back(static_cast<std::int8_t>(plan.draft));
    words.has_draft |= plan.in_launch();
    words.has_source |= add(words.source, plan, plan.source, -1);
    words.has_accepted |= add(words.accepted, plan, plan.accepted, 0);
  }
  return words;
}

void write_launches(h5::Group& steps, const LogHeader& header) {
  const LaunchWords words = launch_words(header.plans);
  const std::uint64_t T = header.plans.size(), B = static_cast<std::uint64_t>(header.rows);
  if (words.has_draft) steps.create_vector(kDraft, {T}, words.draft);
  if (words.has_source) steps.create_vector(kSource, {T, B}, words.source);
  if (words.has_accepted) steps.create_vector(kAccepted, {T, B}, words.accepted);
}

EventProof::EventProof(const LogHeader& header, const LogLayout& layout)
    : header_(header), layout_(layout), zero_(0), known_(header.layers.size()) {
  const Model& model = header.model;
  if (!header.events.empty()) zero_ = digest_block(model, Bytes(model.state_bytes()), Bytes(model.conv_bytes())).block;
}

std::optional<std::uint64_t> EventProof::known(std::size_t slot, std::int32_t block) const {
  const auto found = known_[slot].find(block);
  if (found != known_[slot].end()) return found->second;
  if (header_.first_step > 0) return std::nullopt;  // what earlier steps did to it was not logged
  return zero_;
}

std::optional<EventProof::Fault> EventProof::check(std::size_t t, const StepDigests& digests) {
  std::optional<Fault> fault;
  if (header_.events.empty()) return fault;
  const std::size_t first = layout_.first_event[t], last = layout_.first_event[t + 1];
  for (std::size_t event = first; event < last; ++event)
    for (std::size_t slot = 0; slot < known_.size(); ++slot) {
      auto found = check_event(event, slot, digests.before(event - first)[slot], digests.after(event - first)[slot]);
      if (!fault) fault = std::move(found);
    }
  const StepPlan& plan = header_.plans[t];
  const std::size_t HV = static_cast<std::size_t>(header_.model.HV);
  for (std::size_t row = 0; row < plan.block.size(); ++row)
    for (std::size_t slot = 0; slot < known_.size() && logged_block(plan, row) >= 0; ++slot)
      known_[slot][plan.block[row]] = join_block(digests.layer(Section::recurrent, slot).subspan(row * HV, HV),
                                                 digests.layer(Section::conv, slot)[row]);
  return fault;
}

std::optional<EventProof::Fault> EventProof::check_event(std::size_t at, std::size_t slot, std::uint64_t before,
                                                         std::uint64_t after) {
  const Event& event = header_.events[at];
  const std::string where = "event " + std::to_string(at) + ", layer " + std::to_string(header_.layers[slot]);
  if (!names(event, header_.layers[slot])) {
    if (before == 0 && after == 0) return std::nullopt;
    return Fault{where, before == 0};
  }
  const std::optional<std::uint64_t> was = known(slot, event.block);
  const std::optional<std::uint64_t> source = event.kind == EventKind::copy ? known(slot, event.source) : was;
  std::uint64_t is = before;  // allocate and free leave the contents
  if (event.kind == EventKind::zero) is = zero_;
  if (event.kind == EventKind::copy) is = source.value_or(after);
  if (event.kind == EventKind::load) is = after;
  known_[slot][event.block] = after;
  if (was && *was != before) return Fault{where, false};
  if (is != after) return Fault{where, true};
  return std::nullopt;
}

}  // namespace gdnsim
