#include "gdnsim/bisect.hpp"

#include <algorithm>
#include <map>

#include "gdnsim/diff.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/log.hpp"
#include "log/events.hpp"
#include "replay/replay_run.hpp"

namespace gdnsim {
namespace {

/// Finds the first step of [first, last) for which `differs` holds, when it holds for every later one too.
template <class Differs>
std::int64_t first_step(std::int64_t first, std::int64_t last, const Differs& differs) {
  while (first < last) {
    const std::int64_t middle = first + (last - first) / 2;
    if (differs(middle))
      last = middle;
    else
      first = middle + 1;
  }
  return first;
}

/// Chains say something about both logs only when they start from the same header.
bool same_run(const Log& a, const Log& b) {
  const LogHeader &x = a.header(), &y = b.header();
  return x.model == y.model && x.layers == y.layers && x.contracts == y.contracts && x.source == y.source &&
         x.first_step == y.first_step && x.taps == y.taps && a.steps() == b.steps();
}

/// What diff says of one step of one layer.
std::optional<Divergence> place_in_step(Recording& a, Recording& b, int layer, std::int64_t step, const Pick& pick) {
  return diff(a, b, {{layer}, step, step + 1, pick}, nullptr).found.first;
}

class LogPair {
 public:
  LogPair(Log& a, Log& b, BisectResult& result) : a_(a), b_(b), result_(result) {}

  /// The first step whose chains differ, or `last`: the chain of a step covers every step before it.
  std::int64_t by_chain(std::int64_t first, std::int64_t last) {
    return first_step(first, last, [&](std::int64_t step) {
      result_.records_read += 2;
      return a_.chain_at(step) != b_.chain_at(step);
    });
  }

  /// The layer's first step of [first, last) with a digest that differs, or `last`. Digests of outputs and of the pool are of
  /// all rows: of picked ones they only say where to look.
  std::int64_t by_digests(int layer, std::int64_t first, std::int64_t last) {
    for (std::int64_t step = first; step < last; ++step) {
      result_.records_read += 8;
      const bool same = a_.digest_recurrent(step, layer) == b_.digest_recurrent(step, layer) &&
                        a_.digest_conv(step, layer) == b_.digest_conv(step, layer) &&
                        a_.digest_pool(step, layer) == b_.digest_pool(step, layer) &&
                        a_.digest_out(step, layer) == b_.digest_out(step, layer) && same_events(step, layer);
      if (!same) return step;
    }
    return last;
  }

 private:
  /// The digests around the events before the step. Other events are for diff to speak of.
  bool same_events(std::int64_t step, int layer) {
    const auto in_a = events_of_layer(a_, step, layer), in_b = events_of_layer(b_, step, layer);
    for (std::size_t i = 0; i < std::min(in_a.size(), in_b.size()); ++i)
      if (a_.digest_event(in_a[i], layer) != b_.digest_event(in_b[i], layer)) return false;
    return true;
  }

  Log &a_, &b_;
  BisectResult& result_;
};

void bisect_logs(Log& a, Log& b, BisectResult& result) {
  const Slice& slice = result.slice;
  LogPair logs(a, b, result);
  std::int64_t from = slice.first_step;
  const bool chains = same_run(a, b) && slice.first_step == a.first_step();
  if (chains) from = logs.by_chain(slice.first_step, slice.last_step);
  result.how = chains ? "by the commit chains, each of which covers all steps before it, then by the digests"
                      : "by the digests of every step, since the logs are not of the same run";
  for (int layer : slice.layers) {
    LayerPart part{layer, std::nullopt};
    for (std::int64_t step = from; step < slice.last_step && !part.first; ++step) {
      step = logs.by_digests(layer, step, slice.last_step);
      if (step < slice.last_step) part.first = place_in_step(a, b, layer, step, slice.pick);
    }
    result.layers.push_back(part);
  }
}

/// Snapshot steps of a layer that both have.
std::vector<std::int64_t> common_snapshots(const Recording& a, const Recording& b, int layer, const Slice& slice) {
  std::map<std::int64_t, int> seen;
  for (const Snapshot& s : a.snapshots())
    if (s.layer == layer) seen[s.step] |= 1;
  for (const Snapshot& s : b.snapshots())
    if (s.layer == layer) seen[s.step] |= 2;
  std::vector<std::int64_t> steps;
  for (const auto& [step, both] : seen)
    if (both == 3 && step >= slice.first_step && step < slice.last_step) steps.push_back(step);
  return steps;
}

/// Without digests: the first snapshot that differs is searched, then every step up to it is compared, since a state can come
/// back to what it was.
void bisect_snapshots(Recording& a, Recording& b, BisectResult& result) {
  const Slice& slice = result.slice;
  result.how = "by the snapshots both have, then every step before the first that differs";
  for (int layer : slice.layers) {
    const auto steps = common_snapshots(a, b, layer, slice);
    const std::int64_t at = first_step(0, static_cast<std::int64_t>(steps.size()), [&](std::int64_t i) {
      const std::int64_t step = steps[static_cast<std::size_t>(i)];
      ++result.records_read;
      const DiffResult found = diff(a, b, {{layer}, step, step + 1, slice.pick}, nullptr);
      return found.found.counts[static_cast<std::size_t>(Tap::state)].differing +
                 found.found.counts[static_cast<std::size_t>(Tap::conv_state)].differing >
             0;
    });
    const bool any = at < static_cast<std::int64_t>(steps.size());
    const std::int64_t last = any ? steps[static_cast<std::size_t>(at)] + 1 : slice.last_step;
    LayerPart part{layer, diff(a, b, {{layer}, slice.first_step, last, slice.pick}, nullptr).found.first};
    result.layers.push_back(part);
  }
}

void judge(BisectResult& result) {
  for (const LayerPart& part : result.layers)
    if (part.first && (!result.first || precedes(*part.first, *result.first))) result.first = part.first;
  result.verdict = result.first ? Verdict::diverged : Verdict::match;
  result.layer_steps_all =
      static_cast<std::uint64_t>(result.slice.last_step - result.slice.first_step) * result.slice.layers.size();
}

/// Checkpoints of a log before a step; -1 when it starts from zeros.
std::int64_t checkpoint_before(const Recording& recording, std::int64_t step) {
  const auto* log = dynamic_cast<const Log*>(&recording);
  std::int64_t found = -1;
  if (log != nullptr)
    for (std::int64_t checkpoint : log->checkpoints())
      if (checkpoint < step) found = std::max(found, checkpoint);
  return found;
}

/// One layer from a checkpoint (-1: from the start) up to `last`, until it differs.
struct Interval {
  std::optional<Divergence> first;
  std::int64_t ran = 0;
};
Interval run_interval(Stream& stream, Recording& recording, Backend& backend, const ContractSet& contracts, int layer,
                      std::int64_t checkpoint, std::int64_t last) {
  const std::int64_t begin = checkpoint < 0 ? 0 : checkpoint + 1;
  const auto pool = backend.make_pool(stream.model(), {layer});
  if (checkpoint >= 0) dynamic_cast<Log&>(recording).read_checkpoint(checkpoint, layer, *pool);
  Interval interval;
  ReplayObserver::Options options{layer, std::max(begin, recording.first_step()), false, [&] { ++interval.ran; }, true};
  options.from_checkpoint = checkpoint >= 0;
  ReplayObserver observer(stream, recording, options);
  simulate({stream, backend, contracts, {layer}, last, comparable_taps(stream, recording, layer), begin}, *pool,
           observer);
  interval.first = observer.comparer().first();
  return interval;
}

}  // namespace

BisectResult bisect(Recording& a, Recording& b, const BisectOptions& options) {
  BisectResult result;
  result.slice = common_slice(a, b, options.slice, result.notes);
  auto *x = dynamic_cast<Log*>(&a), *y = dynamic_cast<Log*>(&b);
  if (x != nullptr && y != nullptr)
    bisect_logs(*x, *y, result);
  else
    bisect_snapshots(a, b, result);
  judge(result);
  if (result.verdict == Verdict::match && !result.notes.empty()) {
    result.verdict = Verdict::inconclusive;
    result.inconclusive_because = result.notes.front();
  }
  return result;
}

Recomputed recompute(Stream& stream, Recording& log, const std::string& which, int layer, std::int64_t step,
                     Backend& backend, const ContractSet& contracts, const Pick& pick) {
  const std::int64_t checkpoint = checkpoint_before(log, step);
  PickedStream picked(stream, {{layer}, 0, step + 1, pick});
  const Interval interval = run_interval(picked, log, backend, contracts, layer, checkpoint, step + 1);
  const std::int64_t begin = checkpoint < 0 ? 0 : checkpoint + 1;
  return {which, begin, begin + interval.ran, interval.first};
}

BisectResult bisect_against_run(Stream& stream, Recording& recording, Backend& backend, const ContractSet& contracts,
                                const BisectOptions& options) {
  BisectResult result;
  result.slice = resolved(options.slice, whole_of(recording), recording.path());
  result.how = "each layer from checkpoint to checkpoint of its own, until it differs";
  require_picked(result.slice.pick, stream.model(), stream.rows(), recording.path());
  PickedStream picked(stream, result.slice);
  const std::int64_t total = result.slice.last_step * static_cast<std::int64_t>(result.slice.layers.size());
  for (std::size_t i = 0; i < result.slice.layers.size(); ++i) {
    const int layer = result.slice.layers[i];
    std::vector<std::int64_t> starts{checkpoint_before(recording, result.slice.first_step + 1)};
    if (const auto* log = dynamic_cast<const Log*>(&recording))
      for (std::int64_t checkpoint : log->checkpoints())
        if (checkpoint > starts.front() && checkpoint + 1 < result.slice.last_step &&
            checkpoint >= result.slice.first_step)
          starts.push_back(checkpoint);
    LayerPart part{layer, std::nullopt};
    for (std::size_t s = 0; s < starts.size() && !part.first; ++s) {
      const std::int64_t last = s + 1 < starts.size() ? starts[s + 1] + 1 : result.slice.last_step;
      const Interval interval = run_interval(picked, recording, backend, contracts, layer, starts[s], last);
      result.layer_steps_run += static_cast<std::uint64_t>(interval.ran);
      part.first = interval.first;
      if (options.progress) options.progress(static_cast<std::int64_t>(i) * result.slice.last_step + last, total);
    }
    result.layers.push_back(part);
  }
  judge(result);
  return result;
}

}  // namespace gdnsim
