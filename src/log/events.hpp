// Events in a log of version 2: their columns, and the block digests around each of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "file/hdf5_io.hpp"
#include "gdnsim/log.hpp"
#include "log/chain.hpp"
#include "log/layout.hpp"

namespace gdnsim {

/// Does the event name this layer?
inline bool names(const Event& event, int layer) { return event.layer == -1 || event.layer == layer; }

/// The same but for the row that a load takes its states from: files may number those as they like.
inline bool same_but_load_row(Event a, const Event& b) {
  if (a.kind == EventKind::load && b.kind == EventKind::load) a.source = b.source;
  return a == b;
}

/// The places in the log's events of those that name this step and this layer.
std::vector<std::size_t> events_of_layer(const Log& log, std::int64_t step, int layer);

/// Creates /events with everything but the digests; nothing without events.
void write_events(h5::Group& root, const LogHeader& header);
/// Reads and checks them. Throws Error.
void read_events(const h5::Group& root, LogHeader& header);
/// Draft, source and accepted of each step, where there is something to say.
void write_launches(h5::Group& steps, const LogHeader& header);

/// The plans' launches as words: what a file stores and digests cover. Absent rows as -1 and 0.
struct LaunchWords {
  std::vector<std::int8_t> draft;              // [T]
  std::vector<std::int32_t> source, accepted;  // [T, B]
  bool has_draft = false, has_source = false, has_accepted = false;
};
LaunchWords launch_words(const std::vector<StepPlan>& plans);

/// Follows each block's digest through events and rows, to say which event's digest was changed when the chain is broken.
class EventProof {
 public:
  EventProof(const LogHeader& header, const LogLayout& layout);
  /// The first event of step t whose digests do not follow: "event 4, layer 0".
  struct Fault {
    std::string where;
    bool after;  // else before
  };
  std::optional<Fault> check(std::size_t t, const StepDigests& digests);

 private:
  std::optional<Fault> check_event(std::size_t event, std::size_t slot, std::uint64_t before, std::uint64_t after);
  /// Nothing where it is not known.
  std::optional<std::uint64_t> known(std::size_t slot, std::int32_t block) const;

  const LogHeader& header_;
  const LogLayout& layout_;
  std::uint64_t zero_;
  std::vector<std::unordered_map<std::int32_t, std::optional<std::uint64_t>>> known_;  // [slots]
};

}  // namespace gdnsim
