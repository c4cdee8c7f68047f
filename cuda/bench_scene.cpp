#include "bench_scene.hpp"

#include <algorithm>

#include "gdnsim/error.hpp"
#include "gdnsim/recipe.hpp"
#include "gdnsim/simulator.hpp"

namespace gdnsim::cuda {
namespace {

constexpr int kWindowRows = 2048;     // of all steps of a window, about
constexpr int kMostSteps = 256;       // of a window
constexpr std::size_t kSingle = 2;    // steps one by one, before the window that is compared
constexpr std::size_t kCompared = 4;  // steps in it
constexpr int kLooked = 16;           // states of a step that are compared, about: the outputs are all
const TapSet kTapsOut{Tap::conv_out, Tap::core_out, Tap::norm_out};

std::unique_ptr<Stream> stream_of(const Model& model, int rows, int steps) {
  Recipe recipe;
  recipe.seed = 1, recipe.model = model, recipe.steps = steps, recipe.rows = rows;
  return make_recipe_stream(recipe);
}

/// Where two runs of a step differ, or empty.
std::string difference(const WindowStep& got, const WindowStep& want) {
  for (Tap tap : {Tap::conv_out, Tap::core_out, Tap::norm_out})
    if (got.outputs[tap] != want.outputs[tap]) return std::string(name_of(tap));
  for (std::size_t i = 0; i < want.kept.size(); ++i)
    if (got.kept[i].digest.block != want.kept[i].digest.block)
      return "the state of block " + std::to_string(want.kept[i].block);
  return "";
}

}  // namespace

BenchInputs::BenchInputs(const BenchOptions& options, DType state, int rows)
    : options_(options),
      model_(bench_model(rows, state)),
      rows_(rows),
      stream_(
          stream_of(model_, rows, std::clamp(kWindowRows / rows, static_cast<int>(kSingle + kCompared), kMostSteps))) {
  inputs.resize(static_cast<std::size_t>(stream_->steps()));
  for (std::size_t step = 0; step < inputs.size(); ++step) {
    plans.push_back(stream_->plan(static_cast<std::int64_t>(step)));
    stream_->inputs(static_cast<std::int64_t>(step), 0, inputs[step]);
    std::vector<Look>& all = looks.emplace_back();
    for (int row = 0; row < rows; row += 1 + rows / kLooked)
      all.push_back({plans.back().block[static_cast<std::size_t>(row)], false});
  }
}

void BenchInputs::set_contract(const std::string& preset) {
  contracts_ = contract_set(preset);
  const auto golden = make_golden(options_.backend);
  const auto pool = golden->make_pool(model_, {0});
  expected_ = run(*golden, *pool);
}

WindowArgs BenchInputs::window(std::size_t first, std::size_t count) const {
  return {0, std::span(plans).subspan(first, count), std::span(inputs).subspan(first, count), contracts_,
          std::span(looks).subspan(first, count)};
}

void BenchInputs::fill(Pool& pool) const {
  for (const Event& event : stream_->events()) {
    if (event.step != 0) continue;
    if (event.kind != EventKind::load) {
      pool.apply(event, 0, *stream_);
      continue;
    }
    const std::int32_t source = event.source % kLooked;  // few different ones: making them takes its time
    const auto [loaded, is_new] = loaded_.try_emplace(source);
    auto& [recurrent, conv] = loaded->second;
    if (is_new) stream_->load_row(source, recurrent, conv);
    pool.write(0, event.block, recurrent, conv);
  }
}

std::vector<WindowStep> BenchInputs::run(Backend& backend, Pool& pool) const {
  std::vector<WindowStep> steps(kSingle + kCompared);
  for (WindowStep& step : steps) step.outputs.want = kTapsOut;
  backend.prepare(*stream_, {0});
  fill(pool);
  for (std::size_t t = 0; t < kSingle; ++t) {
    backend.step({0, plans[t], inputs[t], contracts_.of(plans[t].path)}, pool, steps[t].outputs);
    for (const Look& look : looks[t]) steps[t].kept.push_back({look.block, pool.digest(0, look.block), {}, {}});
  }
  backend.steps(window(kSingle, kCompared), pool, std::span(steps).subspan(kSingle));
  return steps;
}

void BenchInputs::require_golden(Backend& backend, const std::string& who) const {
  const auto pool = backend.make_pool(model_, {0});
  const std::vector<WindowStep> got = run(backend, *pool);
  for (std::size_t t = 0; t < got.size(); ++t)
    if (const std::string where = difference(got[t], expected_[t]); !where.empty())
      throw error("cuda: ", who, ", contract ", contracts_.decode.name, ", ", bench_shape(model_, rows_), ": ", where,
                  " of step ", t, " is not golden's: nothing is measured");
}

}  // namespace gdnsim::cuda
