#include "explain/search.hpp"

#include <algorithm>

#include "explain/facts.hpp"
#include "explain/rounding.hpp"
#include "fit/stage.hpp"
#include "gdnsim/compare.hpp"
#include "gdnsim/fit.hpp"

namespace gdnsim::explaining {
namespace {

/// Elements that must come right before a hypothesis that leaves something unexplained counts as shown.
constexpr std::uint64_t kEnough = 4;

bool same_line(const Unit& a, const Unit& b) { return a.row == b.row && a.block == b.block; }

/// Does the first wrong unit come right, with everything before it and all else of its row in that step?
bool moves_on(const Unit& at, const Outcome& outcome) {
  return std::ranges::none_of(outcome.wrong, [&](const WrongUnit& w) {
    return !(at < w.unit) || (w.unit.step == at.step && same_line(w.unit, at));
  });
}

void compare_outcomes(const Scene& scene, Tested& tested) {
  std::map<Unit, std::uint64_t> was;
  for (const WrongUnit& w : scene.found.wrong) was[w.unit] = w.differing;
  for (const WrongUnit& w : tested.outcome.wrong) {
    const bool broken = was.erase(w.unit) == 0;
    tested.broken_units += broken;
    tested.broken_here |= broken && w.unit.step == scene.at.step;
  }
  tested.fixed_units = was.size();
  for (const auto& [unit, differing] : was) tested.fixed_elements += differing;
}

/// Is what came right enough to call the hypothesis shown?
bool shown(const Tested& tested) {
  if (tested.outcome.clean()) return true;
  return !tested.broken_here && tested.fixed_elements >= kEnough && tested.broken_units * 2 <= tested.fixed_units;
}

bool better(const Tested& a, const Tested& b) {
  if (a.outcome.clean() != b.outcome.clean()) return a.outcome.clean();
  if (a.outcome.clean()) return false;                                             // the first one stands
  if ((a.broken_units == 0) != (b.broken_units == 0)) return a.broken_units == 0;  // nothing recorded speaks against it
  const Unit &x = a.outcome.wrong.front().unit, &y = b.outcome.wrong.front().unit;
  if (!(x == y)) return y < x;
  return a.outcome.wrong.size() < b.outcome.wrong.size();
}

}  // namespace

void SceneSearch::test(const Hypothesis& hypothesis) {
  ++state_.tally[hypothesis.rounds != nullptr ? "contract choices" : hypothesis.mechanism().id];
  const Checkpoint start;
  const Checkpoint& from = hypothesis.whole ? start : scene_.from;
  const std::int64_t until = scene_.at.step + 1, last = scene_.bench.last_step;
  Outcome first = scene_.trials.run(hypothesis.twists, from, until, true);
  if (!moves_on(scene_.at, first)) return;
  Tested tested{hypothesis, {}};
  tested.outcome = until < last ? scene_.trials.run(hypothesis.twists, from, last, false) : std::move(first);
  compare_outcomes(scene_, tested);
  if (shown(tested) && (!best_ || better(tested, *best_))) best_ = std::move(tested);
}

/// True when the search is over: everything is reproduced, or time is up.
bool SceneSearch::try_group(Propose propose) {
  Hypotheses hypotheses;
  propose(scene_, hypotheses);
  for (const Hypothesis& hypothesis : hypotheses) {
    if (state_.deadline.over()) return true;
    test(hypothesis);
    if (clean()) return true;
  }
  return false;
}

/// A contract for every step of the path, or for those that the scope names.
void SceneSearch::try_contract(const std::shared_ptr<const Contract>& contract, Scope scope) {
  scope.layer = scene_.bench.layer;
  Hypothesis hypothesis;
  hypothesis.mechanisms.resize(1);
  hypothesis.mechanisms[0].scope = scope;
  hypothesis.whole = scope.from_step < scene_.anchor;
  hypothesis.rounds = contract.get();
  hypothesis.twists = {under_contract(contract, scene_.plan(scene_.at.step).path, scope)};
  test(hypothesis);
}

bool SceneSearch::try_known() {
  for (const Known& known : state_.known)
    if (known.path == scene_.plan(scene_.at.step).path && !clean()) try_contract(known.contract, known.scope);
  return clean();
}

/// Several choices of the contract at once: what `fit` finds for this layer.
bool SceneSearch::try_fit(std::int64_t from_step, double seconds) {
  if (state_.deadline.over()) return true;
  const Bench& bench = scene_.bench;
  const Path path = scene_.plan(scene_.at.step).path, other = path == Path::mixed ? Path::decode : Path::mixed;
  const FitPath fitted =
      fit_layer(bench.stream, bench.recording, bench.backend, bench.layer, path, bench.first_step, bench.last_step,
                std::min(seconds, state_.deadline.left()), &bench.contracts.of(other));
  const auto contract = std::make_shared<const Contract>(fitted.contract);
  try_contract(contract, {from_step, -1, -1, -1, -1, -1});
  if (from_step < 0 && best_ && best_->hypothesis.rounds == contract.get()) state_.known.push_back({path, contract});
  return clean();
}

/// Takes back every change of the found contract that the recorded bits do not need.
void SceneSearch::minimise() {
  if (!best_ || best_->hypothesis.rounds == nullptr) return;
  const Scope scope = best_->hypothesis.mechanism().scope;
  if (scope.row >= 0 || scope.to_step >= 0) {  // the next layer may show the same
    state_.known.push_back(
        {scene_.plan(scene_.at.step).path, std::make_shared<const Contract>(*best_->hypothesis.rounds), false, scope});
    return;
  }
  const Contract& expected = scene_.bench.contracts.of(scene_.plan(scene_.at.step).path);
  const auto is_minimal = [&](const Known& known) {
    return known.minimal && known.contract.get() == best_->hypothesis.rounds;
  };
  if (std::ranges::any_of(state_.known, is_minimal)) return;
  const auto choices = choices_between(expected, *best_->hypothesis.rounds);
  if (choices.size() == 1 && choices[0].id == "kernel-path") return;  // another kernel is one thing
  const std::size_t wrong = best_->outcome.wrong.size();
  const auto keep_if_as_good = [&](const Contract& contract) {
    if (contract == *best_->hypothesis.rounds || !fitting::possible(contract)) return;
    const Tested before = *best_;
    best_.reset();
    try_contract(std::make_shared<const Contract>(contract), scope);
    if (!best_ || best_->outcome.wrong.size() > wrong) best_ = before;
  };
  for (Dot Contract::*dot : {&Contract::qk_dot, &Contract::state_dot, &Contract::norm_dot}) {
    Contract contract = *best_->hypothesis.rounds;
    contract.*dot = expected.*dot;
    keep_if_as_good(contract);
  }
  for (const auto& [field, value] : contract_fields(expected)) {
    if (field == "shapes") continue;
    Contract contract = *best_->hypothesis.rounds;
    set_contract_field(contract, field, value);
    keep_if_as_good(contract);
  }
  const auto kept = std::make_shared<const Contract>(*best_->hypothesis.rounds);
  best_->hypothesis.rounds = kept.get();
  state_.known.insert(state_.known.begin(), {scene_.plan(scene_.at.step).path, kept, true, scope});
}

bool SceneSearch::try_blocks() {
  constexpr Propose groups[] = {propose_wraps,        propose_events,   propose_missing_writes, propose_columns,
                                propose_wrong_blocks, propose_swaps,    propose_late_events,    propose_padded_rows,
                                propose_windows,      propose_contents, propose_positions};
  return std::ranges::any_of(groups, [&](Propose propose) { return try_group(propose); });
}

bool SceneSearch::try_flips() {
  return try_group(propose_bit) || try_group(propose_flips) || try_group(propose_input_flips);
}

/// What one row did in one step may be what it did from then on, or what every row did.
void SceneSearch::widen() {
  if (!best_ || clean() || !best_->hypothesis.again) return;
  const auto again = best_->hypothesis.again;
  const Scope scope = best_->hypothesis.mechanism().scope;
  const std::int64_t first = scene_.bench.first_step;
  for (const Where& where : {Where{scope.from_step, scope.from_step, -1}, Where{scope.from_step, -1, scope.row},
                             Where{scope.from_step, -1, -1}, Where{first, -1, scope.row}, Where{first, -1, -1}}) {
    Hypothesis wider = again(where);
    wider.whole = where.from < scene_.anchor;
    const Tested narrow = *best_;
    test(wider);
    // A wider scope must do more than move the difference within the step.
    if (!clean() && best_->outcome.wrong.front().unit.step <= scene_.at.step) best_ = narrow;
  }
}

/// A difference so small that a rounding rule is likelier than a flipped bit.
bool SceneSearch::tiny() const {
  const WrongUnit& wrong = scene_.found.wrong.front();
  return rounding_apart(wrong, shape_of(wrong.unit.tap, scene_.model()).type);
}

/// A state of this layer that a row wrote came out before: the contract held until then.
bool SceneSearch::held_before() const {
  return std::ranges::any_of(scene_.bench.recording.snapshots(), [&](const Snapshot& snapshot) {
    return snapshot.layer == scene_.bench.layer && snapshot.step < scene_.at.step &&
           snapshot.step >= scene_.bench.first_step && !rows_of_block(scene_, snapshot.block, 0, snapshot.step).empty();
  });
}

/// What is likely comes first; the search ends where everything comes out.
std::optional<Tested> SceneSearch::run() {
  const bool wide = widespread(scene_.bench, scene_.found), held = held_before();
  const bool rounds_first = wide || tiny();
  const auto roundings = [&] {
    if (held && try_group(propose_roundings_here)) return true;
    return try_group(propose_roundings) || (wide && !held && try_fit(-1, 20));
  };
  (void)(try_known() || (rounds_first && roundings()) || (wide && try_group(propose_layouts)) || try_blocks() ||
         try_group(propose_snapshots) || try_flips() || (!rounds_first && roundings()) ||
         (tiny() && held && try_group(propose_orders_here)) || try_group(propose_words) || try_group(propose_records) ||
         try_group(propose_roundings_here) || try_group(propose_roundings_before) ||
         (!wide && try_group(propose_layouts)));
  const bool pieces = best_ && best_->hypothesis.rounds != nullptr && !best_->hypothesis.whole;
  if (!clean() && (!best_ || pieces))  // one rule before several pieces
    (void)(try_group(held ? propose_orders_here : propose_orders) || try_fit(held ? scene_.at.step : -1, 20));
  widen();
  minimise();
  return best_;
}

}  // namespace gdnsim::explaining
