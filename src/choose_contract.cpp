// Choosing a preset: each is tried on the first steps of each path, and the bits decide.
#include <algorithm>
#include <limits>

#include "gdnsim/error.hpp"
#include "gdnsim/replay.hpp"
#include "replay_run.hpp"

namespace gdnsim {
namespace {

constexpr std::int64_t kProbeSteps = 4;  // compared steps of a path; one is enough where an f32 state was recorded

/// Copies every block of one layer.
void copy_pool(const Pool& from, Pool& to, int layer) {
  Bytes recurrent(from.model().state_bytes()), conv(from.model().conv_bytes());
  for (std::int32_t block = 0; block < from.model().num_blocks; ++block) {
    from.read(layer, block, recurrent, conv);
    to.write(layer, block, recurrent, conv);
  }
}

/// Runs without looking.
class Blind final : public Observer {
  void after(const StepView&) override {}
};

/// The first steps of one path: where they start and end.
struct Probe {
  Path path;
  std::int64_t begin = -1, end = -1;
};

/// The path's first run of steps, at most kProbeSteps long.
Probe find_probe(const Stream& stream, Path path, const Slice& slice) {
  Probe probe{path};
  std::int64_t found = 0;
  for (std::int64_t step = 0; step < slice.last_step && found < kProbeSteps; ++step) {
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

/// How a contract fares on a probe, from the state that `pool` holds before it.
Candidate try_contract(const Search& s, const ContractSet& contracts, const Probe& probe, const Pool& before) {
  const auto pool = s.backend.make_pool(s.stream.model(), {s.layer});
  if (probe.begin > 0) copy_pool(before, *pool, s.layer);
  Simulation simulation{s.stream, s.backend, contracts, {s.layer}, probe.end,
                        comparable_taps(s.stream, s.recording, s.layer), probe.begin};
  ReplayObserver observer(s.stream, s.recording, {s.layer, probe.begin, false, nullptr});
  simulate(simulation, *pool, observer);
  Comparison found;
  found.add(observer.comparer());
  return {contracts.of(probe.path).name, probe.path, found.compared(), found.differing()};
}

void set_path(ContractSet& contracts, Path path, const Contract& contract) {
  (path == Path::mixed ? contracts.mixed : contracts.decode) = contract;
}

std::string sentence(const Probe& probe, const Candidate& best, const std::vector<Candidate>& tried) {
  std::ostringstream text;
  text << "auto: on " << name_of(probe.path) << " steps " << probe.begin << ":" << probe.end << " '" << best.name << "' leaves "
       << best.differing << " of " << best.compared << " elements different";
  for (const Candidate& other : tried)
    if (other.path == probe.path && other.name != best.name) text << ", '" << other.name << "' " << other.differing;
  if (best.differing > 0) text << "; no preset reproduces this path";
  return text.str();
}

/// Tries every preset on one path's first steps; sets the best in `choice` and notes those that were as good.
void choose_for_path(const Search& s, const Probe& probe, ContractChoice& choice) {
  const auto before = s.backend.make_pool(s.stream.model(), {s.layer});
  Blind blind;
  simulate({s.stream, s.backend, choice.contracts, {s.layer}, probe.begin, {}}, *before, blind);
  Candidate best{"", probe.path, 0, std::numeric_limits<std::uint64_t>::max()};
  std::vector<const Contract*> as_good;
  for (const Contract& preset : contract_presets()) {
    if (!undefined_because(preset, s.stream.model()).empty()) continue;
    ContractSet contracts = choice.contracts;
    set_path(contracts, probe.path, preset);
    const Candidate candidate = try_contract(s, contracts, probe, *before);
    choice.tried.push_back(candidate);
    if (candidate.differing < best.differing) best = candidate, as_good.clear();
    if (candidate.differing == best.differing) as_good.push_back(&preset);
  }
  set_path(choice.contracts, probe.path, *as_good.front());
  choice.chosen_by += (choice.chosen_by.empty() ? "" : "; ") + sentence(probe, best, choice.tried);
  for (std::size_t i = 1; i < as_good.size() && best.differing == 0; ++i) {
    ContractSet tie = choice.contracts;
    set_path(tie, probe.path, *as_good[i]);
    choice.ties.push_back(tie);
  }
}

}  // namespace

ContractChoice choose_contract(Stream& stream, Recording& recording, Backend& backend, const Slice& slice) {
  const Search search{stream, recording, backend, slice.layers.front()};
  std::vector<Probe> probes;
  for (Path path : {Path::decode, Path::mixed}) {
    const Probe probe = find_probe(stream, path, slice);
    if (probe.begin >= 0) probes.push_back(probe);
  }
  if (probes.empty()) throw error(recording.path(), ": steps: nothing to replay, every selected step is opaque (path 2)");
  std::ranges::sort(probes, {}, &Probe::begin);
  ContractChoice choice;
  for (const Probe& probe : probes) choose_for_path(search, probe, choice);
  if (probes.size() == 1) {  // a path that does not occur shares the other's contract
    const Contract& used = choice.contracts.of(probes[0].path);
    choice.contracts = {used, used};
    for (ContractSet& tie : choice.ties) tie = {tie.of(probes[0].path), tie.of(probes[0].path)};
  }
  return choice;
}

}  // namespace gdnsim
