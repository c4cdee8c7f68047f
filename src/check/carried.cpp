// What goes on from step to step, against golden: windows of steps, launches of several candidates.
#include <algorithm>

#include "check/stages.hpp"
#include "gdnsim/report.hpp"

namespace gdnsim {
namespace {

constexpr int kRows = 6;
constexpr int kDrafts = 3;
constexpr int kFewRows = kRows * (kDrafts + 1);  // blocks of the launches' rows
constexpr int kPeriod = 80;                      // rows whose numbers are so far apart are given the same
constexpr int kRepeats = 50;
constexpr int kMostSteps = 64;          // of a window
constexpr int kFewSteps = 8;            // where the shape is another
constexpr int kLongSteps = 300;         // more than any backend takes at once: a fault may begin late in a window
constexpr std::int32_t kUntouched = 1;  // a block that no row has

/// Known steps of a few rows that change places; each row is now and then inactive.
struct Steps {
  std::vector<StepPlan> plans;
  std::vector<StepInputs> inputs;
  std::vector<std::vector<Look>> looks;
  CheckBatch last;

  /// `only`: the number of the one row that there is; -1: rows 0 to `rows` - 1.
  Steps(const StepScene& scene, int first, int count, int rows = kRows, int only = -1) {
    for (int step = first; step < first + count; ++step) {
      last = rows_of(step, rows, only);
      StepPlan& plan = plans.emplace_back(scene.plan(last));
      plan.step = step, plan.path = step % 3 == 2 ? Path::mixed : Path::decode;
      scene.gather(last, inputs.emplace_back());
      looks.push_back({{block_of(0), true}, {block_of(1 + step % (kRows - 1)), false}, {kUntouched, step % 4 == 2}});
    }
  }

  static std::int32_t block_of(int number) { return StepScene::first_free() + number; }
  /// The number of the row at this place.
  static int number_at(int row, int step, int rows) { return (row + step) % rows; }

 private:
  /// A block meets contents that are all wild or none of them: a NaN in a state is there for good.
  static CheckBatch rows_of(int step, int rows, int only) {
    CheckBatch batch;
    for (int row = 0; row < rows; ++row) {
      const int number = only < 0 ? number_at(row, step, rows) : only;
      const bool active = (number + step) % 5 != 4;
      batch.content.push_back(active ? 4 * ((number + 3 * step) % (StepScene::kContents / 4)) + number % 4 : -1);
      batch.block.push_back(active ? block_of(number) : -1);
    }
    return batch;
  }
};

std::string long_window() { return "a window of " + std::to_string(kLongSteps) + " steps"; }

std::vector<WindowStep> asked(const Steps& steps, TapSet want, const Model& model) {
  std::vector<WindowStep> results(steps.plans.size());
  for (WindowStep& each : results) {
    each.outputs.want = want;
    fill_with_ones(each.outputs, model, steps.last.rows());
  }
  return results;
}

class CarriedBatteries {
 public:
  CarriedBatteries(const Subject& subject, const Model& model, int most_rows, int most_steps, bool conv_bias,
                   std::vector<Gate>& gates)
      : subject_(subject),
        gates_(gates),
        most_rows_(most_rows),
        most_steps_(most_steps),
        scene_(model, most_rows, conv_bias) {
    prepare();
  }

  /// Again after others have run on these backends.
  void prepare() {
    for (Backend* backend : {subject_.backend, subject_.poisoned, subject_.reference.get()})
      backend->prepare(scene_.stream(), scene_.layers());
  }

  /// One window again and again.
  void repeats() {
    StageTallies tallies(subject_, Battery::L0, "50 repeats of a window", scene_.model());
    const Steps steps(scene_, 0, longest());
    const auto first_pool = started(*subject_.backend), pool = started(*subject_.backend);
    const std::vector<WindowStep> first = run(*subject_.backend, *first_pool, steps);
    for (int repeat = 1; repeat < kRepeats; ++repeat) {
      start(*pool);
      const auto again = run(is_poisoned(repeat) ? *subject_.poisoned : *subject_.backend, *pool, steps);
      const std::string between = "repeats 1 and " + std::to_string(repeat + 1);
      for (std::size_t i = 0; i < first.size(); ++i) compare_step(steps, i, first[i], again[i], between, tallies);
      tallies.compare_pools(*first_pool, *pool, steps.last, between);
    }
    tallies.count_launches(kRepeats);
    tallies.finish(gates_);
  }

  /// Each row in a window of its own, and among others: long windows of a few rows, short ones of many.
  void invariance() {
    StageTallies tallies(subject_, Battery::L1, "windows of other row counts", scene_.model());
    tallies.note("1 to " + std::to_string(most_rows_) + " rows");
    std::vector<int> few, many;
    for (const int rows : {2, 3, 5, 8, 17, 24, 33, 65, 129, 257, 513, 1025, 2049})
      if (rows <= most_rows_) (rows <= kFewRows ? few : many).push_back(rows);
    compare_windows(16, few, tallies);
    compare_windows(4, many, tallies);
    tallies.finish(gates_);
  }

  /// As many steps at once as the backend likes, then a few more; golden's plain code takes them one by one.
  void windows() {
    StageTallies tallies(subject_, Battery::L2, "windows of steps", scene_.model());
    const auto want = started(*subject_.reference), got = started(*subject_.poisoned);
    for (const int first : {0, longest()}) {
      const Steps steps(scene_, first, first == 0 ? longest() : 7);
      // Of the second window core_out alone is wanted.
      compare_window(steps, first == 0 ? kStepOutputs : TapSet{Tap::core_out}, *want, *got, tallies);
    }
    tallies.finish(gates_);
  }

  /// As long a window as a backend has, and longer: with one row, for which windows are longest, and with a few.
  void long_windows() {
    StageTallies tallies(subject_, Battery::L2, long_window(), scene_.model());
    for (const int rows : {1, 3}) {  // their states stay finite
      const auto want = started(*subject_.reference), got = started(*subject_.poisoned);
      Steps steps(scene_, 0, kLongSteps, rows);
      for (std::size_t i = 0; i < steps.looks.size(); ++i)
        if (i % 16 != 15) steps.looks[i].clear();  // every state's words would be gigabytes
      compare_window(steps, kStepOutputs, *want, *got, tallies);
    }
    tallies.finish(gates_);
  }

  /// Rule A9: a row goes from block to block, and a store that rounds does not round what the next candidate goes on
  /// from.
  void launches() {
    const Contract& contract = subject_.options.contract;
    const bool rounds = scene_.model().state_dtype != DType::f32 || contract.state_store == StateStore::bf16;
    if (rounds && subject_.is_reference_norm())
      return skip_reference(subject_, "launches of candidates", scene_.model(), gates_,
                            "where stores round, golden runs such launches on its plain code at every CPU level");
    StageTallies tallies(subject_, Battery::L2, "launches of candidates", scene_.model());
    const auto want = started(*subject_.reference), got = started(*subject_.poisoned);
    CheckBatch batch;
    for (int step = 0; step < 2 * kDrafts; ++step) {
      const StepPlan plan = draft_of(step, batch);
      StepOutputs theirs = run_draft(*subject_.reference, *want, plan, batch),
                  ours = run_draft(*subject_.poisoned, *got, plan, batch);
      for (std::size_t row = 0; row < batch.rows(); ++row)
        tallies.compare_outputs(theirs, row, ours, row, subject_.against() + ", step " + std::to_string(step));
    }
    tallies.compare_pools(*want, *got, batch, subject_.against());
    tallies.count_launches(2 * kDrafts);
    tallies.finish(gates_);
  }

 private:
  int longest() const { return std::clamp(subject_.poisoned->steps_at_once(scene_.model()), 3, most_steps_); }

  /// A fresh pool whose rows' blocks hold what contents start from.
  std::unique_ptr<Pool> started(Backend& backend) const {
    auto pool = scene_.make_pool(backend);
    start(*pool);
    return pool;
  }
  void start(Pool& pool) const {
    CheckBatch all;
    for (int number = 0; number < most_rows_; ++number)
      all.content.push_back(number % kPeriod % StepScene::kContents), all.block.push_back(Steps::block_of(number));
    scene_.place(all, pool);
  }

  void compare_windows(int longest_window, const std::vector<int>& row_counts, StageTallies& tallies) const {
    const auto alone_pool = started(*subject_.backend), pool = started(*subject_.backend);
    const int count = std::min(longest(), longest_window), most = row_counts.empty() ? 0 : row_counts.back();
    std::vector<std::vector<WindowStep>> alone;
    std::vector<KeptBlock> left;
    for (int number = 0; number < std::min(most, kPeriod); ++number) {
      alone.push_back(run(*subject_.backend, *alone_pool, Steps(scene_, 0, count, 1, number)));
      left.push_back(keep_block(*alone_pool, Steps::block_of(number)));
    }
    for (const int rows : row_counts) {
      start(*pool);
      const Steps steps(scene_, 0, count, rows);
      const auto got = run(*subject_.poisoned, *pool, steps);
      const std::string between = "1 and " + std::to_string(rows) + " rows";
      for (int i = 0; i < count * rows; ++i) {
        const int step = i / rows, row = i % rows, number = Steps::number_at(row, step, rows) % kPeriod;
        tallies.compare_outputs(alone[static_cast<std::size_t>(number)][static_cast<std::size_t>(step)].outputs, 0,
                                got[static_cast<std::size_t>(step)].outputs, static_cast<std::size_t>(row), between);
      }
      for (int number = 0; number < rows; ++number)
        tallies.compare_block(left[static_cast<std::size_t>(number % kPeriod)], *pool, Steps::block_of(number),
                              static_cast<std::size_t>(number), between);
      tallies.count_launches(1);
    }
  }

  /// One window at once, of which `outputs` are wanted, against golden's plain code, step by step.
  void compare_window(const Steps& steps, TapSet outputs, Pool& want, Pool& got, StageTallies& tallies) const {
    const auto ours = run(*subject_.poisoned, got, steps, outputs),
               theirs = run_one_by_one(*subject_.reference, want, steps);
    for (std::size_t i = 0; i < ours.size(); ++i)
      compare_step(steps, i, theirs[i], ours[i], subject_.against(), tallies);
    tallies.compare_pools(want, got, steps.last, subject_.against());
    tallies.count_launches(ours.size());
  }

  std::vector<WindowStep> run(Backend& backend, Pool& pool, const Steps& steps, TapSet want = kStepOutputs) const {
    std::vector<WindowStep> results = asked(steps, want, scene_.model());
    const ContractSet contracts{subject_.options.contract, subject_.options.contract};
    backend.steps({pool.layers().back(), steps.plans, steps.inputs, contracts, steps.looks}, pool, results);
    return results;
  }

  std::vector<WindowStep> run_one_by_one(Backend& backend, Pool& pool, const Steps& steps) const {
    std::vector<WindowStep> results = asked(steps, kStepOutputs, scene_.model());
    const ContractSet contracts{subject_.options.contract, subject_.options.contract};
    for (std::size_t i = 0; i < results.size(); ++i)
      backend.steps({pool.layers().back(), std::span(steps.plans).subspan(i, 1), std::span(steps.inputs).subspan(i, 1),
                     contracts, std::span(steps.looks).subspan(i, 1)},
                    pool, std::span(results).subspan(i, 1));
    return results;
  }

  void compare_step(const Steps& steps, std::size_t i, const WindowStep& want, const WindowStep& got,
                    const std::string& sides, StageTallies& tallies) const {
    const std::string between = sides + ", step " + std::to_string(steps.plans[i].step);
    const std::size_t rows = steps.last.rows();
    for (std::size_t row = 0; row < rows; ++row) tallies.compare_outputs(want.outputs, row, got.outputs, row, between);
    for (std::size_t look = 0; look < want.kept.size(); ++look) {
      const auto& block = steps.plans[i].block;
      const auto row = std::ranges::find(block, want.kept[look].block) - block.begin();
      tallies.compare_kept(want.kept[look], look < got.kept.size() ? got.kept[look] : KeptBlock{},
                           static_cast<std::size_t>(row) % rows, between + ", kept");
    }
  }

  /// Row r lives in kDrafts + 1 blocks, and goes from each to the next.
  StepPlan draft_of(int step, CheckBatch& batch) const {
    const int draft = step % kDrafts;
    std::vector<std::int32_t> source;
    batch = {};
    for (int row = 0; row < kRows; ++row) {
      const bool active = row + 1 < kRows || draft + 1 < kDrafts;  // the last one has a candidate less
      const std::int32_t first = Steps::block_of(row * (kDrafts + 1));
      batch.content.push_back(active ? 4 * ((row + 5 * step) % (StepScene::kContents / 4)) + row % 4 : -1);
      batch.block.push_back(active ? first + draft + 1 : -1);
      source.push_back(active ? first + draft : -1);
    }
    StepPlan plan = scene_.plan(batch);
    plan.step = step, plan.path = Path::mixed;
    plan.draft = draft, plan.last_draft = draft + 1 == kDrafts;
    plan.source = std::move(source);
    return plan;
  }

  StepOutputs run_draft(Backend& backend, Pool& pool, const StepPlan& plan, const CheckBatch& batch) const {
    StepInputs inputs;
    StepOutputs outputs;
    outputs.want = kStepOutputs;
    fill_with_ones(outputs, scene_.model(), batch.rows());
    scene_.gather(batch, inputs);
    for (std::size_t row = 0; row < batch.rows(); ++row)
      if (plan.source[row] >= 0) pool.copy(pool.layers().back(), plan.source[row], plan.block[row]);
    backend.step({pool.layers().back(), plan, inputs, subject_.options.contract}, pool, outputs);
    return outputs;
  }

  const Subject& subject_;
  std::vector<Gate>& gates_;
  const int most_rows_, most_steps_;
  StepScene scene_;
};

void check_sequences(const Subject& subject, const Model& model, bool is_other, std::vector<Gate>& gates) {
  CarriedBatteries batteries(subject, model, kFewRows, is_other ? kFewSteps : kMostSteps, is_other, gates);
  const auto ask = [&](Battery battery, const std::string& name, const std::function<void()>& run) {
    if (subject.has(battery)) attempt(subject.options, battery, name, model, gates, run);
  };
  if (!is_other) {
    ask(Battery::L0, "50 repeats of a window", [&] { batteries.repeats(); });
    ask(Battery::L1, "windows of other row counts", [&] {
      CarriedBatteries(subject, model, subject.options.reduced ? 129 : 2049, kMostSteps, false, gates).invariance();
    });
    batteries.prepare();
    if (subject.has(Battery::L2) && subject.is_reference_step())
      return skip_reference(subject, "windows of steps", model, gates);
  }
  ask(Battery::L2, "windows of steps", [&] { batteries.windows(); });
  if (!is_other) ask(Battery::L2, long_window(), [&] { batteries.long_windows(); });
  if (subject.not_by_steps().empty()) ask(Battery::L2, "launches of candidates", [&] { batteries.launches(); });
}

}  // namespace

void check_carried(const Subject& subject, std::vector<Gate>& gates) {
  const CheckOptions& options = subject.options;
  const Model model = check_model(options);
  const bool any = std::ranges::any_of(kStepStages, [&](CheckStage stage) { return subject.has(stage); });
  const bool state = std::ranges::any_of(kStateStages, [&](CheckStage stage) { return subject.has(stage); });
  if (!any || !(subject.has(Battery::L0) || subject.has(Battery::L1) || subject.has(Battery::L2))) return;
  subject.begin("several steps");
  if (subject.has(Battery::L2) && state && !options.is_held())  // no kernel's own
    check_pool(subject, gates);
  if (!undefined_because(options.contract, model).empty()) return;  // check_steps has said so
  const auto ask = [&](const Model& shape, bool is_other) {
    attempt(options, options.batteries.front(), "every battery of several steps", shape, gates,
            [&] { check_sequences(subject, shape, is_other, gates); });
  };
  ask(model, false);
  for (const Model& other : other_models(options))
    if (subject.has(Battery::L2) && !subject.is_reference_step()) ask(other, true);
}

}  // namespace gdnsim
