#include "bench_scene.hpp"

#include <algorithm>

#include "gdnsim/error.hpp"
#include "gdnsim/recipe.hpp"

namespace gdnsim::cuda {
namespace {

constexpr int kWindowRows = 2048;     // of all steps of a window, about
constexpr int kMostSteps = 256;       // of a window
constexpr int kFew = 32;              // rows that differ
constexpr std::size_t kSingle = 2;    // steps one by one, before the window that is compared
constexpr std::size_t kCompared = 4;  // steps in it
constexpr int kLooked = 16;           // states of a step that are compared, about: the outputs are all
constexpr int kTurn = 7;              // rows from one block to the next where they are scattered
constexpr std::array kOut{Tap::conv_out, Tap::core_out, Tap::norm_out};

std::unique_ptr<Stream> stream_of(const Model& model, int rows, int steps) {
  Recipe recipe;
  recipe.seed = 1, recipe.model = model, recipe.steps = steps, recipe.rows = rows;
  return make_recipe_stream(recipe);
}

Model model_of(int rows, int few, DType state) { return bench_model((rows + few - 1) / few * few, state); }

/// The plan with its rows' blocks in the order of the rows. Whose state was loaded where matters to nobody.
StepPlan in_order(StepPlan plan) {
  for (std::size_t row = 0; row < plan.block.size(); ++row)
    plan.block[row] = plan.index[row] = static_cast<std::int32_t>(row) + 1;
  return plan;
}

/// As many bytes as make `rows` rows of what `few` rows are.
Bytes repeated_rows(const Bytes& few_rows, int few, int rows) {
  const std::size_t bytes = few_rows.size() / static_cast<std::size_t>(few) * static_cast<std::size_t>(rows);
  Bytes all;
  all.reserve(bytes);
  while (all.size() < bytes)
    all.insert(all.end(), few_rows.begin(),
               few_rows.begin() + static_cast<std::ptrdiff_t>(std::min(few_rows.size(), bytes - all.size())));
  return all;
}

}  // namespace

BenchInputs::BenchInputs(const BenchOptions& options, DType state, int rows)
    : options_(options),
      rows_(rows),
      few_(std::min(rows, kFew)),
      model_(model_of(rows, few_, state)),
      stream_(stream_of(bench_model(few_, state), few_,
                        std::clamp(kWindowRows / rows, static_cast<int>(kSingle + kCompared), kMostSteps))) {
  make_few();
  for (std::size_t step = 0; step < few_plans_.size(); ++step) {
    plans.push_back(repeated(few_plans_[step]));
    const StepInputs& in = few_inputs_[step];
    const auto all = [&](const Bytes& words) { return repeated_rows(words, few_, rows_); };
    inputs.push_back({all(in.mixed_qkv), all(in.a), all(in.b), all(in.z)});
  }
}

void BenchInputs::make_few() {
  few_inputs_.resize(static_cast<std::size_t>(stream_->steps()));
  for (std::size_t step = 0; step < few_inputs_.size(); ++step) {
    few_plans_.push_back(in_order(stream_->plan(static_cast<std::int64_t>(step))));
    stream_->inputs(static_cast<std::int64_t>(step), 0, few_inputs_[step]);
  }
}

/// Row r is row r % few, its block as many further on as there are rows before.
StepPlan BenchInputs::repeated(const StepPlan& few) const {
  StepPlan plan = few;
  plan.index.clear(), plan.block.clear(), plan.sequence.clear(), plan.present = rows_;
  for (int row = 0; row < rows_; ++row) {
    const std::size_t of = static_cast<std::size_t>(row % few_);
    plan.block.push_back(few.block[of] + row / few_ * few_);
    plan.index.push_back(plan.block.back());
    plan.sequence.push_back(row);
  }
  return plan;
}

std::vector<std::int32_t> BenchInputs::scattered() const {
  std::vector<std::int32_t> block;
  const std::vector<std::int32_t>& in_order = plans[0].block;
  const int turn = rows_ % kTurn == 0 ? 1 : kTurn;
  for (int row = 0; row < rows_; ++row) block.push_back(in_order[static_cast<std::size_t>(row * turn % rows_)]);
  return block;
}

void BenchInputs::set_contract(const std::string& preset) {
  contracts_ = contract_set(preset);
  const auto golden = make_golden(options_.backend);
  const auto pool = golden->make_pool(stream_->model(), {0});
  fill_few(*pool);
  std::vector<Look> every;
  for (std::int32_t block = 1; block <= few_; ++block) every.push_back({block, false});
  const std::vector<std::vector<Look>> looks(kSingle + kCompared, every);
  expected_ = run({few_plans_, few_inputs_, looks}, *golden, *pool);
}

void BenchInputs::fill_few(Pool& pool) const {
  for (const Event& event : stream_->events()) {
    if (event.step != 0) continue;
    if (event.kind != EventKind::load) {
      pool.apply(event, 0, *stream_);
      continue;
    }
    const auto [loaded, is_new] = loaded_.try_emplace(event.source);
    auto& [recurrent, conv] = loaded->second;
    if (is_new) stream_->load_row(event.source, recurrent, conv);
    pool.write(0, event.block, recurrent, conv);
  }
}

void BenchInputs::fill(Pool& pool) const {
  fill_few(pool);
  for (std::int32_t to = few_ + 1; to <= blocks(); ++to) pool.copy(0, (to - 1) % few_ + 1, to);
}

std::vector<WindowStep> BenchInputs::run(const Steps& in, Backend& backend, Pool& pool) const {
  std::vector<WindowStep> steps(kSingle + kCompared);
  for (WindowStep& step : steps) step.outputs.want = {Tap::conv_out, Tap::core_out, Tap::norm_out};
  backend.prepare(*stream_, {0});
  for (std::size_t t = 0; t < kSingle; ++t) {
    backend.step({0, in.plans[t], in.inputs[t], contracts_.of(in.plans[t].path)}, pool, steps[t].outputs);
    for (const Look& look : in.looks[t]) steps[t].kept.push_back({look.block, pool.digest(0, look.block), {}, {}});
  }
  const auto rest = [](const auto& all) { return all.subspan(kSingle, kCompared); };
  backend.steps({0, rest(in.plans), rest(in.inputs), contracts_, rest(in.looks)}, pool,
                std::span(steps).subspan(kSingle));
  return steps;
}

/// Where a batch's step is not made of golden's rows, or empty.
std::string BenchInputs::difference(const WindowStep& got, const WindowStep& want) const {
  for (Tap tap : kOut)
    if (got.outputs[tap] != repeated_rows(want.outputs[tap], few_, rows_)) return std::string(name_of(tap));
  for (const KeptBlock& kept : got.kept) {
    const KeptBlock& same = want.kept[static_cast<std::size_t>((kept.block - 1) % few_)];
    if (kept.digest.block != same.digest.block) return "the state of block " + std::to_string(kept.block);
  }
  return "";
}

void BenchInputs::require_golden(Backend& backend, const std::string& who) const {
  const auto pool = backend.make_pool(model_, {0});
  fill(*pool);
  std::vector<std::vector<Look>> looks(kSingle + kCompared);
  for (std::size_t t = 0; t < looks.size(); ++t)
    for (int row = 0; row < rows_; row += 1 + rows_ / kLooked)
      looks[t].push_back({plans[t].block[static_cast<std::size_t>(row)], false});
  const std::vector<WindowStep> got = run({plans, inputs, looks}, backend, *pool);
  for (std::size_t t = 0; t < got.size(); ++t)
    if (const std::string where = difference(got[t], expected_[t]); !where.empty())
      throw error("cuda: ", who, ", contract ", contracts_.decode.name, ", ", bench_shape(model_, rows_), ": ", where,
                  " of step ", t, " is not golden's: nothing is measured");
}

}  // namespace gdnsim::cuda
