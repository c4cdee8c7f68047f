#include "trace/recording_copy.hpp"

#include "gdnsim/error.hpp"
#include "gdnsim/ranks.hpp"
#include "gdnsim/recipe.hpp"

namespace gdnsim::ranks {

Provenance without_ranks(const Provenance& provenance) {
  Provenance rest;
  for (const auto& entry : provenance)
    if (entry.first != kRankAttribute && entry.first != kRanksAttribute) rest.push_back(entry);
  return rest;
}

TraceHeader header_like(Stream& stream, const Trace& recording) {
  TraceHeader header = trace_header_of(stream);
  header.taps = recording.taps(0);
  for (int layer = 1; layer < recording.model().layers(); ++layer)
    if (!(recording.taps(layer) == header.taps))
      throw error(recording.path(), ": /recorded/", layer, ": expected the taps of layer 0");
  for (Snapshot snapshot : recording.snapshots()) {
    snapshot.at = static_cast<std::int64_t>(header.snapshots.size());
    header.snapshots.push_back(snapshot);
  }
  return header;
}

void write_share(const std::string& path, const TraceHeader& header, Stream& stream, RecordedShare& recorded,
                 bool force, const std::function<void(std::int64_t)>& step_done) {
  const std::unique_ptr<TraceWriter> writer = create_trace(path, header, force);
  copy_stream(stream, *writer);
  Bytes words, conv;
  for (std::int64_t step = 0; step < header.steps; ++step) {
    for (int layer = 0; layer < header.model.layers(); ++layer)
      for (std::size_t i = 0; i < kTaps; ++i) {
        const Tap tap = static_cast<Tap>(i);
        if (!header.taps.has(tap)) continue;
        recorded.tap(tap, step, layer, words);
        writer->write_tap(tap, step, layer, words);
      }
    step_done(step + 1);
  }
  for (std::size_t at = 0; at < header.snapshots.size(); ++at) {
    recorded.snapshot(at, words, conv);
    writer->write_snapshot(static_cast<std::int64_t>(at), words, conv);
  }
  writer->finish();
}

}  // namespace gdnsim::ranks
