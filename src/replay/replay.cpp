#include "gdnsim/replay.hpp"

#include <algorithm>
#include <set>

#include "gdnsim/error.hpp"
#include "gdnsim/log.hpp"
#include "replay/replay_pieces.hpp"
#include "replay/replay_run.hpp"

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

/// A replay and what it runs on.
struct Work {
  PickedStream& stream;
  Recording& recording;
  Backend& backend;
  const ReplayOptions& options;
  const Slice& slice;
  Pieces& pieces;
};

/// Counts the steps of the pieces that are run here.
class LayerProgress {
 public:
  explicit LayerProgress(const Work& work) : report_(work.options.progress) {
    for (std::size_t i = 0; i < work.pieces.size(); ++i) total_ += work.pieces.mine(i) ? work.slice.last_step : 0;
  }
  void step() {
    if (report_) report_(std::min(++done_, total_), total_);
  }

 private:
  const std::function<void(std::int64_t, std::int64_t)>& report_;
  std::int64_t done_ = 0, total_ = 0;
};

/// Carried and local run of a piece. One whose snapshots all agree needs no local run: overwriting our state with equal bits
/// changes nothing. `starts`: a local run has somewhere to start from.
LayerOutcome run_piece(const Work& work, const ContractSet& contracts, std::size_t piece, bool starts,
                       LayerProgress& progress) {
  const Mode mode = work.options.mode;
  ReplayObserver::Options run{work.pieces.layer(piece), work.slice.first_step, false, [&] { progress.step(); }};
  const auto replay_one = [&] {
    return replay_layer(work.pieces.stream(piece), work.recording, work.backend, contracts, work.slice.last_step, run);
  };
  LayerOutcome outcome;
  bool need_local = mode == Mode::local;
  if (mode != Mode::local) {
    const LayerReplay carried = replay_one();
    add(outcome.carried, carried);
    outcome.carried_pool = carried.pool_sums;
    need_local = mode == Mode::both && carried.state_differs;
    if (mode == Mode::both && starts && !need_local) {
      add(outcome.local, carried);
      outcome.local_pool = carried.pool_sums;
    }
  }
  if (need_local && starts) {
    run.local = true;
    outcome.reran = true;
    if (mode == Mode::both) run.on_step = nullptr;
    const LayerReplay local = replay_one();
    add(outcome.local, local);
    outcome.local_pool = local.pool_sums;
  }
  return outcome;
}

std::string note_on_local(const ReplayResult& result, Mode mode, bool starts, bool reran) {
  if (mode != Mode::carried && !starts)
    return "no state was recorded or loaded, so there is nothing to start a step from: carried is the only comparison";
  if (mode != Mode::both || reran) return "";
  return result.carried.snapshots > 0
             ? "same as carried: our state equals every recorded one, so starting from it changes nothing"
             : "same as carried: every sequence starts from a loaded state, and no later state was recorded";
}

/// Carried and local runs of every layer, by whoever takes them.
void run_layers(const Work& work, ReplayResult& result) {
  const std::vector<int>& layers = work.slice.layers;
  const bool starts = has_local_starts(work.stream, work.recording, layers);
  LayerProgress progress(work);
  std::vector<LayerOutcome> outcomes(work.pieces.size());
  for (std::size_t i = 0; i < outcomes.size(); ++i)
    if (work.pieces.mine(i)) outcomes[i] = run_piece(work, result.contract.contracts, i, starts, progress);
  outcomes = work.pieces.joined(std::move(outcomes), work.recording);
  bool reran = false;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerOutcome& outcome = outcomes[i];
    result.carried.add(outcome.carried);
    result.local.add(outcome.local);
    reran |= outcome.reran;
    if (outcome.carried.compared() + outcome.local.compared() == 0 && result.inconclusive_because.empty())
      result.inconclusive_because = "layer " + std::to_string(layers[i]) + ": no element was compared";
  }
  for (Comparison* comparison : {&result.carried, &result.local})
    for (CellRow& row : comparison->cells) row.trim();
  result.local.note = note_on_local(result, work.options.mode, starts, reran);
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

ReplayResult run_with(const Work& work, ContractChoice choice) {
  ReplayResult result;
  result.slice = work.slice;
  result.contract = std::move(choice);
  result.opaque_steps = count_opaque(work.stream, work.slice);
  run_layers(work, result);
  judge(work.recording, work.options, result);
  return result;
}

/// The first divergence under other contracts, or nothing; stops as soon as it is found.
std::optional<Divergence> first_under(const Work& work, const ContractSet& contracts) {
  std::vector<LayerOutcome> outcomes(work.pieces.size());
  for (std::size_t i = 0; i < outcomes.size(); ++i)
    if (work.pieces.mine(i))
      outcomes[i].carried.first =
          replay_layer(work.pieces.stream(i), work.recording, work.backend, contracts, work.slice.last_step,
                       {work.pieces.layer(i), work.slice.first_step, false, nullptr, true})
              .comparer.first();
  outcomes = work.pieces.joined(std::move(outcomes), work.recording);
  std::optional<Divergence> first;
  for (const LayerOutcome& outcome : outcomes) {
    const auto& theirs = outcome.carried.first;
    if (theirs && (!first || precedes(*theirs, *first))) first = theirs;
  }
  return first;
}

/// Where the first steps could not tell some presets apart, the whole file may: the one that goes furthest is taken.
ReplayResult settle_ties(const Work& work, ReplayResult result) {
  if (result.verdict != Verdict::diverged || result.contract.ties.empty()) return result;
  const ContractSet* best = nullptr;
  std::optional<Divergence> furthest = result.carried.done ? result.carried.first : result.local.first;
  for (const ContractSet& tie : result.contract.ties) {
    const auto first = first_under(work, tie);
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
  return run_with(work, std::move(choice));
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
  for (const CellRow& row : other.cells) {
    const auto same = std::ranges::find(cells, row.layer(), &CellRow::layer);
    if (same == cells.end())
      cells.push_back(row);
    else
      same->add(row);
  }
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
  // A run that ends at its first difference gives no digests of a log's pool; it only decides between presets that are level.
  const bool part_rows = options.contracts.has_value() || dynamic_cast<const Log*>(&recording) == nullptr;
  Pieces pieces(stream, slice, options.spread, part_rows);
  const Work work{stream, recording, backend, options, slice, pieces};
  ReplayResult result = settle_ties(work, run_with(work, std::move(choice)));
  if (result.verdict == Verdict::match && !result.contract.ties.empty()) {
    std::string names;
    for (const ContractSet& tie : result.contract.ties) names += (names.empty() ? "" : ", ") + contract_name(tie);
    result.notes.push_back("the first steps did not tell this contract from " + names);
  }
  return result;
}

}  // namespace gdnsim
