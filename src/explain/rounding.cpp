// Hypotheses about rounding: one choice of the contract other than expected, or another preset as a whole.
#include "explain/rounding.hpp"

#include <algorithm>
#include <map>
#include <memory>

#include "explain/kinds.hpp"
#include "fit/search.hpp"

namespace gdnsim::explaining {
namespace {

const std::map<std::string, std::string>& ids() {
  static const std::map<std::string, std::string> table = {{"conv_product", "conv-product"},
                                                           {"conv_taps", "conv-taps"},
                                                           {"conv_bias", "bias-order"},
                                                           {"conv_sum", "conv-product"},
                                                           {"exp", "exp"},
                                                           {"negate", "exp"},
                                                           {"div", "div"},
                                                           {"sqrt", "sqrt"},
                                                           {"softplus", "softplus"},
                                                           {"beta", "beta-bf16"},
                                                           {"params", "params-bf16"},
                                                           {"qk_norm", "div"},
                                                           {"qk_eps", "qk-eps"},
                                                           {"scale", "scale-order"},
                                                           {"update", "update-fma"},
                                                           {"state_store", "state-store-bf16"},
                                                           {"head_map", "head-map"},
                                                           {"norm", "norm-cast-order"},
                                                           {"rstd", "sqrt"},
                                                           {"decay", "gate-domain"}};
  return table;
}

/// The first tap that a field can change.
Tap first_tap_of(const std::string& field) {
  static const std::map<std::string, Tap> table = {{"conv_product", Tap::conv_acc},
                                                   {"conv_taps", Tap::conv_acc},
                                                   {"conv_bias", Tap::conv_acc},
                                                   {"conv_sum", Tap::conv_acc},
                                                   {"exp", Tap::conv_out},
                                                   {"div", Tap::conv_out},
                                                   {"negate", Tap::conv_out},
                                                   {"sqrt", Tap::q},
                                                   {"qk_norm", Tap::q},
                                                   {"qk_eps", Tap::q},
                                                   {"scale", Tap::q},
                                                   {"beta", Tap::beta},
                                                   {"softplus", Tap::g},
                                                   {"params", Tap::g},
                                                   {"decay", Tap::decay},
                                                   {"head_map", Tap::dot_k},
                                                   {"update", Tap::state},
                                                   {"state_store", Tap::state},
                                                   {"norm", Tap::rstd},
                                                   {"rstd", Tap::rstd}};
  if (field.starts_with("qk_dot")) return Tap::q;
  if (field.starts_with("state_dot")) return Tap::dot_k;
  if (field.starts_with("norm_dot")) return Tap::rstd;
  const auto found = table.find(field);
  return found == table.end() ? Tap::conv_acc : found->second;
}

/// Can the field change the first wrong unit, given what agreed before it in the step?
bool reaches(const Scene& scene, const std::string& field) {
  const Tap tap = scene.at.tap;
  if (first_tap_of(field) > tap) return false;
  const TapSet taps = scene.bench.recording.taps(scene.bench.layer);
  const bool conv_only = field.starts_with("conv_");
  if (conv_only && tap > Tap::conv_state && taps.has(Tap::conv_out)) return false;
  const bool norm_stage = tap == Tap::rstd || tap == Tap::norm_out;
  const bool norm_field = field.starts_with("norm") || field == "rstd" || field == "exp" || field == "div" ||
                          field == "negate" || field == "sqrt";
  return !norm_stage || norm_field || !taps.has(Tap::core_out);
}

using Variant = std::shared_ptr<const Contract>;

/// Contracts other than expected, each once.
class Variants {
 public:
  explicit Variants(const Contract& expected) : expected_(expected) {}
  void add(const Contract& contract) {
    const bool seen =
        contract == expected_ || std::ranges::any_of(list_, [&](const Variant& v) { return *v == contract; });
    if (!seen) list_.push_back(std::make_shared<const Contract>(contract));
  }
  std::vector<Variant> take() { return std::move(list_); }

 private:
  const Contract& expected_;
  std::vector<Variant> list_;
};

/// One dot with another product, as a preset has it, with other rows whose S.k is in order.
void vary_dot(const Contract& expected, Dot Contract::*dot, Variants& variants) {
  Contract contract = expected;  // rounded products or fused ones, the order kept
  (contract.*dot).product = (expected.*dot).product == Product::fma ? Product::rounded : Product::fma;
  if ((contract.*dot).exchange == Exchange::plain) variants.add(contract);
  contract = expected;
  for (const Contract& preset : contract_presets()) contract.*dot = preset.*dot, variants.add(contract);
  contract = expected;
  for (SequentialK rows : {SequentialK::none, SequentialK::all, SequentialK::last_pass})
    if (dot == &Contract::state_dot && expected.state_dot.order == LaneOrder::swapped)
      contract.state_dot.sequential_k = rows, variants.add(contract);
}

void vary_dots(const Scene& scene, const Contract& expected, bool all_dots, Variants& variants) {
  const Model& model = scene.model();
  const DotContext context{model.state_dtype, std::int64_t{scene.bench.stream.rows()} * model.HV,
                           expected.multiprocessors};
  const std::tuple<const char*, Dot Contract::*, int> dots[] = {{"qk_dot", &Contract::qk_dot, model.K},
                                                                {"state_dot", &Contract::state_dot, model.K},
                                                                {"norm_dot", &Contract::norm_dot, model.V}};
  for (const auto& [name, dot, n] : dots) {
    if (!reaches(scene, name)) continue;
    vary_dot(expected, dot, variants);
    if (!all_dots) continue;
    for (const auto& set : fitting::dot_dimension(name, dot, n, context).values) {
      Contract contract = expected;
      set(contract);
      variants.add(contract);
    }
  }
}

/// Contracts with one field other than expected, then the presets.
std::vector<Variant> single_fields(const Scene& scene, const Contract& expected, bool all_dots) {
  Variants variants(expected);
  for (const auto& [field, value] : contract_fields(expected)) {
    if (field == "shapes" || field == "multiprocessors" || field.find('.') != std::string::npos ||
        !reaches(scene, field))
      continue;
    for (const std::string& other : contract_field_values(field)) {
      Contract contract = expected;
      set_contract_field(contract, field, other);
      variants.add(contract);
    }
  }
  vary_dots(scene, expected, all_dots, variants);
  for (Contract preset : contract_presets()) {
    preset.shapes = Shapes::any;
    variants.add(preset);
  }
  return variants.take();
}

Hypothesis under(const Scene& scene, const Variant& variant, const Contract& expected, const Scope& scope, bool whole) {
  Hypothesis hypothesis;
  hypothesis.whole = whole;
  hypothesis.rounds = variant.get();
  hypothesis.twists = {under_contract(variant, scene.plan(scene.at.step).path, scope)};
  for (const Choice& choice : choices_between(expected, *variant))
    hypothesis.mechanisms.push_back({choice.id, scope, choice.words, "", Proof::rerun});
  if (hypothesis.mechanisms.empty()) hypothesis.mechanisms = {{"kernel-path", scope, variant->name, "", Proof::rerun}};
  return hypothesis;
}

}  // namespace

Twist under_contract(const std::shared_ptr<const Contract>& contract, Path path, const Scope& scope) {
  Twist twist;
  twist.contract = [=](const StepPlan& plan, int row) -> const Contract* {
    const bool in = plan.path == path && (scope.row < 0 || row == scope.row) && plan.step >= scope.from_step &&
                    (scope.to_step < 0 || plan.step <= scope.to_step);
    return in ? contract.get() : nullptr;
  };
  return twist;
}

std::string mechanism_of_field(const std::string& field, const std::string& value) {
  if (field.ends_with(".product")) return "dot-fma";
  if (field.find('.') != std::string::npos) return "dot-order";
  if (field == "qk_norm" && value == "none") return "qk-norm-missing";
  if (field == "decay" && value == "none") return "decay-lost";
  if (field == "norm" && value == "gate-first") return "norm-gate-order";
  const auto found = ids().find(field);
  return found == ids().end() ? "kernel-path" : found->second;
}

namespace {

/// A dot that is summed in another order anyway: its product rounding is part of the order.
void fold_products(std::vector<Choice>& choices) {
  const auto order = std::ranges::find(choices, "dot-order", &Choice::id),
             fma = std::ranges::find(choices, "dot-fma", &Choice::id);
  if (order == choices.end() || fma == choices.end()) return;
  const auto same_dot = [&](const std::string& field) {
    const std::string dot = field.substr(0, field.find('.'));
    return std::ranges::any_of(order->fields, [&](const std::string& other) { return other.starts_with(dot + "."); });
  };
  if (!std::ranges::all_of(fma->fields, same_dot)) return;
  order->words += ", " + fma->words;
  choices.erase(fma);
}

/// The preset of another kernel that `found` is as a whole, if one of the two is for mixed steps.
const Contract* other_kernel(const Contract& expected, const Contract& found) {
  for (const Contract& preset : contract_presets()) {
    Contract same = found;
    same.name = preset.name, same.shapes = preset.shapes, same.multiprocessors = preset.multiprocessors;
    const bool mixed =
        preset.name.find("mixed") != std::string::npos || expected.name.find("mixed") != std::string::npos;
    if (same == preset && mixed) return &preset;
  }
  return nullptr;
}

}  // namespace

std::vector<Choice> choices_between(const Contract& expected, const Contract& found) {
  const auto before = contract_fields(expected), after = contract_fields(found);
  std::vector<Choice> choices;
  std::size_t changes = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const auto& [field, value] = after[i];
    if (value == before[i].second || field == "shapes" || field == "multiprocessors") continue;
    ++changes;
    std::string id = mechanism_of_field(field, value);
    if (field == "norm" && before[i].second == "gate-first") id = "norm-gate-order";
    if (field == "qk_norm" && before[i].second == "none") id = "qk-norm-missing";
    if (field == "decay" && before[i].second == "none") id = "decay-lost";
    auto at = std::ranges::find(choices, id, &Choice::id);
    if (at == choices.end()) at = choices.insert(choices.end(), {id, {}, ""});
    at->fields.push_back(field);
    at->words += (at->words.empty() ? "" : ", ") + field + " = " + value + " (" + before[i].second + " expected)";
  }
  fold_products(choices);
  if (changes < 3) return choices;
  if (const Contract* other = other_kernel(expected, found))
    return {{"kernel-path", {}, "computed as '" + other->name + "' does, '" + expected.name + "' was expected"}};
  return choices;
}

namespace {

void whole_layer(const Scene& scene, bool all_orders, Hypotheses& out) {
  const Contract& expected = scene.bench.contracts.of(scene.plan(scene.at.step).path);
  for (const Variant& variant : single_fields(scene, expected, all_orders))
    out.push_back(under(scene, variant, expected, {-1, -1, scene.bench.layer, -1, -1, -1}, true));
}

}  // namespace

void propose_roundings(const Scene& scene, Hypotheses& out) { whole_layer(scene, false, out); }
void propose_orders(const Scene& scene, Hypotheses& out) { whole_layer(scene, true, out); }

namespace {

/// Other choices from a step on, in one step, in one row.
void late_roundings(const Scene& scene, const std::vector<RowStep>& places, Hypotheses& out) {
  const Contract& expected = scene.bench.contracts.of(scene.plan(scene.at.step).path);
  const auto variants = single_fields(scene, expected, false);
  const int layer = scene.bench.layer;
  for (const RowStep& place : places)
    for (const Scope& scope :
         {Scope{place.step, -1, layer, -1, -1, -1}, Scope{place.step, place.step, layer, -1, -1, -1},
          Scope{place.step, place.step, layer, place.row, -1, -1}, Scope{place.step, -1, layer, place.row, -1, -1}})
      for (const Variant& variant : variants) out.push_back(under(scene, variant, expected, scope, false));
}

std::vector<RowStep> places_of(const Scene& scene) {
  auto rows = rows_of_block(scene, scene.at.block, scene.anchor, scene.at.step);
  if (rows.size() > 8) rows.resize(8);
  return rows;
}

}  // namespace

void propose_roundings_here(const Scene& scene, Hypotheses& out) {
  const auto places = places_of(scene);
  if (!places.empty()) late_roundings(scene, {places.front()}, out);
}

void propose_orders_here(const Scene& scene, Hypotheses& out) {
  const Contract& expected = scene.bench.contracts.of(scene.plan(scene.at.step).path);
  std::vector<std::int64_t> steps;
  for (const RowStep& place : places_of(scene))
    if (steps.size() < 3) steps.push_back(place.step);
  for (const std::int64_t step : steps)
    for (const Variant& variant : single_fields(scene, expected, true))
      out.push_back(under(scene, variant, expected, {step, -1, scene.bench.layer, -1, -1, -1}, false));
}

void propose_roundings_before(const Scene& scene, Hypotheses& out) {
  const auto places = places_of(scene);
  if (places.size() > 1) late_roundings(scene, {places.begin() + 1, places.end()}, out);
}

}  // namespace gdnsim::explaining
