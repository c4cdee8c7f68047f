// Which norms are examined: the gated norm of a head, by itself and in a step, and the decoder's plain one.
#include <array>

#include "check/norm_batteries.hpp"
#include "check/norm_words.hpp"
#include "check/scene.hpp"

namespace gdnsim {
namespace {

constexpr const char* kStepAgainstRows = "the step's norm against the norm alone";

/// A gate for each norm that the contract leaves undefined, so that nothing goes missing in silence.
bool is_defined(const Subject& subject, CheckStage stage, const NormSpec& spec, std::vector<Gate>& gates) {
  const std::string why = undefined_because(subject.options.contract, spec);
  if (!why.empty())
    gates.push_back(skipped_gate(stage, subject.options.batteries.front(), "every battery", describe(spec), why));
  return why.empty();
}

/// The batteries of one norm, each behind its question.
class Norms {
 public:
  Norms(const Subject& subject, CheckStage stage, const NormSpec& spec, std::vector<Gate>& gates)
      : subject_(subject),
        stages_{stage},
        spec_(spec),
        shape_(describe(spec)),
        gates_(gates),
        batteries_(subject, stage, spec, gates) {}

  void repeats() {
    ask(Battery::L0, "50 repeats", [this] { batteries_.repeats(); });
  }
  void invariance() {
    ask(Battery::L1, "batch sizes", [this] { batteries_.batches(); });
    ask(Battery::L1, "parts of a full batch", [this] { batteries_.parts(); });
  }
  /// Against golden's norm, and against what golden's own is held to.
  void against_others(std::int64_t rows) {
    ask(Battery::L2, "against golden", [&] { batteries_.against_reference(rows); });
    if (is_written_out(spec_, subject_.options.contract))
      ask(Battery::L2, kAgainstRules, [&] { batteries_.against_rules(rows); });
  }
  /// Rule N8 leaves out the gate that comes first: its root is that of other values.
  void shared_root(std::int64_t rows) {
    constexpr const char* kName = "rstd as in the gated norm";
    if (subject_.options.contract.norm != Norm::gate_first)
      ask(Battery::L2, kName, [&] { batteries_.shared_root(rows); });
    else if (subject_.has(Battery::L2))
      gates_.push_back(skipped_gate(stages_[0], Battery::L2, kName, shape_,
                                    "with norm = gate-first the root is that of the gated values (rule N8)"));
  }
  void accuracy(std::int64_t rows) {
    ask(Battery::accuracy, of(rows), [&] { batteries_.accuracy(rows); });
  }
  void time(std::int64_t rows) {
    ask(Battery::time, of(rows), [&] { batteries_.time(rows); });
  }
  void ask(Battery battery, const std::string& name, const std::function<void()>& run) {
    if (subject_.has(battery)) attempt(subject_.options, {battery, name, shape_, stages_}, gates_, run);
  }

 private:
  static std::string of(std::int64_t rows) { return std::to_string(rows) + " rows"; }

  const Subject& subject_;
  const std::array<CheckStage, 1> stages_;
  const NormSpec spec_;
  const std::string shape_;
  std::vector<Gate>& gates_;
  NormBatteries batteries_;
};

/// The step's own norm against the operator on its core_out: two ways to one set of bits.
void step_against_rows(const Subject& subject, std::vector<Gate>& gates) {
  constexpr int kRows = 17;
  StepScene scene(check_model(subject.options), kRows);
  const Model& model = scene.model();
  if (!undefined_because(subject.options.contract, model).empty()) return;
  const NormSpec spec{model.V, model.act_dtype, true, model.norm_gate, *model.norm_eps, 0};
  Tally tally(CheckStage::gated_norm, Battery::L2, kStepAgainstRows, describe(spec));
  const CheckBatch batch = scene.lay_all(kRows);
  const auto pool = scene.make_pool(*subject.backend);
  subject.backend->prepare(scene.stream(), {0});
  StepInputs inputs;
  StepOutputs outputs;
  outputs.want = {Tap::core_out, Tap::rstd, Tap::norm_out};
  scene.place(batch, *pool);
  scene.gather(batch, inputs);
  subject.backend->step({0, scene.plan(batch), inputs, subject.options.contract}, *pool, outputs);
  NormOutputs rows;
  const std::int64_t count = static_cast<std::int64_t>(batch.content.size()) * model.HV;
  subject.backend->norm(
      {spec, subject.options.contract, count, outputs[Tap::core_out], inputs.z, scene.stream().params(0).norm_weight},
      rows);
  tally.compare(Tap::rstd, {DType::f32, count, 1}, std::as_bytes(std::span(rows.rstd)), outputs[Tap::rstd],
                "the norm alone and the step", 0);
  tally.compare(Tap::norm_out, {model.act_dtype, count, model.V}, rows.out, outputs[Tap::norm_out],
                "the norm alone and the step", 0);
  tally.count_launches(2);
  gates.push_back(tally.finish());
}

void check_gated(const Subject& subject, int width, std::vector<Gate>& gates) {
  const bool reduced = subject.options.reduced;
  const NormSpec usual{width, DType::bf16, true, NormGate::silu, 1e-6f, 0};
  const CheckStage stage = CheckStage::gated_norm;
  if (is_defined(subject, stage, usual, gates)) {
    subject.begin("gated norm by itself");
    Norms norms(subject, stage, usual, gates);
    norms.repeats(), norms.invariance();
    norms.ask(Battery::L2, kStepAgainstRows, [&] { step_against_rows(subject, gates); });
    norms.time(reduced ? 4096 : 262144);
  }
  for (DType act : {DType::bf16, DType::f16, DType::f32})
    for (NormGate gate : {NormGate::silu, NormGate::sigmoid})
      for (float offset : {0.0f, 1.0f}) {
        const NormSpec spec{width, act, true, gate, 1e-6f, offset};
        if (!undefined_because(subject.options.contract, spec).empty()) {
          if (act != usual.act && gate == NormGate::silu && offset == 0) is_defined(subject, stage, spec, gates);
          continue;
        }
        Norms norms(subject, stage, spec, gates);
        const bool first = act == DType::bf16 && gate == NormGate::silu && offset == 0;
        norms.against_others(reduced ? 64 : 1025);
        norms.accuracy(reduced ? 2048 : first ? 262144 : 8192);
      }
}

void check_plain(const Subject& subject, std::vector<Gate>& gates) {
  const bool reduced = subject.options.reduced;
  const CheckStage stage = CheckStage::rmsnorm;
  const std::vector<int> widths = reduced ? std::vector<int>{2048} : std::vector<int>{2048, 4096, 8192};
  for (const int width : widths) {
    const NormSpec usual{width, DType::bf16, false, NormGate::silu, 1e-6f, 1};
    if (!is_defined(subject, stage, usual, gates)) continue;
    subject.begin(describe(usual));
    Norms norms(subject, stage, usual, gates);
    norms.repeats(), norms.invariance();
    norms.time(reduced ? 256 : 16384);
    for (DType act : {DType::bf16, DType::f16, DType::f32})
      for (float offset : {1.0f, 0.0f}) {
        const NormSpec spec{width, act, false, NormGate::silu, 1e-6f, offset};
        Norms each(subject, stage, spec, gates);
        each.against_others(reduced ? 16 : 257), each.shared_root(reduced ? 16 : 257);
        each.accuracy((reduced ? 2048 : 262144) * 128 / width);
      }
  }
}

/// Widths that divide nothing, for kernels that take any.
void check_odd_widths(const Subject& subject, CheckStage stage, std::vector<Gate>& gates) {
  for (const int width : {1, 33, 100, 257})
    for (const float offset : {1.0f, 0.0f}) {
      const NormSpec spec{width, DType::bf16, stage == CheckStage::gated_norm, NormGate::silu, 1e-6f, offset};
      if (undefined_because(subject.options.contract, spec).empty())
        Norms(subject, stage, spec, gates).against_others(65);
    }
}

/// Golden's norm under a contract that is not written out is compared with nothing, and that is said.
void say_uncompared(const Subject& subject, CheckStage stage, std::vector<Gate>& gates) {
  const NormSpec spec{128, DType::bf16, stage == CheckStage::gated_norm, NormGate::silu, 1e-6f, 0};
  const Contract& contract = subject.options.contract;
  if (!subject.has(Battery::L2) || !subject.is_reference_norm() || !undefined_because(contract, spec).empty()) return;
  if (!is_written_out(spec, contract))
    gates.push_back(
        skipped_gate(stage, Battery::L2, "against golden", "any width",
                     "golden's one norm is what others are compared with; this contract is not written out"));
}

}  // namespace

void check_norms(const Subject& subject, std::vector<Gate>& gates) {
  const Model model = check_model(subject.options);
  if (subject.has(CheckStage::gated_norm)) check_gated(subject, model.V, gates);
  if (subject.has(CheckStage::rmsnorm)) check_plain(subject, gates);
  for (CheckStage stage : {CheckStage::gated_norm, CheckStage::rmsnorm})
    if (subject.has(stage)) check_odd_widths(subject, stage, gates), say_uncompared(subject, stage, gates);
}

}  // namespace gdnsim
