// The batteries of a decode step: conv update, recurrence, and the gated norm within a step.
#include <algorithm>

#include "check_scene.hpp"
#include "gdnsim/report.hpp"

namespace gdnsim {
namespace {

const TapSet kOutputs{Tap::conv_out, Tap::core_out, Tap::rstd, Tap::norm_out};
constexpr int kRepeats = 50;

TapSet all_taps() {
  TapSet all;
  for (std::size_t t = 0; t < kTaps; ++t) all.add(static_cast<Tap>(t));
  return all;
}

/// The same question to each stage of the step.
class StageTallies {
 public:
  StageTallies(const Subject& subject, Battery battery, const std::string& name, const Model& model) : model_(model) {
    for (CheckStage stage : {CheckStage::conv, CheckStage::recurrent, CheckStage::gated_norm})
      if (subject.has(stage))
        tallies_.emplace_back(stage, battery, stage == CheckStage::gated_norm ? name + ", in a step" : name,
                              describe(model));
  }
  /// Taps that `want` lacks are left out.
  void compare(const TapBytes& want, const TapBytes& got, const std::string& between, std::int64_t row) {
    for (std::size_t t = 0; t < kTaps; ++t) {
      const Tap tap = static_cast<Tap>(t);
      if (want[t].empty() || got[t].empty()) continue;
      for (Tally& tally : tallies_)
        if (tally.stage() == stage_of(tap)) tally.compare(tap, shape_of(tap, model_), want[t], got[t], between, row);
    }
  }
  void count_launches(std::uint64_t launches) {
    for (Tally& tally : tallies_) tally.count_launches(launches);
  }
  std::vector<Tally>& tallies() { return tallies_; }
  void finish(std::vector<Gate>& gates) const {
    for (const Tally& tally : tallies_) gates.push_back(tally.finish());
  }

 private:
  const Model& model_;
  std::vector<Tally> tallies_;
};

class StepBatteries {
 public:
  StepBatteries(const Subject& subject, std::vector<Gate>& gates)
      : subject_(subject),
        gates_(gates),
        sizes_(batch_sizes(subject.options.reduced ? 129 : 4097)),
        scene_(subject.options, subject.has(Battery::L1) ? sizes_.back() : kFew),
        pool_(subject.backend->make_pool(scene_.model(), {0})) {
    scene_.fill(*pool_);
    for (Backend* backend : {subject.backend, subject.poisoned}) backend->prepare(scene_.stream(), {0});
  }

  void repeats() {
    subject_.begin("L0 of a step");
    StageTallies tallies(subject_, Battery::L0, "50 repeats", scene_.model());
    const CheckBatch batch = scene_.all_watched(kFew);
    const std::vector<TapBytes> first = run(*subject_.backend, batch, kOutputs);
    for (int repeat = 1; repeat < kRepeats; ++repeat) {
      Backend& backend = repeat % 2 == 0 ? *subject_.backend : *subject_.poisoned;
      const std::vector<TapBytes> again = run(backend, batch, kOutputs);
      for (std::size_t i = 0; i < first.size(); ++i)
        tallies.compare(first[i], again[i], "repeats 1 and " + std::to_string(repeat + 1), batch.watched[i]);
    }
    tallies.count_launches(kRepeats);
    tallies.finish(gates_);
  }

  void invariance() {
    for (int probe = 0; probe < StepScene::kProbes; ++probe)
      alone_.push_back(run(*subject_.backend, scene_.lay(1, Layout::straight, probe), kOutputs).front());
    for (Layout layout : {Layout::straight, Layout::permuted, Layout::padded}) {
      subject_.begin("L1 of a step: " + std::string(name_of(layout)));
      StageTallies tallies(subject_, Battery::L1, std::string(name_of(layout)), scene_.model());
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

  void against_reference() {
    if (subject_.is_reference_step()) {
      for (CheckStage stage : {CheckStage::conv, CheckStage::recurrent, CheckStage::gated_norm})
        if (subject_.has(stage))
          gates_.push_back(skipped_gate(stage, Battery::L2, "against golden", describe(scene_.model()),
                                        "golden's plain code is what the others are compared with"));
      return;
    }
    subject_.begin("L2 of a step");
    StageTallies tallies(subject_, Battery::L2, "against golden", scene_.model());
    subject_.reference->prepare(scene_.stream(), {0});
    StepScene few(subject_.options, kFew);
    const auto pool = subject_.reference->make_pool(few.model(), {0});
    few.fill(*pool);
    const CheckBatch batch = few.all_watched(kFew);
    const std::vector<TapBytes> want = run_rows(*subject_.reference, few, *pool, batch, all_taps(), contract());
    for (TapSet taps : {kOutputs, all_taps()}) {
      const std::vector<TapBytes> got = run(*subject_.poisoned, batch, taps);
      for (std::size_t i = 0; i < want.size(); ++i)
        tallies.compare(want[i], got[i], subject_.against(), batch.watched[i]);
    }
    tallies.count_launches(3);
    tallies.finish(gates_);
  }

  void accuracy() {
    subject_.begin("accuracy of a step");
    Accuracy conv, core;
    CheckBatch batch = scene_.all_watched(kFew);
    std::erase_if(batch.watched,
                  [&](int row) { return StepScene::is_wild(batch.content[static_cast<std::size_t>(row)]); });
    StepInputs inputs;
    scene_.gather(batch, inputs);
    scene_.place(batch, *pool_);
    std::vector<TapBytes> before;
    for (const int row : batch.watched) before.push_back(state_of(batch.block[static_cast<std::size_t>(row)]));
    const std::vector<TapBytes> after = run(*subject_.backend, batch, kOutputs);
    for (std::size_t i = 0; i < after.size(); ++i) {
      const auto part = [&](const Bytes& all) {
        const std::size_t bytes = all.size() / batch.content.size();
        return std::span(all).subspan(static_cast<std::size_t>(batch.watched[i]) * bytes, bytes);
      };
      const ExactOutputs exact =
          exact_row(scene_.model(), scene_.stream().params(0),
                    {part(inputs.mixed_qkv), part(inputs.a), part(inputs.b), at(before[i], Tap::state),
                     at(before[i], Tap::conv_state), at(after[i], Tap::conv_out)});
      conv.add(scene_.model().act_dtype, at(after[i], Tap::conv_out), exact.conv_out);
      core.add(scene_.model().act_dtype, at(after[i], Tap::core_out), exact.core_out);
    }
    add_accuracy(CheckStage::conv, "conv_out", conv);
    add_accuracy(CheckStage::recurrent, "core_out, of the backend's conv_out", core);
  }

 private:
  static constexpr int kFew = 33;

  const Contract& contract() const { return subject_.options.contract; }
  std::vector<TapBytes> run(Backend& backend, const CheckBatch& batch, TapSet want) {
    return run_rows(backend, scene_, *pool_, batch, want, contract());
  }

  TapBytes state_of(std::int32_t block) const {
    TapBytes taps;
    at(taps, Tap::state).resize(scene_.model().state_bytes());
    at(taps, Tap::conv_state).resize(scene_.model().conv_bytes());
    pool_->read(0, block, at(taps, Tap::state), at(taps, Tap::conv_state));
    return taps;
  }

  /// All probes in launches of that size, against each alone. Small launches hold a few of them each.
  void compare_size(std::int64_t size, Layout layout, StageTallies& tallies) {
    Backend& backend = layout == Layout::padded ? *subject_.poisoned : *subject_.backend;
    const int each = static_cast<int>(std::min<std::int64_t>(StepScene::kProbes, size));
    for (int first = 0; first < StepScene::kProbes; first += each) {
      const CheckBatch batch = scene_.lay(size, layout, first);
      const std::vector<TapBytes> got = run(backend, batch, kOutputs);
      tallies.count_launches(1);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const auto row = static_cast<std::size_t>(batch.watched[i]);
        tallies.compare(alone_[static_cast<std::size_t>(batch.content[row])], got[i],
                        "1 and " + std::to_string(size) + " rows", batch.watched[i]);
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
  std::vector<TapBytes> alone_;  // [kProbes]
};

}  // namespace

std::vector<std::int64_t> batch_sizes(std::int64_t most) {
  std::vector<std::int64_t> sizes{1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (std::int64_t middle = 16; middle <= 4096; middle *= 2)
    for (std::int64_t size : {middle - 1, middle, middle + 1}) sizes.push_back(size);
  std::erase_if(sizes, [most](std::int64_t size) { return size > most; });
  return sizes;
}

void check_steps(const Subject& subject, std::vector<Gate>& gates) {
  const Contract& contract = subject.options.contract;
  const Model model = check_model(subject.options.shape, subject.options.state, 1);
  const bool any =
      subject.has(CheckStage::conv) || subject.has(CheckStage::recurrent) || subject.has(CheckStage::gated_norm);
  if (!any) return;
  if (const std::string why = undefined_because(contract, model); !why.empty()) {
    for (CheckStage stage : {CheckStage::conv, CheckStage::recurrent})
      if (subject.has(stage)) gates.push_back(skipped_gate(stage, Battery::L0, "any", describe(model), why));
    return;
  }
  StepBatteries batteries(subject, gates);
  if (subject.has(Battery::L0)) batteries.repeats();
  if (subject.has(Battery::L1)) batteries.invariance();
  if (subject.has(Battery::L2)) batteries.against_reference();
  if (subject.has(Battery::accuracy) && (subject.has(CheckStage::conv) || subject.has(CheckStage::recurrent)))
    batteries.accuracy();
}

}  // namespace gdnsim
