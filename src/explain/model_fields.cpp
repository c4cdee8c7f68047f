#include "explain/model_fields.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "explain/trial.hpp"
#include "gdnsim/stream_view.hpp"

namespace gdnsim::explaining {
namespace {

constexpr std::int64_t kProbe = 4;  // steps that a change must reproduce before all of them are run

/// The whole's stream, of another model.
class ModelView final : public StreamView {
 public:
  ModelView(Stream& whole, const Model& model) : StreamView(whole), model_(model) {}
  const Model& model() const override { return model_; }

 private:
  const Model model_;
};

/// One field of /model, changed.
struct Change {
  Tap reaches;  // the first tap that the field can change
  std::string says;
  Model model;
};

std::string shortest(float x) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), x).ptr};
}

std::string of_file(const std::string& field, const std::string& is, const std::string& was) {
  return "/model says " + field + " = " + is + "; the provider computed with " + was;
}

void add_numbers(const Model& model, std::vector<Change>& changes) {
  const float K = static_cast<float>(model.K);
  for (const float scale : {1 / std::sqrt(K), 1.0f, 1 / K}) {
    if (scale == model.scale || (scale == 1 && model.use_qk_l2norm)) continue;  // 1 is a q scaled before its norm
    changes.push_back({Tap::q, of_file("scale", shortest(model.scale), shortest(scale)), model});
    changes.back().model.scale = scale;
  }
  for (const float eps : {1e-6f, 1e-5f, 1e-8f, 1e-12f}) {
    if (!model.norm_eps || eps == *model.norm_eps) continue;
    changes.push_back({Tap::rstd, of_file("norm_eps", shortest(*model.norm_eps), shortest(eps)), model});
    changes.back().model.norm_eps = eps;
  }
}

void add_switches(const Model& model, std::vector<Change>& changes) {
  Model other = model;
  other.activation = model.activation == Activation::silu ? Activation::none : Activation::silu;
  const auto name = [](auto value) { return std::string(name_of(value)); };
  changes.push_back({Tap::conv_out, of_file("activation", name(model.activation), name(other.activation)), other});
  if (!model.use_qk_l2norm) {
    other = model;
    other.use_qk_l2norm = true;
    changes.push_back({Tap::q, of_file("use_qk_l2norm", "false", "true"), other});
  }
  other = model;
  other.norm_gate = model.norm_gate == NormGate::silu ? NormGate::sigmoid : NormGate::silu;
  changes.push_back({Tap::norm_out, of_file("norm_gate", name(model.norm_gate), name(other.norm_gate)), other});
}

/// Fields that can be the reason for a first difference in that tap. In conv_out it may be the contract's, chosen under a wrong model.
std::vector<Change> changes_for(const Model& model, Tap first) {
  std::vector<Change> changes;
  add_numbers(model, changes);
  add_switches(model, changes);
  std::erase_if(changes, [&](const Change& change) {
    return first > Tap::conv_out && (change.reaches > first || change.reaches <= Tap::conv_out);
  });
  return changes;
}

/// The first step of the slice that names a block, or -1.
std::int64_t first_active(const Stream& stream, const Slice& slice) {
  for (std::int64_t step = slice.first_step; step < slice.last_step; ++step) {
    const StepPlan plan = stream.plan(step);
    for (const int row : slice.pick.rows_of(plan))
      if (plan.path != Path::opaque && plan.block[static_cast<std::size_t>(row)] >= 0) return step;
  }
  return -1;
}

}  // namespace

bool differs_throughout(Stream& stream, Recording& recording, Backend& backend, const ReplayResult& found) {
  const Slice& slice = found.slice;
  const std::int64_t step = first_active(stream, slice);
  if (step < 0 || !found.first() || found.first()->event || found.first()->step != step) return false;
  const StepPlan plan = stream.plan(step);
  return std::ranges::all_of(slice.layers, [&](int layer) {
    const Bench bench{stream, recording, backend, found.contract.contracts, layer, step, step + 1, slice.pick};
    const Outcome outcome = Trials(bench).run({}, {}, step + 1, false);
    return std::ranges::all_of(slice.pick.rows_of(plan), [&](int row) {
      const auto of_row = [&](const WrongUnit& w) { return w.unit.row == row; };
      return plan.block[static_cast<std::size_t>(row)] < 0 || std::ranges::any_of(outcome.wrong, of_row);
    });
  });
}

std::optional<OtherModel> other_model(Stream& stream, Recording& recording, Backend& backend,
                                      const ReplayOptions& options, const ReplayResult& found) {
  const Divergence& first = *found.first();
  ReplayOptions probe = options;
  probe.slice = found.slice;
  probe.slice.layers = {first.layer};
  probe.slice.last_step = std::min(found.slice.last_step, first.step + kProbe);
  for (const Change& change : changes_for(stream.model(), first.tap)) {
    ModelView other(stream, change.model);
    if (replay(other, recording, backend, probe).verdict != Verdict::match) continue;
    const ReplayResult all = replay(other, recording, backend, options);
    if (all.verdict != Verdict::match) continue;
    const std::string evidence = "re-run with this: all " + std::to_string(all.carried.compared()) +
                                 " recorded elements come out, under the contract " +
                                 contract_name(all.contract.contracts);
    return OtherModel{{"model-field", {}, change.says, evidence, Proof::rerun}, all.contract};
  }
  return std::nullopt;
}

}  // namespace gdnsim::explaining
