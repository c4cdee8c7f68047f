// Choosing a preset: each is tried on the first steps of each path, and the bits decide.
#include <algorithm>
#include <limits>
#include <memory>

#include "gdnsim/error.hpp"
#include "gdnsim/replay.hpp"
#include "replay/replay_run.hpp"

namespace gdnsim {
namespace {

// Steps of a path to look at: first a few (one is enough where an f32 state was recorded), then more while presets are level.
constexpr std::int64_t kProbeSteps[] = {4, 32};

/// The state of one layer before a probe.
struct Start {
  std::unique_ptr<Pool> pool;
  std::vector<std::int32_t> blocks;  // that can be other than zero
};

void copy_blocks(const Start& from, Pool& to, int layer) {
  Bytes recurrent(to.model().state_bytes()), conv(to.model().conv_bytes());
  for (std::int32_t block : from.blocks) {
    from.pool->read(layer, block, recurrent, conv);
    to.write(layer, block, recurrent, conv);
  }
}

/// The first steps of one path: where they start and end.
struct Probe {
  Path path;
  std::int64_t begin = -1, end = -1;
};

/// The path's first run of steps, at most `most` long.
Probe find_probe(const Stream& stream, Path path, const Slice& slice, std::int64_t most) {
  Probe probe{path};
  std::int64_t found = 0;
  for (std::int64_t step = 0; step < slice.last_step && found < most; ++step) {
    if (stream.plan(step).path != path) {
      if (probe.begin >= 0) break;
      continue;
    }
    if (probe.begin < 0) probe.begin = step;
    probe.end = step + 1;
    ++found;
  }
  return probe;
}

struct Search {
  Stream& stream;
  Recording& recording;
  Backend& backend;
  const int layer;
};

/// How a contract fares on a probe, from the state before it.
Candidate try_contract(const Search& s, const ContractSet& contracts, const Probe& probe, const Start& before) {
  const auto pool = s.backend.make_pool(s.stream.model(), {s.layer});
  copy_blocks(before, *pool, s.layer);
  Simulation simulation{s.stream,   s.backend, contracts,
                        {s.layer},  probe.end, comparable_taps(s.stream, s.recording, s.layer),
                        probe.begin};
  ReplayObserver observer(s.stream, s.recording, {s.layer, probe.begin, false, nullptr});
  simulate(simulation, *pool, observer);
  Comparison found;
  found.add(observer.comparer());
  return {contracts.of(probe.path).name, probe.path, found.compared(), found.differing()};
}

void set_path(ContractSet& contracts, Path path, const Contract& contract) {
  (path == Path::mixed ? contracts.mixed : contracts.decode) = contract;
}

/// "decode steps 0:4: of 191488 elements differ under 'triton-sm90' 0, 'golden' 62878, ...": the best first.
std::string sentence(const Probe& probe, const std::string& best, const std::vector<Candidate>& tried) {
  std::ostringstream text;
  const auto chosen = std::ranges::find(tried, best, &Candidate::name);
  text << name_of(probe.path) << " steps " << probe.begin << ":" << probe.end << ": of " << chosen->compared
       << " elements differ under " << best << " " << chosen->differing;
  for (const Candidate& other : tried)
    if (other.name != best) text << ", " << other.name << " " << other.differing;
  if (chosen->differing > 0) text << "; no preset reproduces this path";
  return text.str();
}

/// The candidates that leave the fewest elements different on the probe; all that were tried go to `tried`.
std::vector<const Contract*> best_of(const Search& s, const ContractSet& others, const Probe& probe,
                                     const Start& before, const std::vector<const Contract*>& candidates,
                                     std::vector<Candidate>& tried) {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  std::vector<const Contract*> best;
  tried.clear();
  for (const Contract* candidate : candidates) {
    ContractSet contracts = others;
    set_path(contracts, probe.path, *candidate);
    tried.push_back(try_contract(s, contracts, probe, before));
    const std::uint64_t differing = tried.back().differing;
    if (differing < least) best.clear();
    least = std::min(least, differing);
    if (differing == least) best.push_back(candidate);
  }
  return best;
}

std::vector<const Contract*> defined_presets(const Model& model) {
  std::vector<const Contract*> result;
  for (const Contract& preset : contract_presets())
    if (undefined_because(preset, model).empty()) result.push_back(&preset);
  return result;
}

/// Tries the presets on one path's first steps; returns those that nothing there tells apart, and sets the first in `choice`.
std::vector<const Contract*> choose_for_path(const Search& s, Path path, const Slice& slice, ContractChoice& choice) {
  const Probe probe = find_probe(s.stream, path, slice, kProbeSteps[0]);
  Start before{s.backend.make_pool(s.stream.model(), {s.layer}), {}};
  Nobody nobody;
  simulate({s.stream, s.backend, choice.contracts, {s.layer}, probe.begin, {}}, *before.pool, nobody);
  before.blocks = named_blocks(s.stream, probe.begin);

  std::vector<Candidate> tried;
  std::vector<const Contract*> best =
      best_of(s, choice.contracts, probe, before, defined_presets(s.stream.model()), tried);
  choice.tried.insert(choice.tried.end(), tried.begin(), tried.end());
  choice.chosen_by += "; " + sentence(probe, best.front()->name, tried);
  const Probe longer = find_probe(s.stream, path, slice, kProbeSteps[1]);
  if (best.size() > 1 && longer.end > probe.end) {
    best = best_of(s, choice.contracts, longer, before, best, tried);
    choice.chosen_by += "; " + sentence(longer, best.front()->name, tried);
  }
  for (std::size_t i = 1; i < best.size(); ++i)
    choice.chosen_by += (i == 1 ? "; these steps do not tell it from " : ", ") + best[i]->name;
  set_path(choice.contracts, path, *best.front());
  return best;
}

/// Elements that a path's probe leaves different under the contract chosen for it.
std::uint64_t left_different(const ContractChoice& choice, Path path) {
  const auto is_chosen = [&](const Candidate& c) { return c.path == path && c.name == choice.contracts.of(path).name; };
  return std::ranges::find_if(choice.tried, is_chosen)->differing;
}

/// A later path's probe starts from the state that the earlier path's contract makes. Where several are level there, each of
/// them makes it, until one leaves nothing different; that one moves to the front of `earlier`.
std::vector<const Contract*> choose_for_later_path(const Search& s, Path path, const Slice& slice, Path earlier_path,
                                                   std::vector<const Contract*>& earlier, ContractChoice& choice) {
  ContractChoice best;
  std::vector<const Contract*> found;
  const Contract* from = nullptr;
  for (const Contract* contract : earlier) {
    ContractChoice attempt = choice;
    set_path(attempt.contracts, earlier_path, *contract);
    std::vector<const Contract*> here = choose_for_path(s, path, slice, attempt);
    if (from != nullptr && left_different(attempt, path) >= left_different(best, path)) continue;
    from = contract, best = std::move(attempt), found = std::move(here);
    if (left_different(best, path) == 0) break;
  }
  if (from != earlier.front()) best.chosen_by += "; run from the state that " + from->name + " leaves";
  const auto at = std::ranges::find(earlier, from);
  std::rotate(earlier.begin(), at, at + 1);
  choice = std::move(best);
  return found;
}

/// Every pair that the first steps leave possible, those that go together (contract_set) first.
std::vector<ContractSet> pairs_of(const std::vector<const Contract*>& decode,
                                  const std::vector<const Contract*>& mixed) {
  std::vector<ContractSet> pairs;
  for (const Contract* d : decode)
    for (const Contract* m : mixed) pairs.push_back({*d, *m});
  std::stable_partition(pairs.begin(), pairs.end(),
                        [](const ContractSet& pair) { return contract_set(pair.decode.name) == pair; });
  return pairs;
}

}  // namespace

ContractChoice choose_contract(Stream& stream, Recording& recording, Backend& backend, const Slice& slice) {
  const Search search{stream, recording, backend, slice.layers.front()};
  std::vector<Probe> probes;
  for (Path path : {Path::decode, Path::mixed}) {
    const Probe probe = find_probe(stream, path, slice, 1);
    if (probe.begin >= 0) probes.push_back(probe);
  }
  if (probes.empty())
    throw error(recording.path(), ": steps: nothing to replay, every selected step is opaque (path 2)");
  std::ranges::sort(probes, {}, &Probe::begin);

  ContractChoice choice;
  choice.chosen_by = "auto, by the recorded bits";
  std::vector<const Contract*> of_path[2];
  std::vector<const Contract*>& first = of_path[static_cast<int>(probes[0].path)];
  first = choose_for_path(search, probes[0].path, slice, choice);
  if (probes.size() == 2)
    of_path[static_cast<int>(probes[1].path)] =
        choose_for_later_path(search, probes[1].path, slice, probes[0].path, first, choice);
  std::vector<ContractSet> pairs;
  if (probes.size() == 2)
    pairs = pairs_of(of_path[0], of_path[1]);
  else
    for (const Contract* used : of_path[static_cast<int>(probes[0].path)]) pairs.push_back({*used, *used});
  choice.contracts = pairs.front();
  choice.ties.assign(pairs.begin() + 1, pairs.end());
  return choice;
}

}  // namespace gdnsim
