#include "check_scene.hpp"

#include <algorithm>
#include <numeric>

#include "gdnsim/bench.hpp"
#include "gdnsim/error.hpp"
#include "synth_values.hpp"

namespace gdnsim {
namespace {

Recipe recipe_of(const Model& model, bool wild) {
  using Special = SpecialRecipe::Kind;
  Recipe recipe;
  recipe.seed = wild ? 12 : 11;
  recipe.model = model, recipe.steps = 1, recipe.rows = StepScene::kContents;
  recipe.params.conv_bias = Draw{Draw::Kind::normal, 0, 0.1f};
  if (wild) {
    recipe.inputs.specials.rate = 0.002;
    recipe.inputs.specials.kinds = {Special::nan,  Special::payload,    Special::inf,      Special::minus_inf,
                                    Special::zero, Special::minus_zero, Special::denormal, Special::largest};
  }
  return recipe;
}

void append(Bytes& to, const Bytes& from, int row) {
  const std::size_t bytes = from.size() / StepScene::kContents, at = static_cast<std::size_t>(row) * bytes;
  to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(at),
            from.begin() + static_cast<std::ptrdiff_t>(at + bytes));
}

/// An order of n numbers: every `step`th, round and round.
std::vector<std::int64_t> order_of(std::int64_t n, std::int64_t step, std::int64_t offset) {
  while (std::gcd(step, n) != 1) ++step;
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) order[static_cast<std::size_t>(i)] = (i * step + offset) % n;
  return order;
}

void pad(CheckBatch& batch) {
  CheckBatch padded;
  for (std::size_t row = 0; row < batch.content.size(); ++row) {
    if (std::ranges::find(batch.watched, static_cast<int>(row)) != batch.watched.end())
      padded.watched.push_back(static_cast<int>(padded.content.size()));
    padded.content.push_back(batch.content[row]), padded.block.push_back(batch.block[row]);
    if (row % 3 == 0) padded.content.push_back(-1), padded.block.push_back(-1);
  }
  batch = std::move(padded);
}

}  // namespace

std::string_view name_of(Layout layout) {
  return layout == Layout::straight   ? "batch sizes"
         : layout == Layout::permuted ? "permuted rows and blocks"
                                      : "padding between";
}

Model check_model(const std::string& shape, DType state, std::int64_t blocks) {
  Model model = bench_model(1, state);
  if (shape == "tp4") {
    model.H = 4, model.HV = 8;
  } else if (shape == "small") {
    model.H = 2, model.HV = 4, model.K = 64, model.scale = 0.125f;
  } else if (shape != "tp1") {
    throw error("--shape: expected tp1, tp4 or small, found '", shape, "'");
  }
  model.num_blocks = blocks;
  return model;
}

StepScene::StepScene(const CheckOptions& options, std::int64_t most_rows)
    : most_rows_(most_rows), model_(check_model(options.shape, options.state, 1 + kStarts + most_rows)) {
  Model model = model_;
  model.num_blocks = std::max<std::int64_t>(model.num_blocks, kContents + 1);  // a recipe wants one for every row
  tame_ = make_recipe_stream(recipe_of(model, false)), wild_ = make_recipe_stream(recipe_of(model, true));
  tame_->inputs(0, 0, tame_inputs_), wild_->inputs(0, 0, wild_inputs_);
}

void StepScene::fill(Pool& pool) const {
  Bytes recurrent(model_.state_bytes()), conv(model_.conv_bytes());
  for (int content = 0; content < kStarts; ++content) {
    const auto word = static_cast<std::uint32_t>(content);
    gdnsim::fill({Draw::Kind::normal, 0, 0.1f}, {7, Tensor::recurrent, 0, word, 0}, model_.state_dtype, recurrent);
    gdnsim::fill({}, {7, Tensor::conv, 0, word, 0}, model_.conv_state_dtype, conv);
    pool.write(0, start_of(content), recurrent, conv);
  }
  for (std::int64_t i = 0; i < most_rows_; ++i)
    pool.copy(0, start_of(static_cast<int>(i % kStarts)), static_cast<std::int32_t>(1 + kStarts + i));
}

CheckBatch StepScene::lay(std::int64_t size, Layout layout, int first) const {
  const std::int64_t probes = std::min<std::int64_t>(kProbes, size);
  const bool permuted = layout == Layout::permuted;
  const auto rows = order_of(size, permuted ? size / 2 + 1 : 1, permuted ? size / 3 : 0);
  const auto blocks = order_of(most_rows_, permuted ? most_rows_ / 3 + 1 : 1, permuted ? size : 0);
  CheckBatch batch;
  batch.content.resize(static_cast<std::size_t>(size)), batch.block.resize(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) {
    const auto row = static_cast<std::size_t>(rows[static_cast<std::size_t>(i)]);
    batch.content[row] = kProbes + static_cast<int>((i + size) % (kContents - kProbes));
    batch.block[row] = static_cast<std::int32_t>(1 + kStarts + blocks[static_cast<std::size_t>(i)]);
  }
  for (std::int64_t probe = 0; probe < probes; ++probe) {  // from the first row to the last
    const std::int64_t i = probes == 1 ? 0 : probe * (size - 1) / (probes - 1);
    const std::int64_t row = rows[static_cast<std::size_t>(i)];
    batch.content[static_cast<std::size_t>(row)] = static_cast<int>((first + probe) % kProbes);
    batch.watched.push_back(static_cast<int>(row));
  }
  std::ranges::sort(batch.watched);
  if (layout == Layout::padded) pad(batch);
  return batch;
}

CheckBatch StepScene::all_watched(int size) const {
  CheckBatch batch;
  for (int row = 0; row < size; ++row) {
    batch.content.push_back(row % kContents);
    batch.block.push_back(1 + kStarts + row);
    batch.watched.push_back(row);
  }
  pad(batch);
  return batch;
}

StepPlan StepScene::plan(const CheckBatch& batch) const {
  StepPlan plan;
  plan.block = batch.block;
  for (const std::int32_t block : batch.block) {
    plan.index.push_back(std::max(block, 0));
    plan.sequence.push_back(block);
  }
  plan.present = plan.rows();
  return plan;
}

void StepScene::gather(const CheckBatch& batch, StepInputs& inputs) const {
  for (Bytes* each : {&inputs.mixed_qkv, &inputs.a, &inputs.b, &inputs.z}) each->clear();
  for (const int content : batch.content) {
    const int row = std::max(content, 0);
    const StepInputs& from = content < 0 || is_wild(content) ? wild_inputs_ : tame_inputs_;
    append(inputs.mixed_qkv, from.mixed_qkv, row), append(inputs.a, from.a, row);
    append(inputs.b, from.b, row), append(inputs.z, from.z, row);
  }
}

void StepScene::place(const CheckBatch& batch, Pool& pool) const {
  for (const int row : batch.watched)
    pool.copy(0, start_of(batch.content[static_cast<std::size_t>(row)]), batch.block[static_cast<std::size_t>(row)]);
}

std::vector<TapBytes> run_rows(Backend& backend, StepScene& scene, Pool& pool, const CheckBatch& batch, TapSet want,
                               const Contract& contract) {
  StepInputs inputs;
  StepOutputs outputs;
  outputs.want = want;
  const StepPlan plan = scene.plan(batch);
  scene.place(batch, pool);
  scene.gather(batch, inputs);
  backend.step({0, plan, inputs, contract}, pool, outputs);
  std::vector<TapBytes> rows;
  for (const int row : batch.watched) {
    TapBytes& taps = rows.emplace_back();
    for (std::size_t t = 0; t < kTaps; ++t) {
      const Tap tap = static_cast<Tap>(t);
      if (!want.has(tap) || outputs[tap].empty()) continue;
      const std::size_t bytes = shape_of(tap, scene.model()).bytes();
      const auto from = outputs[tap].begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(row) * bytes);
      taps[t].assign(from, from + static_cast<std::ptrdiff_t>(bytes));
    }
    at(taps, Tap::state).resize(scene.model().state_bytes()),
        at(taps, Tap::conv_state).resize(scene.model().conv_bytes());
    pool.read(0, batch.block[static_cast<std::size_t>(row)], at(taps, Tap::state), at(taps, Tap::conv_state));
  }
  return rows;
}

}  // namespace gdnsim
