// The batteries of a decode step: conv update, recurrence, and the gated norm within a step.
#include <algorithm>

#include "check/stages.hpp"
#include "gdnsim/refused.hpp"
#include "gdnsim/report.hpp"

namespace gdnsim {
namespace {

constexpr int kRepeats = 50;

class StepBatteries {
 public:
  StepBatteries(const Subject& subject, std::vector<Gate>& gates)
      : subject_(subject),
        gates_(gates),
        sizes_(batch_sizes(subject.options.reduced ? 129 : 4097)),
        scene_(check_model(subject.options), subject.has(Battery::L1) ? sizes_.back() : kFew),
        pool_(scene_.make_pool(*subject.backend)) {
    for (Backend* backend : {subject.backend, subject.poisoned}) backend->prepare(scene_.stream(), {0});
  }

  void repeats() {
    subject_.begin("L0 of a step");
    StageTallies tallies(subject_, Battery::L0, "50 repeats", scene_.model());
    const CheckBatch batch = scene_.lay_all(kFew), other = scene_.lay(kFew - 2, Layout::permuted, 0);
    const Done first = run(*subject_.backend, batch, kStepOutputs, true);
    for (int repeat = 1; repeat < kRepeats; ++repeat) {
      Backend& backend = is_poisoned(repeat) ? *subject_.poisoned : *subject_.backend;
      if (follows_another(repeat)) run(backend, other, kStepOutputs, false);
      const Done again = run(backend, batch, kStepOutputs, false);
      const std::string between = "repeats 1 and " + std::to_string(repeat + 1);
      for (std::size_t row = 0; row < batch.rows(); ++row) {
        tallies.compare_outputs(first.outputs, row, again.outputs, row, between);
        if (batch.active(row)) tallies.compare_block(first.kept[row], *pool_, batch.block[row], row, between);
      }
    }
    tallies.count_launches(kRepeats);
    tallies.finish(gates_);
  }

  void invariance() {
    run_alone();
    for (Layout layout : {Layout::straight, Layout::permuted, Layout::padded}) {
      subject_.begin("L1 of a step: " + std::string(name_of(layout)));
      StageTallies tallies(subject_, Battery::L1, std::string(name_of(layout)), scene_.model());
      tallies.note(rows_asked(sizes_));
      for (std::size_t i = 0; i < sizes_.size(); ++i) {
        std::vector<bool> differed;
        for (const Tally& tally : tallies.tallies()) differed.push_back(tally.differs());
        compare_size(sizes_[i], layout, tallies);
        for (std::size_t t = 0; t < differed.size(); ++t)
          if (Tally& tally = tallies.tallies()[t]; tally.differs() && !differed[t])
            narrow(tally, {i == 0 ? 1 : sizes_[i - 1], sizes_[i]}, layout);
      }
      tallies.finish(gates_);
    }
  }

  /// Every row, active or not, and every block of the pool; with all values, and in the first shape where only some
  /// are wanted.
  void against_reference(const Model& model, bool is_other) {
    constexpr int rows = StepScene::kContents;
    StepScene scene(model, rows, is_other);
    StageTallies tallies(subject_, Battery::L2, "against golden", scene.model());
    for (Backend* backend : {subject_.reference.get(), subject_.poisoned})
      backend->prepare(scene.stream(), scene.layers());
    const CheckBatch batch = scene.lay_all(rows);
    const auto pool = scene.make_pool(*subject_.reference);
    const StepOutputs want = run_launch(*subject_.reference, scene, *pool, batch, all_taps(), contract());
    compare_launch(scene, batch, kStepOutputs, want, *pool, tallies);
    tallies.count_launches(2);
    for (const TapSet& taps : {TapSet{Tap::core_out}, TapSet{}}) {
      if (is_other) break;
      compare_launch(scene, batch, taps, want, *pool, tallies);
      tallies.count_launches(1);
    }
    try {
      compare_launch(scene, batch, all_taps(), want, *pool, tallies);
      tallies.count_launches(1);
    } catch (const Refused& why) {  // a row of the table may have no values from inside the step
      if (!subject_.options.is_held()) throw;
      tallies.note(why.what());
    }
    tallies.finish(gates_);
    subject_.poisoned->prepare(scene_.stream(), {0});
  }

  void compare_launch(const StepScene& scene, const CheckBatch& batch, TapSet taps, const StepOutputs& want,
                      const Pool& pool, StageTallies& tallies) {
    const auto theirs = scene.make_pool(*subject_.poisoned);
    const StepOutputs got = run_launch(*subject_.poisoned, scene, *theirs, batch, taps, contract());
    for (std::size_t row = 0; row < batch.rows(); ++row)
      tallies.compare_outputs(want, row, got, row, subject_.against());
    tallies.compare_pools(pool, *theirs, batch, subject_.against());
  }

  /// The shape that was asked for, as Qwen3-Next has it; and others, with a conv bias.
  void against_reference() {
    if (subject_.is_reference_step()) return skip_reference(subject_, "against golden", scene_.model(), gates_);
    subject_.begin("L2 of a step");
    const auto ask = [this](const Model& model, bool is_other) {
      attempt(subject_.options, Battery::L2, "against golden", model, gates_,
              [&] { against_reference(model, is_other); });
    };
    ask(check_model(subject_.options), false);
    for (const Model& other : other_models(subject_.options)) ask(other, true);
  }

  void accuracy() {
    subject_.begin("accuracy of a step");
    Accuracy conv, core;
    const Model& model = scene_.model();
    const CheckBatch batch = scene_.lay_all(kFew);
    StepInputs inputs;
    scene_.gather(batch, inputs);
    scene_.place(batch, *pool_);
    std::vector<KeptBlock> before;
    for (const std::int32_t block : batch.block) before.push_back(block < 0 ? KeptBlock{} : keep_block(*pool_, block));
    const StepOutputs after = run_launch(*subject_.backend, scene_, *pool_, batch, kStepOutputs, contract());
    for (std::size_t row = 0; row < batch.rows(); ++row) {
      if (!batch.active(row) || Contents::kind_of(batch.content[row]) != Contents::Kind::usual) continue;
      const auto part = [&](const Bytes& all) {
        const std::size_t bytes = all.size() / batch.rows();
        return std::span(all).subspan(row * bytes, bytes);
      };
      const ExactOutputs exact = exact_row(model, scene_.stream().params(0),
                                           {part(inputs.mixed_qkv), part(inputs.a), part(inputs.b),
                                            before[row].recurrent, before[row].conv, part(after[Tap::conv_out])});
      conv.add(model.act_dtype, part(after[Tap::conv_out]), exact.conv_out);
      core.add(model.act_dtype, part(after[Tap::core_out]), exact.core_out);
    }
    add_accuracy(CheckStage::conv, "conv_out", conv);
    add_accuracy(CheckStage::recurrent, "core_out, of the backend's conv_out", core);
  }

 private:
  static constexpr int kFew = 33;
  /// A launch, and the rows' blocks where they were asked for.
  using Done = WindowStep;

  const Contract& contract() const { return subject_.options.contract; }

  Done run(Backend& backend, const CheckBatch& batch, TapSet want, bool keep) {
    Done done{run_launch(backend, scene_, *pool_, batch, want, contract()), {}};
    for (std::size_t row = 0; keep && row < batch.rows(); ++row)
      done.kept.push_back(batch.active(row) ? keep_block(*pool_, batch.block[row]) : KeptBlock{});
    return done;
  }

  /// Each content in a launch of its own, and an inactive row.
  void run_alone() {
    for (int content = 0; content < StepScene::kContents; ++content)
      alone_.push_back(run(*subject_.backend, {{content}, {StepScene::first_free()}}, kStepOutputs, true));
    inactive_ = run(*subject_.backend, {{-1}, {-1}}, kStepOutputs, false);
  }

  /// Launches of that size with all probes in them, small ones with a few each; every row against its content alone.
  void compare_size(std::int64_t size, Layout layout, StageTallies& tallies) {
    Backend& backend = layout == Layout::padded ? *subject_.poisoned : *subject_.backend;
    const int each = static_cast<int>(std::min<std::int64_t>(StepScene::kProbes, size));
    const std::string between = "1 and " + std::to_string(size) + " rows";
    for (int first = 0; first < StepScene::kProbes; first += each) {
      const CheckBatch batch = scene_.lay(size, layout, first);
      const Done got = run(backend, batch, kStepOutputs, false);
      tallies.count_launches(1);
      for (std::size_t row = 0; row < batch.rows(); ++row) {
        const Done& want = batch.active(row) ? alone_[static_cast<std::size_t>(batch.content[row])] : inactive_;
        tallies.compare_outputs(want.outputs, 0, got.outputs, row, between);
        if (batch.active(row)) tallies.compare_block(want.kept[0], *pool_, batch.block[row], row, between);
      }
    }
  }

  /// Finds the two neighbouring sizes between which the stage's bits change.
  void narrow(Tally& tally, Neighbours apart, Layout layout) {
    std::optional<Violation> last;
    const auto agrees = [&](std::int64_t size) {
      StageTallies trial(subject_, Battery::L1, "", scene_.model());
      compare_size(size, layout, trial);
      for (const Tally& each : trial.tallies())
        if (each.stage() == tally.stage() && each.differs()) last = each.finish().first;
      return std::ranges::none_of(trial.tallies(),
                                  [&](const Tally& each) { return each.stage() == tally.stage() && each.differs(); });
    };
    if (apart.good == apart.bad) return;
    const Neighbours sizes = narrow_down(apart, agrees);
    Violation first = last ? *last : *tally.finish().first;
    first.between = between_sizes(sizes);
    tally.narrow(first);
  }

  void add_accuracy(CheckStage stage, const std::string& name, const Accuracy& accuracy) {
    if (!subject_.has(stage)) return;
    Gate gate;
    gate.stage = stage, gate.battery = Battery::accuracy, gate.name = name, gate.shape = describe(scene_.model());
    gate.launches = 1, gate.compared = accuracy.compared;
    gate.correctly_rounded = accuracy.share(), gate.worst_ulp = accuracy.worst;
    gate.verdict = accuracy.compared == 0 ? Gate::Verdict::empty : Gate::Verdict::measured;
    gates_.push_back(gate);
  }

  const Subject& subject_;
  std::vector<Gate>& gates_;
  const std::vector<std::int64_t> sizes_;
  StepScene scene_;
  std::unique_ptr<Pool> pool_;
  std::vector<Done> alone_;  // [kContents]
  Done inactive_;
};

}  // namespace

std::vector<std::int64_t> batch_sizes(std::int64_t most) {
  std::vector<std::int64_t> sizes{1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (std::int64_t middle = 16; middle <= 4096; middle *= 2)
    for (std::int64_t size : {middle - 1, middle, middle + 1}) sizes.push_back(size);
  std::erase_if(sizes, [most](std::int64_t size) { return size > most; });
  return sizes;
}

std::string rows_asked(const std::vector<std::int64_t>& sizes) {
  return std::to_string(sizes.front()) + " to " + std::to_string(sizes.back()) + " rows";
}

void check_steps(const Subject& subject, std::vector<Gate>& gates) {
  const Contract& contract = subject.options.contract;
  const Model model = check_model(subject.options);
  const bool any =
      subject.has(CheckStage::conv) || subject.has(CheckStage::recurrent) || subject.has(CheckStage::gated_norm);
  if (!any) return;
  std::string why = undefined_because(contract, model);
  if (why.empty()) why = subject.not_by_steps();
  for (CheckStage stage : kStateStages)
    if (!why.empty() && subject.has(stage))
      gates.push_back(skipped_gate(stage, Battery::L0, "every battery of single steps", describe(model), why));
  if (!why.empty()) return;
  const auto ask = [&](Battery battery, const std::string& name, const std::function<void()>& run) {
    if (subject.has(battery)) attempt(subject.options, battery, name, model, gates, run);
  };
  ask(subject.options.batteries.front(), "every battery of single steps", [&] {  // making a pool may fail
    StepBatteries batteries(subject, gates);
    ask(Battery::L0, "50 repeats", [&] { batteries.repeats(); });
    ask(Battery::L1, "batch sizes", [&] { batteries.invariance(); });
    if (subject.has(Battery::L2)) batteries.against_reference();
    if (subject.has(CheckStage::conv) || subject.has(CheckStage::recurrent))
      ask(Battery::accuracy, "conv_out and core_out", [&] { batteries.accuracy(); });
  });
}

}  // namespace gdnsim
