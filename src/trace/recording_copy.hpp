// A trace written from a stream and from recorded taps and snapshots that something else makes up. Private to merging and
// splitting.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gdnsim/trace.hpp"

namespace gdnsim::ranks {

/// Recorded values of one output file.
class RecordedShare {
 public:
  virtual ~RecordedShare() = default;
  virtual void tap(Tap tap, std::int64_t step, int layer, Bytes& out) = 0;
  /// `at`: position among the recording's snapshots.
  virtual void snapshot(std::size_t at, Bytes& recurrent, Bytes& conv) = 0;
};

using Provenance = std::vector<std::pair<std::string, std::string>>;
/// Provenance without the attributes that name a rank.
Provenance without_ranks(const Provenance& provenance);

/// The header of a file with this stream and the recording's taps and snapshots. Throws Error when its layers have not
/// recorded the same taps.
TraceHeader header_like(Stream& stream, const Trace& recording);

void write_share(const std::string& path, const TraceHeader& header, Stream& stream, RecordedShare& recorded,
                 bool force, const std::function<void(std::int64_t)>& step_done);

}  // namespace gdnsim::ranks
