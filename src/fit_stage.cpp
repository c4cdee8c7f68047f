// Fitting one path: presets, then conv, recurrent and norm in turn, each handing on what it leaves possible.
#include "fit_stage.hpp"

#include <algorithm>

namespace gdnsim::fitting {
namespace {

constexpr ProbeSize kSmall{6, 2500}, kLarge{32, 60000};

std::vector<Stage> make_stages(const Source& source) {
  const Model& model = source.stream.model();
  std::vector<Stage> stages;
  stages.push_back({"conv",
                    conv_probe(source, kSmall),
                    conv_probe(source, kLarge),
                    {"conv_product", "conv_taps", "conv_bias"},
                    {},
                    1});
  stages.push_back(
      {"recurrent",
       recurrent_probe(source, kSmall),
       recurrent_probe(source, kLarge),
       {"softplus", "beta", "params", "qk_norm", "qk_eps", "sqrt", "scale", "update", "state_store", "head_map"},
       {{"qk_dot", &Contract::qk_dot}, {"state_dot", &Contract::state_dot}},
       model.K});
  stages.push_back({"norm",
                    norm_probe(source, kSmall),
                    norm_probe(source, kLarge),
                    {"norm", "rstd", "sqrt"},
                    {{"norm_dot", &Contract::norm_dot}},
                    model.V});
  return stages;
}

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

std::size_t count_changes(const Contract& a, const Contract& b) {
  const auto x = contract_fields(a), y = contract_fields(b);
  std::size_t changes = 0;
  for (std::size_t i = 0; i < x.size(); ++i) changes += x[i] != y[i] && x[i].first != "shapes";
  return changes;
}

}  // namespace

Stages::Stages(const Source& source, Backend& backend, const Deadline& deadline,
               const std::function<void(const std::string&)>& progress)
    : source_(source),
      backend_(backend),
      deadline_(deadline),
      progress_(progress),
      stages_(make_stages(source_)),
      trials_(stages_.size()) {}

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
}

/// Takes the first preset that reproduces every probe, if there is one.
bool Stages::by_presets(FitPath& found) {
  for (const Contract& preset : contract_presets()) {
    if (!undefined_because(preset, source_.stream.model()).empty()) continue;
    const auto reproduces = [&](Probe& probe, std::int64_t& trials) {
      return probe.empty() || (++trials, evaluate(probe, backend_, preset, 1).cost == 0);
    };
    bool all = true;
    for (std::size_t i = 0; all && i < stages_.size(); ++i)
      all = reproduces(stages_[i].small, trials_[i]) && reproduces(stages_[i].large, trials_[i]);
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
  const DotContext context{source_.stream.model().state_dtype,
                           std::int64_t{source_.stream.rows()} * source_.stream.model().HV, 132};
  std::vector<Dimension> dimensions;
  for (const auto& [name, dot] : stage.dots) dimensions.push_back(dot_dimension(name, dot, stage.dot_row, context));
  return dimensions;
}

/// The presets' choices for this stage, the nearest to the recorded bits first.
std::vector<Found> Stages::starts_of(const Stage& stage, const Contract& contract, Search& search) const {
  std::vector<Found> starts;
  for (const Contract& preset : contract_presets()) {
    Contract start = contract;
    copy_choices(stage, preset, start);
    const bool allowed = std::ranges::find(functions_, functions_of(preset)) != functions_.end();
    set_functions(start, allowed ? functions_of(preset) : functions_.front());
    if (std::ranges::find(roots_, start.sqrt) == roots_.end()) start.sqrt = roots_.front();
    starts.push_back(search.try_one(start));
  }
  std::ranges::stable_sort(starts, {}, [](const Found& found) { return found.score.cost; });
  return starts;
}

/// Descends from every preset until one descent ends at the recorded bits, then by pairs from the best; a large probe
/// confirms.
void Stages::search(Stage& stage, Contract& contract, std::int64_t& trials) {
  if (stage.small.empty()) return;
  const Deadline mine(deadline_.left() * (stage.name == "norm" ? 1 : 0.6));
  Search search(stage.small, backend_, mine), confirm(stage.large, backend_, mine);
  const auto singles = singles_of(stage), dots = dots_of(stage);
  std::vector<Found> starts = starts_of(stage, contract, search);
  const bool nearby =
      std::ranges::any_of(starts, [&](Found& start) { return search.exact_nearby(start, singles, dots); });
  for (Found& start : starts) {
    if (nearby) break;
    search.descend(start, singles, dots);
    if (start.score.cost == 0) break;
  }
  Found best = *std::ranges::min_element(starts, {}, [](const Found& found) { return found.score.cost; });
  search.descend_by_pairs(best, singles, dots);
  Found confirmed = confirm.try_one(best.contract);
  confirm.descend(confirmed, singles, dots);
  contract = confirmed.contract;
  trials += search.trials() + confirm.trials();
  if (confirmed.score.cost > 0) return;
  narrow_functions(stage, contract, trials);
  narrow_sqrt(stage, contract, trials);
}

/// Of the contracts that the probes do not tell apart, the one that is a preset with the fewest changes: choices that
/// nothing shows
/// are the preset's.
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

/// Moves every choice that leaves the exact stages exact to the preset's, dots as a whole first; in stages that did
/// not match no
/// choice is moved that makes them worse.
Contract Stages::toward(const Contract& preset, Contract contract, const FitPath& found) {
  const auto accept = [&](const Contract& other) {
    if (other == contract || !possible(other)) return;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (found.stages[i].compared == 0 || !reads_any(stages_[i], contract, other)) continue;
      Stage& stage = stages_[i];
      const std::uint64_t limit = found.stages[i].cost + 1;
      if (found.stages[i].cost == 0 && evaluate(stage.small, backend_, other, 1).cost > 0) return;
      if (evaluate(stage.large, backend_, other, limit).cost >= limit) return;
    }
    contract = other;
  };
  Contract all = contract;
  for (Dot Contract::*dot : {&Contract::qk_dot, &Contract::state_dot, &Contract::norm_dot}) {
    all = contract;
    all.*dot = preset.*dot;
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

/// Keeps those functions under which the stage's bits stay the recorded ones.
void Stages::narrow_functions(Stage& stage, const Contract& contract, std::int64_t& trials) {
  std::vector<Functions> left;
  for (const Functions& functions : functions_) {
    Contract other = contract;
    set_functions(other, functions);
    ++trials;
    if (evaluate(stage.large, backend_, other, 1).cost == 0) left.push_back(functions);
  }
  functions_ = left;
}

void Stages::narrow_sqrt(Stage& stage, const Contract& contract, std::int64_t& trials) {
  if (std::ranges::find(stage.fields, "sqrt") == stage.fields.end()) return;
  std::vector<Sqrt> left;
  for (Sqrt root : roots_) {
    Contract other = contract;
    other.sqrt = root;
    ++trials;
    if (evaluate(stage.large, backend_, other, 1).cost == 0) left.push_back(root);
  }
  roots_ = left;
}

void Stages::describe(FitPath& found) {
  found.stages.clear();
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    Stage& stage = stages_[i];
    FitStage report{stage.name, !stage.large.empty(), stage.large.words, trials_[i], 0, 0, 0};
    if (report.recorded) {
      const Score score = evaluate(stage.large, backend_, found.contract);
      report.compared = score.compared;
      report.differing = score.differing;
      report.cost = score.cost;
    }
    found.stages.push_back(report);
  }
}

}  // namespace gdnsim::fitting
