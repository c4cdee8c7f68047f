// Explaining a recording: layer by layer, the first divergence is searched for a hypothesis that gives the recorded bits; with
// it accepted the next one is looked at, until nothing differs or nothing explains it.
#include "gdnsim/explain.hpp"

#include <algorithm>

#include "explain/facts.hpp"
#include "explain/model_fields.hpp"
#include "explain/rounding.hpp"
#include "explain/search.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/fit.hpp"

namespace gdnsim {
namespace {

using namespace explaining;

constexpr int kFindings = 16;  // in one layer

std::string unit_words(const Unit& unit) {
  if (unit.event >= 0)
    return "step " + std::to_string(unit.step) + (unit.event % 2 == 0 ? ", before" : ", after") + " event " +
           std::to_string(unit.event / 2) + ", block " + std::to_string(unit.block);
  std::string text = "step " + std::to_string(unit.step) + ", " + std::string(name_of(unit.tap));
  if (unit.row >= 0) text += ", row " + std::to_string(unit.row);
  if (unit.block >= 0) text += ", block " + std::to_string(unit.block);
  return text;
}

std::string evidence_of(const Tested& tested, const Scene& scene) {
  const bool fact = tested.hypothesis.rounds == nullptr && tested.hypothesis.mechanism().proof == Proof::fact;
  const std::string run =
      "re-run of layer " + std::to_string(scene.bench.layer) + (fact ? " with this set aside: " : " with this: ");
  const std::string fixed = std::to_string(tested.fixed_elements);
  if (!tested.outcome.clean())
    return run + fixed + " elements that differed come out; what still differs starts at " +
           unit_words(tested.outcome.wrong.front().unit);
  const std::int64_t since = tested.hypothesis.whole ? scene.bench.first_step : scene.anchor;
  return run + "all " + std::to_string(tested.outcome.units) + " rows and states recorded since step " +
         std::to_string(since) + " come out (" + std::to_string(tested.outcome.elements) + " elements; without it " +
         fixed + " of them differ, first at " + unit_words(scene.at) + ")";
}

/// A scope that says no more than it must: from the first step to the end is everywhere.
Scope trimmed(Scope scope, const Bench& bench) {
  if (scope.from_step == bench.first_step && scope.to_step < 0) scope.from_step = -1;
  return scope;
}

/// The mechanisms of one accepted hypothesis: a contract may differ in several choices.
void report(const Tested& tested, const Scene& scene, std::vector<Mechanism>& out) {
  const std::string evidence = evidence_of(tested, scene);
  std::vector<Mechanism> mechanisms = tested.hypothesis.mechanisms;
  if (tested.hypothesis.more) mechanisms.back().says += tested.hypothesis.more();
  if (tested.hypothesis.rounds != nullptr) {
    const Contract& expected = scene.bench.contracts.of(scene.plan(scene.at.step).path);
    const Scope scope = tested.hypothesis.mechanism().scope;
    mechanisms.clear();
    for (const Choice& choice : choices_between(expected, *tested.hypothesis.rounds))
      mechanisms.push_back({choice.id, scope, choice.words, "", Proof::rerun});
  }
  for (Mechanism& mechanism : mechanisms) {
    mechanism.scope = trimmed(mechanism.scope, scene.bench);
    mechanism.evidence = evidence;
    out.push_back(std::move(mechanism));
  }
}

struct LayerFindings {
  std::vector<Mechanism> mechanisms;
  bool complete = true;         // nothing is left unexplained
  std::vector<Twist> contract;  // of a contract that holds throughout the layer and reproduces it
};

/// One accepted hypothesis and what it is reported as.
struct Finding {
  std::vector<Twist> twists;
  std::vector<Mechanism> mechanisms;
  std::optional<std::int64_t> state_at{}, window_at{};  // of one row of one step
  bool of_position() const { return state_at || window_at; }
};

Finding finding_of(const Hypothesis& hypothesis) {
  Finding finding{hypothesis.twists, {}};
  const Scope& scope = hypothesis.mechanism().scope;
  if (scope.from_step == scope.to_step && scope.row >= 0)
    finding.state_at = hypothesis.state_at, finding.window_at = hypothesis.window_at;
  return finding;
}

/// What a row went on from, once all of it is known: "recurrent at p-1, conv at p". Its last line says it.
void say_positions(std::vector<Finding>& findings) {
  const auto same_row = [](const Finding& a, const Finding& b) {
    const Scope &x = a.mechanisms.front().scope, &y = b.mechanisms.front().scope;
    return x.from_step == y.from_step && x.row == y.row;
  };
  const auto at = [](std::int64_t n) { return n == 0 ? "p" : (n > 0 ? "p+" : "p") + std::to_string(n); };
  for (std::size_t i = 0; i < findings.size(); ++i) {
    if (!findings[i].of_position()) continue;
    std::int64_t state = 0, window = 0;
    bool last = true;
    for (std::size_t k = 0; k < findings.size(); ++k) {
      if (!findings[k].of_position() || !same_row(findings[i], findings[k])) continue;
      state = findings[k].state_at.value_or(state), window = findings[k].window_at.value_or(window);
      last &= k <= i;
    }
    if (last)
      findings[i].mechanisms.back().says +=
          "; so the row went on from recurrent at " + at(state) + ", conv at " + at(window);
  }
}

/// A later finding may contain an earlier one: what everything comes out without is dropped.
void drop_superseded(const Bench& bench, std::vector<Finding>& findings) {
  for (std::size_t i = 0; findings.size() > 1 && i < findings.size();) {
    Trials trials(bench);
    for (std::size_t k = 0; k < findings.size(); ++k)
      if (k != i) trials.accept(findings[k].twists);
    if (trials.run({}, {}, bench.last_step, true).clean())
      findings.erase(findings.begin() + static_cast<std::ptrdiff_t>(i));
    else
      ++i;
  }
}

/// What is left where a layer has more findings than are looked for.
Mechanism too_many(Trials& trials) {
  const Bench& bench = trials.bench();
  const Unit left = trials.run({}, {}, bench.last_step, true).wrong.front().unit;
  return {"unexplained",
          {left.step, -1, bench.layer, left.row, left.block, -1},
          "after " + std::to_string(kFindings) + " findings in this layer the rest was not looked at",
          "still differs, first at " + unit_words(left),
          Proof::pattern};
}

LayerFindings explain_layer(const Bench& bench, SearchState& state) {
  LayerFindings result;
  std::vector<Finding> findings;
  Trials trials(bench);
  result.complete = false;
  for (int i = 0; i < kFindings && !result.complete; ++i) {
    Outcome found = trials.run({}, {}, bench.last_step, false);
    result.complete = found.clean();
    if (result.complete) break;
    const Scene scene = make_scene(trials, std::move(found));
    SceneSearch search(scene, state);
    const auto best = search.run();
    if (!best) {
      findings.push_back({{}, {pattern_of(scene, state.deadline.over())}});
      break;
    }
    findings.push_back(finding_of(best->hypothesis));
    report(*best, scene, findings.back().mechanisms);
    trials.accept(best->hypothesis.twists);
    result.complete = best->outcome.clean();
    if (best->hypothesis.rounds != nullptr && best->hypothesis.whole && result.complete && i == 0)
      result.contract = best->hypothesis.twists;
  }
  if (result.complete) {
    drop_superseded(bench, findings);
    say_positions(findings);
  } else if (!findings.back().twists.empty()) {  // the last one is no pattern: the loop ran out
    findings.push_back({{}, {too_many(trials)}});
  }
  for (const Finding& finding : findings)
    result.mechanisms.insert(result.mechanisms.end(), finding.mechanisms.begin(), finding.mechanisms.end());
  return result;
}

bool holds_throughout(const Scope& scope) {
  return scope.from_step < 0 && scope.to_step < 0 && scope.row < 0 && scope.block < 0 && scope.head < 0;
}

bool same_but_layer(const Mechanism& a, const Mechanism& b) {
  Scope scope = a.scope;
  scope.layer = b.scope.layer;
  return a.id == b.id && a.says == b.says && scope == b.scope;
}

/// Where repeats of a step disagree, nothing is blamed for the bits of that row.
void drop_noise(std::vector<Mechanism>& mechanisms) {
  const auto noise = std::ranges::find(mechanisms, "not-repeatable", &Mechanism::id);
  if (noise == mechanisms.end()) return;
  const Scope scope = noise->scope;
  std::erase_if(mechanisms, [&](const Mechanism& m) {
    const bool weak = m.id == "memory-corruption" || m.id == "unexplained";
    return weak && m.scope.layer == scope.layer && m.scope.row == scope.row && m.scope.from_step == scope.from_step;
  });
}

/// What every layer shows is said once. Of a slice of one layer only what holds throughout is said of all.
void merge_layers(std::vector<Mechanism>& mechanisms, std::size_t layers) {
  std::vector<Mechanism> merged;
  for (const Mechanism& m : mechanisms) {
    const auto same = [&](const Mechanism& other) { return same_but_layer(m, other); };
    const bool all = std::cmp_equal(std::ranges::count_if(mechanisms, same), layers) && m.scope.layer >= 0;
    if (!all || (layers == 1 && !holds_throughout(m.scope))) {
      merged.push_back(m);
    } else if (std::ranges::none_of(merged, same)) {
      merged.push_back(m);
      merged.back().scope.layer = -1;
    }
  }
  mechanisms = std::move(merged);
}

/// Every place gets into the sentence.
void say_places(std::vector<Mechanism>& mechanisms) {
  for (Mechanism& m : mechanisms)
    if (!m.says.empty() && (m.scope.layer >= 0 || !holds_throughout(m.scope)))
      m.says = place_words(m.scope) + ": " + m.says;
}

bool has_path(const Stream& stream, const Slice& slice, Path path) {
  for (std::int64_t step = slice.first_step; step < slice.last_step; ++step)
    if (stream.plan(step).path == path) return true;
  return false;
}

/// A fault of layout hides which preset it is: they all differ alike. The one under which a layout gives every recorded bit.
const Contract* preset_under_layout(const Bench& bench, Path path) {
  for (const Contract& preset : contract_presets()) {
    if (!undefined_because(preset, bench.stream.model()).empty()) continue;
    Bench other = bench;
    (path == Path::mixed ? other.contracts.mixed : other.contracts.decode) = preset;
    Trials trials(other);
    Outcome found = trials.run({}, {}, other.last_step, false);
    if (found.clean()) continue;
    const Scene scene = make_scene(trials, std::move(found));
    Hypotheses hypotheses;
    propose_wraps(scene, hypotheses);
    propose_layouts(scene, hypotheses);
    for (const Hypothesis& hypothesis : hypotheses)
      if (trials.run(hypothesis.twists, {}, other.last_step, true).clean()) return &preset;
  }
  return nullptr;
}

/// Where most of what a layer wrote differs under the chosen preset, the contract may be at issue: the provider is held to the
/// preset from which the fewest choices lead to the recorded bits, which need not be the one with the fewest differing
/// elements. True when that is another one.
bool hold_to_nearest(Stream& stream, Recording& recording, Backend& backend, Explanation& result, SearchState& state) {
  const Slice slice = result.replay.slice;
  ContractChoice& choice = result.replay.contract;
  const int layer = result.replay.first()->layer;
  const Bench bench{stream, recording, backend, choice.contracts, layer, slice.first_step, slice.last_step, slice.pick};
  if (!widespread(bench, Trials(bench).run({}, {}, slice.last_step, false))) return false;
  PickedStream picked(stream, slice);
  bool other = false;
  for (Path path : {Path::decode, Path::mixed}) {
    if (!has_path(stream, slice, path)) continue;
    const ContractSet before = choice.contracts;
    const FitPath fitted =
        fit_layer(picked, recording, backend, layer, path, slice.first_step, slice.last_step,
                  std::min(30.0, state.deadline.left()), &before.of(path == Path::mixed ? Path::decode : Path::mixed));
    if (!fitted.exact_elsewhere() || fitted.nearest.empty()) {
      const Contract* preset = preset_under_layout(bench, path);
      if (preset == nullptr || *preset == before.of(path)) continue;
      (path == Path::mixed ? choice.contracts.mixed : choice.contracts.decode) = *preset;
      choice.chosen_by += "; only under " + preset->name + " does a layout give the recorded bits";
      other = true;
      continue;
    }
    state.known.push_back({path, std::make_shared<const Contract>(fitted.contract)});
    const Contract& nearest = contract_preset(fitted.nearest);
    if (nearest == before.of(path)) continue;
    (path == Path::mixed ? choice.contracts.mixed : choice.contracts.decode) = nearest;
    choice.chosen_by += "; of the presets, " + nearest.name + " needs the fewest choices changed";
    other = true;
  }
  return other;
}

void explain_layers(Stream& stream, Recording& recording, Backend& backend, const ExplainOptions& options,
                    Explanation& result, SearchState& state) {
  const Slice& slice = result.replay.slice;
  const auto bench_of = [&](int layer) {
    return Bench{stream, recording,        backend,         result.replay.contract.contracts,
                 layer,  slice.first_step, slice.last_step, slice.pick};
  };
  std::vector<LayerFindings> all;
  result.complete = true;
  for (int layer : slice.layers) {
    if (options.progress) options.progress("layer " + std::to_string(layer));
    all.push_back(explain_layer(bench_of(layer), state));
    result.complete &= all.back().complete;
  }
  // A contract may leave a layer's recorded bits as they are: then it holds there as well.
  const auto found = std::ranges::find_if(all, [](const LayerFindings& f) { return !f.contract.empty(); });
  for (std::size_t i = 0; i < all.size() && found != all.end(); ++i) {
    if (!all[i].mechanisms.empty()) continue;
    if (!Trials(bench_of(slice.layers[i])).run(found->contract, {}, slice.last_step, true).clean()) continue;
    for (Mechanism m : found->mechanisms) {
      m.scope.layer = slice.layers[i];
      all[i].mechanisms.push_back(m);
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto is_store = [](const Mechanism& m) { return m.id == "state-store-bf16"; };
    if (all[i].contract.empty() || std::ranges::none_of(all[i].mechanisms, is_store)) continue;
    if (auto lost = lost_decay(bench_of(slice.layers[i]), all[i].contract))
      all[i].mechanisms.push_back(std::move(*lost));
  }
  for (const LayerFindings& findings : all)
    result.mechanisms.insert(result.mechanisms.end(), findings.mechanisms.begin(), findings.mechanisms.end());
  drop_noise(result.mechanisms);
  merge_layers(result.mechanisms, slice.layers.size());
  say_places(result.mechanisms);
}

/// /model may be wrong, not the provider. The contract was chosen under the wrong one; held to the right one, the rest can be seen.
bool explained_by_model(Stream& stream, Recording& recording, Backend& backend, ReplayOptions options,
                        Explanation& result) {
  auto other = other_model(stream, recording, backend, options, result.replay);
  if (!other) return false;
  if (other->contract.contracts != result.replay.contract.contracts) {
    options.contracts = other->contract.contracts;
    options.contracts_from = result.replay.contract.chosen_by + "; of another /model " +
                             contract_name(other->contract.contracts) + " gives the recorded bits";
    result.replay = replay(stream, recording, backend, options);
  }
  result.mechanisms.push_back(std::move(other->mechanism));
  result.complete = true;
  return true;
}

}  // namespace

Explanation explain(Stream& stream, Recording& recording, Backend& backend, const ExplainOptions& options) {
  Explanation result;
  ReplayOptions replay_options;
  replay_options.slice = options.slice;
  replay_options.contracts = options.contracts;
  replay_options.contracts_from = options.contracts_from;
  if (options.progress) options.progress("replay");
  result.replay = replay(stream, recording, backend, replay_options);
  const Slice slice = result.replay.slice;
  const bool reproduced = result.replay.verdict == Verdict::match;
  if (auto noise = not_repeatable(stream, recording, slice, reproduced)) result.mechanisms.push_back(std::move(*noise));
  for (int layer : slice.layers) {
    const Bench bench{stream, recording,        backend,         result.replay.contract.contracts,
                      layer,  slice.first_step, slice.last_step, slice.pick};
    if (auto born = born_nan(bench, {})) result.mechanisms.push_back(std::move(*born));
  }
  if (result.replay.verdict != Verdict::diverged) {
    result.complete = result.replay.verdict == Verdict::match;
    say_places(result.mechanisms);
    return result;
  }
  const fitting::Deadline deadline(options.seconds);
  const bool throughout = differs_throughout(stream, recording, backend, result.replay);
  if (throughout && explained_by_model(stream, recording, backend, replay_options, result)) return result;
  SearchState state{deadline, {}, {}};
  if (!options.contracts && hold_to_nearest(stream, recording, backend, result, state)) {
    replay_options.contracts = result.replay.contract.contracts;
    const ContractChoice choice = result.replay.contract;
    result.replay = replay(stream, recording, backend, replay_options);
    result.replay.contract = choice;
  }
  explain_layers(stream, recording, backend, options, result, state);
  if (throughout && !result.complete)
    result.replay.notes.push_back(
        "it differs from the first step on, in every row and layer: check scale, norm_eps, use_qk_l2norm and "
        "activation of "
        "/model");
  for (const auto& [kind, count] : state.tally)
    result.tried.push_back(kind + ": " + std::to_string(count) + (count == 1 ? " re-run" : " re-runs"));
  return result;
}

}  // namespace gdnsim
