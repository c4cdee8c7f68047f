#include "gdnsim/replay.hpp"

#include <algorithm>
#include <set>

#include "gdnsim/error.hpp"
#include "gdnsim/log.hpp"
#include "layer_outcome.hpp"
#include "replay_run.hpp"

namespace gdnsim {
namespace {

constexpr Tap kOutputTaps[] = {Tap::conv_acc, Tap::conv_out, Tap::q, Tap::k,        Tap::beta, Tap::g,
                               Tap::decay,    Tap::dot_k,    Tap::u, Tap::core_out, Tap::rstd, Tap::norm_out};

/// Every layer must have recorded what the others have: a missing tap is missing data, never a match.
void refuse_missing_taps(const Recording& recording, const std::vector<int>& layers) {
  for (Tap tap : kOutputTaps) {
    int with = -1, without = -1;
    for (int layer : layers) (recording.taps(layer).has(tap) ? with : without) = layer;
    if (with >= 0 && without >= 0)
      throw error(recording.path(), ": recorded/", without, "/", name_of(tap), ": missing, but layer ", with,
                  " has it");
  }
}

/// The same for states: a layer without any beside layers that have some.
void refuse_missing_states(const Recording& recording, const std::vector<int>& layers) {
  std::set<int> with;
  for (const Snapshot& snapshot : recording.snapshots()) with.insert(snapshot.layer);
  const auto has = [&](int layer) { return with.contains(layer); };
  if (std::ranges::none_of(layers, has)) return;
  for (int layer : layers)
    if (!has(layer))
      throw error(recording.path(), ": recorded/state: layer ", layer, ": missing, but other layers have states");
}

bool anything_recorded(const Recording& recording, const std::vector<int>& layers) {
  if (!recording.snapshots().empty()) return true;
  return std::ranges::any_of(layers, [&](int layer) { return !recording.taps(layer).empty(); });
}

/// True when a local comparison has somewhere to start from: a snapshot or a load of one of the layers.
bool has_local_starts(const Stream& stream, const Recording& recording, const std::vector<int>& layers) {
  const auto of_layers = [&](int layer) { return layer == -1 || std::ranges::find(layers, layer) != layers.end(); };
  return std::ranges::any_of(recording.snapshots(), [&](const Snapshot& s) { return of_layers(s.layer); }) ||
         std::ranges::any_of(stream.events(),
                             [&](const Event& e) { return e.kind == EventKind::load && of_layers(e.layer); });
}

std::int64_t count_opaque(const Stream& stream, const Slice& slice) {
  std::int64_t count = 0;
  for (std::int64_t step = slice.first_step; step < slice.last_step; ++step)
    count += stream.plan(step).path == Path::opaque;
  return count;
}

void add(Comparison& to, const LayerReplay& layer) {
  to.done = true;
  to.add(layer.comparer);
  to.snapshots += layer.snapshots;
}

/// Counts the steps of the layers that are run here.
class LayerProgress {
 public:
  LayerProgress(const ReplayOptions& options, std::int64_t steps, std::size_t layers) : report_(options.progress) {
    for (std::size_t i = 0; i < layers; ++i) total_ += mine(options, i) ? steps : 0;
  }
  static bool mine(const ReplayOptions& options, std::size_t layer) {
    return options.spread == nullptr || options.spread->takes(layer);
  }
  void step() {
    if (report_) report_(std::min(++done_, total_), total_);
  }

 private:
  const std::function<void(std::int64_t, std::int64_t)>& report_;
  std::int64_t done_ = 0, total_ = 0;
};

/// Carried and local run of a layer. One whose snapshots all agree needs no local run: overwriting our state with equal bits
/// changes nothing. `starts`: a local run has somewhere to start from.
LayerOutcome run_layer(Stream& stream, Recording& recording, Backend& backend, const ReplayOptions& options,
                       const ReplayResult& result, int layer, bool starts, LayerProgress& progress) {
  ReplayObserver::Options run{layer, result.slice.first_step, false, [&] { progress.step(); }};
  const auto replay_one = [&] {
    return replay_layer(stream, recording, backend, result.contract.contracts, result.slice.last_step, run);
  };
  LayerOutcome outcome;
  bool need_local = options.mode == Mode::local;
  if (options.mode != Mode::local) {
    const LayerReplay carried = replay_one();
    add(outcome.carried, carried);
    need_local = options.mode == Mode::both && carried.state_differs;
    if (options.mode == Mode::both && starts && !need_local) add(outcome.local, carried);
  }
  if (need_local && starts) {
    run.local = true;
    outcome.reran = true;
    if (options.mode == Mode::both) run.on_step = nullptr;
    add(outcome.local, replay_one());
  }
  return outcome;
}

/// Carried and local runs of every layer, by whoever takes it.
void run_layers(Stream& stream, Recording& recording, Backend& backend, const ReplayOptions& options,
                ReplayResult& result) {
  const std::vector<int>& layers = result.slice.layers;
  const bool starts = has_local_starts(stream, recording, layers);
  LayerProgress progress(options, result.slice.last_step, layers.size());
  std::vector<LayerOutcome> outcomes(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i)
    if (LayerProgress::mine(options, i))
      outcomes[i] = run_layer(stream, recording, backend, options, result, layers[i], starts, progress);
  if (options.spread != nullptr) share(*options.spread, outcomes);
  bool reran = false;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerOutcome& outcome = outcomes[i];
    result.carried.add(outcome.carried);
    result.local.add(outcome.local);
    reran |= outcome.reran;
    if (outcome.carried.compared() + outcome.local.compared() == 0 && result.inconclusive_because.empty())
      result.inconclusive_because = "layer " + std::to_string(layers[i]) + ": no element was compared";
  }
  if (options.mode != Mode::carried && !starts)
    result.local.note =
        "no state was recorded or loaded, so there is nothing to start a step from: carried is the only comparison";
  else if (options.mode == Mode::both && !reran)
    result.local.note =
        result.carried.snapshots > 0
            ? "same as carried: our state equals every recorded one, so starting from it changes nothing"
            : "same as carried: every sequence starts from a loaded state, and no later state was recorded";
}

void judge(const Recording& recording, const ReplayOptions& options, ReplayResult& result) {
  const auto* log = dynamic_cast<const Log*>(&recording);
  const bool differs = result.carried.differing() + result.local.differing() + result.carried.digests_differing > 0;
  if (differs) {
    result.verdict = Verdict::diverged;
    result.inconclusive_because.clear();
    return;
  }
  const auto because = [&](const std::string& reason) { result.inconclusive_because = reason; };
  if (options.mode == Mode::local && !result.local.done) return because(result.local.note);
  if (result.carried.compared() + result.local.compared() == 0) return because("no element was compared");
  if (!result.inconclusive_because.empty()) return;
  if (log != nullptr && log->steps() < log->declared_steps() && options.slice.last_step < 0)
    return because("the log is incomplete: " + std::to_string(log->steps()) + " of " +
                   std::to_string(log->declared_steps()) + " steps");
  result.verdict = Verdict::match;
}

ContractChoice given(const ReplayOptions& options) { return {*options.contracts, options.contracts_from, {}, {}}; }

ReplayResult run_with(Stream& stream, Recording& recording, Backend& backend, const ReplayOptions& options,
                      const Slice& slice, ContractChoice choice) {
  ReplayResult result;
  result.slice = slice;
  result.contract = std::move(choice);
  result.opaque_steps = count_opaque(stream, slice);
  run_layers(stream, recording, backend, options, result);
  judge(recording, options, result);
  return result;
}

/// The first divergence under other contracts, or nothing; stops as soon as it is found.
std::optional<Divergence> first_under(Stream& stream, Recording& recording, Backend& backend,
                                      const ReplayOptions& options, const Slice& slice, const ContractSet& contracts) {
  std::vector<LayerOutcome> outcomes(slice.layers.size());
  for (std::size_t i = 0; i < outcomes.size(); ++i)
    if (LayerProgress::mine(options, i))
      outcomes[i].carried.first = replay_layer(stream, recording, backend, contracts, slice.last_step,
                                               {slice.layers[i], slice.first_step, false, nullptr, true})
                                      .comparer.first();
  if (options.spread != nullptr) share(*options.spread, outcomes);
  std::optional<Divergence> first;
  for (const LayerOutcome& outcome : outcomes) {
    const auto& theirs = outcome.carried.first;
    if (theirs && (!first || precedes(*theirs, *first))) first = theirs;
  }
  return first;
}

/// Where the first steps could not tell some presets apart, the whole file may: the one that goes furthest is taken.
ReplayResult settle_ties(Stream& stream, Recording& recording, Backend& backend, const ReplayOptions& options,
                         ReplayResult result) {
  if (result.verdict != Verdict::diverged || result.contract.ties.empty()) return result;
  const ContractSet* best = nullptr;
  std::optional<Divergence> furthest = result.carried.done ? result.carried.first : result.local.first;
  for (const ContractSet& tie : result.contract.ties) {
    const auto first = first_under(stream, recording, backend, options, result.slice, tie);
    if (first && !precedes(*furthest, *first)) continue;
    best = &tie;
    furthest = first;
    if (!first) break;
  }
  if (best == nullptr) return result;
  ContractChoice choice = result.contract;
  choice.contracts = *best;
  choice.ties.clear();  // the whole has told
  choice.chosen_by += "; of those that were as good, " + contract_name(*best) + " goes furthest on the whole";
  return run_with(stream, recording, backend, options, result.slice, std::move(choice));
}

}  // namespace

std::string_view name_of(Verdict verdict) {
  constexpr std::string_view words[] = {"match", "diverged", "inconclusive"};
  return words[static_cast<std::size_t>(verdict)];
}

std::uint64_t Comparison::compared() const {
  std::uint64_t sum = digests_compared;
  for (const TapCount& count : counts) sum += count.compared;
  return sum;
}

std::uint64_t Comparison::differing() const {
  std::uint64_t sum = digests_differing;
  for (const TapCount& count : counts) sum += count.differing;
  return sum;
}

void Comparison::add(const LayerComparer& layer) {
  for (std::size_t i = 0; i < kTaps; ++i) {
    counts[i].add(layer.counts()[i]);
    const auto& theirs = layer.first_of(static_cast<Tap>(i));
    if (theirs && (!firsts[i] || precedes(*theirs, *firsts[i]))) firsts[i] = theirs;
  }
  if (layer.first() && (!first || precedes(*layer.first(), *first))) first = layer.first();
  cells.push_back(layer.cells());
  digests_compared += layer.digests_compared();
  digests_differing += layer.digests_differing();
}

void Comparison::add(const Comparison& other) {
  done |= other.done;
  for (std::size_t i = 0; i < kTaps; ++i) {
    counts[i].add(other.counts[i]);
    const auto& theirs = other.firsts[i];
    if (theirs && (!firsts[i] || precedes(*theirs, *firsts[i]))) firsts[i] = theirs;
  }
  if (other.first && (!first || precedes(*other.first, *first))) first = other.first;
  cells.insert(cells.end(), other.cells.begin(), other.cells.end());
  snapshots += other.snapshots;
  digests_compared += other.digests_compared;
  digests_differing += other.digests_differing;
}

ReplayResult replay(Stream& whole, Recording& recording, Backend& backend, const ReplayOptions& options) {
  const Slice slice = resolved(options.slice, whole_of(recording), recording.path());
  require_picked(slice.pick, whole.model(), whole.rows(), recording.path());
  require_launch_start(whole, slice.first_step, recording.path());
  PickedStream stream(whole, slice);
  if (!anything_recorded(recording, slice.layers))
    throw error(recording.path(),
                ": recorded: expected at least one recorded tap or state to compare with, found none");
  refuse_missing_taps(recording, slice.layers);
  refuse_missing_states(recording, slice.layers);
  ContractChoice choice = options.contracts ? given(options) : choose_contract(stream, recording, backend, slice);
  ReplayResult result = settle_ties(stream, recording, backend, options,
                                    run_with(stream, recording, backend, options, slice, std::move(choice)));
  if (result.verdict == Verdict::match && !result.contract.ties.empty()) {
    std::string names;
    for (const ContractSet& tie : result.contract.ties) names += (names.empty() ? "" : ", ") + contract_name(tie);
    result.notes.push_back("the first steps did not tell this contract from " + names);
  }
  return result;
}

}  // namespace gdnsim
