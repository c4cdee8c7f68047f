#include "replay/repeat_history.hpp"

#include <algorithm>

#include "gdnsim/digest.hpp"

namespace gdnsim {

Digest128 joined(std::initializer_list<Digest128> parts) {
  return xxh3_128(std::as_bytes(std::span(parts.begin(), parts.size())));
}

Digest128 LoadDigests::content() const { return joined({xxh3_128(recurrent_), xxh3_128(conv_)}); }

Digest128 LoadDigests::zeros() {
  const auto found = known_.find(-1);
  if (found != known_.end()) return found->second;
  recurrent_.assign(stream_.model().state_bytes(), std::byte{0});
  conv_.assign(stream_.model().conv_bytes(), std::byte{0});
  return known_[-1] = content();
}

Digest128 LoadDigests::row(std::int32_t source) {
  const auto found = known_.find(source);
  if (found != known_.end()) return found->second;
  stream_.load_row(source, recurrent_, conv_);
  return known_[source] = content();
}

void Histories::events_before(std::int64_t step) {
  const auto events = stream_.events();
  for (; next_event_ < events.size() && events[next_event_].step <= step; ++next_event_) {
    const Event& event = events[next_event_];
    if (event.layer == -1 || event.layer == layer_) apply(event);
  }
}

void Histories::apply(const Event& event) {
  switch (event.kind) {
    case EventKind::zero:
      return start(event.block, loads_.zeros());
    case EventKind::load:
      return start(event.block, loads_.row(event.source));
    case EventKind::allocate:
    case EventKind::free:
      return;
    case EventKind::copy:
      const History source = of(event.source);
      blocks_[event.block] = source;
      ++starts_[source.root];
  }
}

void Histories::move_rows(const StepPlan& plan) {
  for (std::size_t row = 0; row < plan.source.size(); ++row)
    if (plan.start(row) != plan.block[row]) {
      const History source = of(plan.source[row]);
      blocks_[plan.block[row]] = source;
    }
}

void Histories::start(std::int32_t block, const Digest128& root) {
  blocks_[block] = {root, root, root};
  ++starts_[root];
}

/// A root that no other block or step can have.
void Histories::start_unknown(std::int32_t block, std::int64_t step) {
  static constexpr Digest128 unknown = {0x6E6F626F6479, 0x6B6E6F7773};
  start(block, joined({unknown, {static_cast<std::uint64_t>(block), static_cast<std::uint64_t>(step)}}));
}

void Histories::lose(const StepPlan& plan) {
  for (std::int32_t block : plan.block)
    if (block >= 0) start_unknown(block, plan.step);
}

History& Histories::of(std::int32_t block) {
  const auto found = blocks_.find(block);
  if (found != blocks_.end()) return found->second;
  if (from_zero_)
    start(block, loads_.zeros());
  else
    start_unknown(block, -1);
  return blocks_.at(block);
}

int Histories::starts(const Digest128& root) const {
  const auto found = starts_.find(root);
  return found == starts_.end() ? 0 : found->second;
}

}  // namespace gdnsim
