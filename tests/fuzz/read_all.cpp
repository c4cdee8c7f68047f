#include "read_all.hpp"

#include <gdnsim/block_history.hpp>
#include <gdnsim/error.hpp>
#include <gdnsim/log.hpp>
#include <gdnsim/pool.hpp>
#include <gdnsim/trace.hpp>

#include <filesystem>
#include <initializer_list>

namespace gdnsim::test {

namespace {

/// A digest of what was read, in order: two files that read alike have equal ones.
class Sum {
 public:
  void add(std::span<const std::byte> bytes) {
    for (std::byte byte : bytes) word_ = (word_ ^ static_cast<std::uint64_t>(byte)) * 0x100000001B3u;
  }
  void add(const std::vector<std::uint64_t>& words) { add(std::as_bytes(std::span(words))); }
  void add(const std::string& text) { add(std::as_bytes(std::span(text))); }
  std::string text() const { return std::to_string(word_); }

 private:
  std::uint64_t word_ = 0xCBF29CE484222325u;
};

void read_recording(Recording& recording, Sum& sum) {
  Bytes first, second;
  const std::int64_t begin = recording.first_step();
  for (std::int64_t step = begin; step < begin + recording.steps(); ++step)
    for (int layer : recording.layers())
      for (std::size_t i = 0; i < kTaps; ++i) {
        if (!recording.taps(layer).has(static_cast<Tap>(i))) continue;
        recording.read_tap(static_cast<Tap>(i), step, layer, first);
        sum.add(first);
      }
  for (const Snapshot& snapshot : recording.snapshots()) {
    recording.read_snapshot(snapshot, first, second);
    sum.add(first), sum.add(second);
  }
}

Reading read_trace(const std::string& path) {
  const auto trace = open_trace(path);
  Sum sum;
  sum.add(trace->content_digest());  // every plan, parameter, event, load row and input
  read_recording(*trace, sum);
  for (const Tenure& tenure : block_history(*trace)) sum.add(describe(tenure, trace->events()));
  for (const auto& [name, text] : trace->layout()) sum.add(name), sum.add(text);
  Bytes first, second;
  for (const Event& event : trace->events()) {
    if (event.kind != EventKind::load) continue;
    trace->load_row(event.source, first, second);
    sum.add(first), sum.add(second);
  }
  return {Reception::whole, sum.text(), trace->steps()};
}

void read_digests(Log& log, Sum& sum) {
  for (std::int64_t step = log.first_step(); step < log.first_step() + log.steps(); ++step)
    for (int layer : log.layers()) {
      sum.add(log.digest_recurrent(step, layer));
      sum.add(log.digest_conv(step, layer));
      sum.add(log.digest_out(step, layer));
    }
}

void read_events(Log& log, Sum& sum) {
  const auto& events = log.header().events;
  const std::int64_t first = log.first_step(), last = first + log.steps();
  for (std::size_t event = 0; event < events.size() && events[event].step < last; ++event)
    for (int layer : log.layers()) {
      const EventDigests digests = log.digest_event(event, layer);
      sum.add(std::vector{digests.before, digests.after});
    }
  for (const Tenure& tenure : block_history(events, first, last, [&](std::int64_t step) { return log.plan(step); }))
    sum.add(describe(tenure, events));
}

void read_checkpoints(Log& log) {
  if (log.checkpoints().empty()) return;
  HostPool pool(log.model(), log.layers());
  for (std::int64_t step : log.checkpoints())
    for (int layer : log.layers()) log.read_checkpoint(step, layer, pool);
}

Reading read_log(const std::string& path) {
  const auto log = open_log(path);
  Sum sum;
  sum.add(log->header().source);
  read_digests(*log, sum);
  read_recording(*log, sum);
  read_events(*log, sum);
  const LogFault fault = log->verify();
  if (!fault.dataset.empty()) return {Reception::faulty, fault.dataset + ": " + fault.what, log->steps()};
  read_checkpoints(*log);
  const bool whole = log->steps() == log->declared_steps();
  return {whole ? Reception::whole : Reception::incomplete, sum.text(), log->steps()};
}

}  // namespace

Reading read_all(const std::string& path) {
  try {
    switch (kind_of_file(path)) {
      case FileKind::trace:
        return read_trace(path);
      case FileKind::log:
        return read_log(path);
      case FileKind::recipe:
        return {Reception::whole, "a recipe"};
    }
  } catch (const Error& bad) {
    const std::string text = bad.what();
    // A state pool that does not fit names itself: the file may well be right.
    const bool named = text.starts_with(path + ": ") || text.starts_with("state pool: ");
    return {Reception::refused, text, 0, !named || text.find('\n') != text.npos};
  }
  return {};
}

}  // namespace gdnsim::test
