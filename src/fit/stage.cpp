// Fitting one path: presets, then conv, recurrent and norm in turn, each handing on what it leaves possible.
#include "fit/stage.hpp"

#include <algorithm>
#include <utility>

namespace gdnsim::fitting {
namespace {

// Steps of the small probes, of the large one, and of those that later evidence adds; state rows likewise.
constexpr std::int64_t kSmallSteps = 6, kLargeSteps = 32, kMoreSteps = 256;
constexpr int kMaxMultiprocessors = 65536;
constexpr std::int64_t kTinyRows = 250, kSmallRows = 2500, kLargeRows = 60000, kMoreRows = 150000;

std::string value_of_field(const Contract& contract, const std::string& field) {
  for (const auto& [name, value] : contract_fields(contract))
    if (name == field) return value;
  return "";
}

/// The choices that a stage reads, from one contract to another.
void copy_choices(const Stage& stage, const Contract& from, Contract& to) {
  for (const std::string& field : stage.fields) set_contract_field(to, field, value_of_field(from, field));
  for (const auto& [name, dot] : stage.dots) to.*dot = from.*dot;
}

/// Lanes `by-rows` have one of two widths; the number of multiprocessors nearest to the contract's at which they have
/// the other one.
int other_side(const Contract& contract, std::int64_t launch_rows) {
  const auto most = static_cast<int>((launch_rows + 1) / 2);  // from here on a block takes one row
  const bool one_row = rows_per_block(launch_rows, contract.multiprocessors) == 1;
  if (one_row) return most > 1 ? most - 1 : contract.multiprocessors;
  return std::min(most, kMaxMultiprocessors);
}

std::int64_t trials_of(const std::vector<Search>& levels) {
  std::int64_t trials = 0;
  for (const Search& search : levels) trials += search.trials();
  return trials;
}

std::size_t count_changes(const Contract& a, const Contract& b) {
  const auto x = contract_fields(a), y = contract_fields(b);
  std::size_t changes = 0;
  for (std::size_t i = 0; i < x.size(); ++i) changes += x[i] != y[i] && x[i].first != "shapes";
  return changes;
}

}  // namespace

std::vector<Probe*> Stage::probes() {
  std::vector<Probe*> all{&tiny, &small};
  for (Probe& probe : large)
    if (!probe.empty()) all.push_back(&probe);
  return all;
}

std::vector<Probe*> Stage::larges() {
  std::vector<Probe*> all = probes();
  all.erase(all.begin(), all.begin() + 2);
  return all;
}

std::vector<Stage> make_stages(const std::vector<Source>& sources, Backend& backend) {
  const Model& model = sources.front().stream.model();
  const std::vector<std::string> conv_fields{"conv_product", "conv_taps", "conv_bias", "conv_sum"};
  Stage conv{"conv", {}, {}, {}, conv_fields, {}, 1};
  Stage recurrent{"recurrent",
                  {},
                  {},
                  {},
                  {"softplus", "beta", "params", "decay", "qk_norm", "qk_eps", "sqrt", "scale", "update", "state_store",
                   "head_map", "state_dot.sequential_k"},
                  {{"qk_dot", &Contract::qk_dot}, {"state_dot", &Contract::state_dot}},
                  model.K};
  Stage norm{"norm", {}, {}, {}, {"norm", "rstd", "sqrt"}, {{"norm_dot", &Contract::norm_dot}}, model.V};
  if (!sources.front().recording.taps(sources.front().layer).has(Tap::conv_out))  // then its probe runs the conv too
    recurrent.fields.insert(recurrent.fields.end(), conv_fields.begin(), conv_fields.end());
  for (const Source& source : sources) {
    const bool first = &source == &sources.front();
    const Window window = known_window(source, backend, first ? kLargeSteps : kMoreSteps);
    conv.large.push_back(conv_probe(source, window));
    recurrent.large.push_back(recurrent_probe(source, window, first ? kLargeRows : kMoreRows));
    norm.large.push_back(norm_probe(source, window));
    if (!first) continue;
    const Window some = first_blocks(first_steps(window, kSmallSteps), kSmallRows / model.HV);
    const Window few = first_blocks(some, kTinyRows / model.HV);
    conv.small = conv_probe(source, some), conv.tiny = conv_probe(source, few);
    recurrent.small = recurrent_probe(source, some, kSmallRows);
    recurrent.tiny = recurrent_probe(source, few, kTinyRows);
    norm.small = norm_probe(source, some), norm.tiny = norm_probe(source, few);
  }
  std::vector<Stage> stages;
  for (Stage* stage : {&conv, &recurrent, &norm}) stages.push_back(std::move(*stage));
  return stages;
}

Stages::Stages(const std::vector<Source>& sources, Backend& backend, const Deadline& deadline, const Contract* hint,
               const std::function<void(const std::string&)>& progress)
    : sources_(sources),
      backend_(backend),
      deadline_(deadline),
      hint_(hint),
      progress_(progress),
      stages_(make_stages(sources_, backend)),
      trials_(stages_.size()) {}

std::int64_t Stages::launch_rows() const {
  const Stream& stream = sources_.front().stream;
  return std::int64_t{stream.rows()} * stream.model().HV;
}

void Stages::run(FitPath& found) {
  if (!by_presets(found)) {
    found.contract.name = "fitted";
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (progress_) progress_(stages_[i].name);
      search(stages_[i], found.contract, trials_[i]);
    }
    simplify(found);
  }
  describe(found);
  if (progress_) progress_("undecided choices");
  find_undecided(found);
  find_multiprocessors(found);
}

/// Takes the first preset that reproduces every probe, if there is one.
bool Stages::by_presets(FitPath& found) {
  for (const Contract& preset : contract_presets()) {
    if (!undefined_because(preset, sources_.front().stream.model()).empty()) continue;
    bool all = true;
    for (std::size_t i = 0; all && i < stages_.size(); ++i)
      all = stages_[i].empty() || (++trials_[i], is_exact(stages_[i], preset));
    if (all) found.presets.push_back(preset.name);
  }
  if (found.presets.empty()) return false;
  found.contract = contract_preset(found.presets.front());
  return true;
}

std::vector<Dimension> Stages::singles_of(const Stage& stage) const {
  std::vector<Dimension> dimensions{functions_dimension(functions_)};
  for (const std::string& field : stage.fields)
    if (field != "sqrt") dimensions.push_back(field_dimension(field));
  if (std::ranges::find(stage.fields, "sqrt") == stage.fields.end()) return dimensions;
  Dimension roots{"sqrt", {}};
  for (Sqrt root : roots_) roots.values.push_back([root](Contract& contract) { contract.sqrt = root; });
  dimensions.push_back(std::move(roots));
  return dimensions;
}

std::vector<Dimension> Stages::dots_of(const Stage& stage) const {
  const DotContext context{sources_.front().stream.model().state_dtype, launch_rows(), Contract{}.multiprocessors};
  std::vector<Dimension> dimensions;
  for (const auto& [name, dot] : stage.dots) dimensions.push_back(dot_dimension(name, dot, stage.dot_row, context));
  return dimensions;
}

/// The presets' choices for this stage, the nearest to the recorded bits first.
std::vector<Found> Stages::starts_of(const Stage& stage, const Contract& contract, Search& search) const {
  std::vector<Found> starts;
  std::vector<const Contract*> froms;
  if (hint_ != nullptr) froms.push_back(hint_);
  for (const Contract& preset : contract_presets()) froms.push_back(&preset);
  for (const Contract* from : froms) {
    const Contract& preset = *from;
    Contract start = contract;
    copy_choices(stage, preset, start);
    const bool allowed = std::ranges::find(functions_, functions_of(preset)) != functions_.end();
    set_functions(start, allowed ? functions_of(preset) : functions_.front());
    if (std::ranges::find(roots_, start.sqrt) == roots_.end()) start.sqrt = roots_.front();
    if (std::ranges::find(starts, start, &Found::contract) == starts.end()) starts.push_back(search.try_one(start));
  }
  std::ranges::stable_sort(starts, {}, [](const Found& found) { return found.score.cost; });
  return starts;
}

/// Is one of the starts exact, or one near it? Dots are changed only beside two fields.
Found Stages::search_near(Stage& stage, const Contract& contract, const Deadline& deadline, Near near,
                          std::int64_t& trials) {
  Search search(stage.probes(), backend_, deadline);
  const auto singles = singles_of(stage), dots = near == Near::one ? std::vector<Dimension>{} : dots_of(stage);
  std::vector<Found> starts = starts_of(stage, contract, search);
  for (Found& start : starts)
    if (search.exact_nearby(start, singles, dots, near)) break;
  trials += search.trials();
  return *std::ranges::min_element(starts, {}, [](const Found& found) { return found.score.cost; });
}

/// Descends from every start, on larger and larger probes, until one descent ends at the recorded bits; then two
/// choices at a time from where the best one ended, near it first.
Found Stages::search_far(Stage& stage, const Contract& contract, const Deadline& deadline, std::int64_t& trials) {
  std::vector<Search> levels;
  levels.emplace_back(std::vector<Probe*>{&stage.tiny}, backend_, deadline);
  levels.emplace_back(std::vector<Probe*>{&stage.small}, backend_, deadline);
  levels.emplace_back(stage.larges(), backend_, deadline);
  const auto singles = singles_of(stage), dots = dots_of(stage);
  std::vector<Found> starts = starts_of(stage, contract, levels[0]);
  const auto climb = [&](Found& found, bool pairs) {
    std::size_t level = 0;
    for (; level < levels.size(); ++level) {
      if (level > 0) found = levels[level].try_one(found.contract);
      levels[level].descend(found, singles, dots);
      if (pairs) levels[level].descend_by_pairs(found, singles, dots);
      if (found.score.cost > 0) break;
    }
    return level;
  };
  Found best = starts.front();
  std::size_t reached = 0;
  for (Found& start : starts) {
    const std::size_t level = climb(start, false);
    if (level == levels.size()) return trials += trials_of(levels), start;
    if (level > reached || (level == reached && start.score.cost < best.score.cost)) best = start, reached = level;
  }
  Search all(stage.probes(), backend_, deadline);
  Found close = all.try_one(best.contract);
  if (reached > 0 && all.exact_nearby(close, singles, dots, Near::two)) return trials += all.trials(), close;
  best = levels[0].try_one(best.contract);
  climb(best, true);
  trials += trials_of(levels) + all.trials();
  return {best.contract, judge(stage.probes(), backend_, best.contract)};
}

/// Near the starts and farther off, with all rows; in between and after, with parts of them left out.
void Stages::search(Stage& stage, Contract& contract, std::int64_t& trials) {
  if (stage.empty()) return;
  const double seconds = deadline_.left() * (stage.name == "norm" ? 1 : 0.6);
  const Deadline mine(seconds), most(seconds * 0.7);
  const std::vector<Mask> masks = sources_.size() > 1 ? std::vector<Mask>{} : masks_for(stage.small);
  Found best = search_near(stage, contract, mine, Near::one, trials);
  bool exact = best.score.cost == 0;
  const auto try_masks = [&](bool quick, const auto& search_one) {
    for (std::size_t i = 0; !exact && i < masks.size() && !mine.over(); ++i) {
      apply(masks[i], stage);
      const Found part = search_one();
      exact = part.score.cost == 0 && ignore_wrong_rows(stage, backend_, part.contract, quick);
      if (exact) best = part;
    }
    if (!exact) apply({}, stage);
  };
  try_masks(true, [&] { return search_near(stage, contract, mine, Near::one, trials); });
  if (!exact) {
    best = search_near(stage, contract, most, Near::two_fields, trials);
    if (best.score.cost > 0) best = search_far(stage, contract, most, trials);
    exact = best.score.cost == 0 || (!masks.empty() && ignore_wrong_rows(stage, backend_, best.contract, false));
  }
  try_masks(false, [&] { return search_far(stage, contract, mine, trials); });
  contract = best.contract;
  if (exact) narrow(stage, contract, trials);
}

/// Of the contracts that the probes do not tell apart, the one that is a preset with the fewest changes: choices that
/// nothing shows are the preset's.
void Stages::simplify(FitPath& found) {
  std::size_t fewest = contract_fields(found.contract).size();
  const Contract fitted = found.contract;
  describe(found);
  for (const Contract& preset : contract_presets()) {
    const Contract candidate = toward(preset, fitted, found);
    const std::size_t changes = count_changes(preset, candidate);
    if (changes >= fewest) continue;
    fewest = changes;
    found.contract = candidate;
  }
}

/// Moves every choice that leaves the exact stages exact to the preset's, dots as a whole first; in stages that did not
/// match no choice is moved that makes them worse.
Contract Stages::toward(const Contract& preset, Contract contract, const FitPath& found) {
  std::vector<std::uint64_t> costs;
  for (Stage& stage : stages_) costs.push_back(stage.empty() ? 0 : judge(stage.probes(), backend_, contract).cost);
  const auto accept = [&](const Contract& other) {
    if (other == contract || !possible(other)) return;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (found.stages[i].compared == 0 || !reads_any(stages_[i], contract, other)) continue;
      if (judge(stages_[i].probes(), backend_, other, costs[i] + 1).cost > costs[i]) return;
    }
    contract = other;
  };
  Contract all = contract;
  for (Dot Contract::*dot : {&Contract::qk_dot, &Contract::state_dot, &Contract::norm_dot}) {
    all = contract;
    all.*dot = preset.*dot;
    accept(all);
    all.multiprocessors = other_side(all, launch_rows());
    accept(all);
  }
  all = contract;
  set_functions(all, functions_of(preset));
  accept(all);
  for (const auto& [field, value] : contract_fields(preset)) {
    if (field == "shapes") continue;
    all = contract;
    set_contract_field(all, field, value);
    accept(all);
  }
  return contract;
}

/// Keeps those functions and roots under which the stage's bits stay the recorded ones.
void Stages::narrow(Stage& stage, const Contract& contract, std::int64_t& trials) {
  std::vector<Functions> left;
  for (const Functions& functions : functions_) {
    Contract other = contract;
    set_functions(other, functions);
    ++trials;
    if (is_exact(stage, other)) left.push_back(functions);
  }
  functions_ = left;
  if (std::ranges::find(stage.fields, "sqrt") == stage.fields.end()) return;
  std::vector<Sqrt> roots;
  for (Sqrt root : roots_) {
    Contract other = contract;
    other.sqrt = root;
    ++trials;
    if (is_exact(stage, other)) roots.push_back(root);
  }
  roots_ = roots;
}

void Stages::describe(FitPath& found) {
  found.stages.clear();
  found.except.clear();
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    Stage& stage = stages_[i];
    FitStage report{stage.name, !stage.empty(), "", trials_[i], 0, 0, 0};
    for (Probe& probe : stage.large) {
      if (probe.empty()) continue;
      const std::set<Unit> ignored = std::exchange(probe.ignored, {});
      std::set<Unit> wrong;
      const Score score = evaluate(probe, backend_, found.contract, kNoLimit, &wrong);
      probe.ignored = ignored;
      report.compared += score.compared;
      report.differing += score.differing;
      report.cost += score.cost;
      if (report.probe.empty()) report.probe = probe.words;
      for (const Unit& unit : wrong)
        if (ignored.contains(unit)) found.except.push_back({stage.name, probe.at[unit.step].plan.step, unit.row});
    }
    found.stages.push_back(report);
  }
}

}  // namespace gdnsim::fitting
