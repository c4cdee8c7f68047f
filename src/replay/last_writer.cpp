#include "gdnsim/inner.hpp"
#include "gdnsim/lifecycle.hpp"
#include "replay/replay_run.hpp"

namespace gdnsim {

std::optional<LastWriter> last_writer(const Stream& stream, const Divergence& at) {
  if (at.block < 0) return std::nullopt;
  Lifecycle life(stream, "", at.layer);
  const auto events = stream.events();
  LastWriter found{at.block, -1, -1, -1, -1, "block " + std::to_string(at.block)};
  if (at.event) {
    life.go_to(at.step);
    for (std::int64_t i = first_event_from(stream, at.step); i < at.event->number; ++i)
      life.event(events[static_cast<std::size_t>(i)], i);
  } else {
    life.go_into(at.step);
    if (at.row >= 0) found.block = stream.plan(at.step).start(static_cast<std::size_t>(at.row));
    if (found.block != at.block) found.says = "block " + std::to_string(found.block) + ", which the row went on from,";
  }
  const BlockLife& block = life.life(found.block);
  found.step = block.written_step, found.event = block.written_event, found.row = block.written_row;
  found.sequence = block.written_by;
  found.says +=
      found.step < 0 ? " had not been written before" : " was last written by " + life.last_writer(found.block);
  return found;
}

}  // namespace gdnsim
