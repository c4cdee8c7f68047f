#include "check/scene.hpp"

#include <algorithm>
#include <numeric>

#include "gdnsim/bench.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

constexpr int kInactive = 3;  // inputs of an inactive row, which nobody may look at: wild

/// An order of n numbers: every `step`th, round and round.
std::vector<std::int64_t> order_of(std::int64_t n, std::int64_t step, std::int64_t offset) {
  while (std::gcd(step, n) != 1) ++step;
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) order[static_cast<std::size_t>(i)] = (i * step + offset) % n;
  return order;
}

void pad(CheckBatch& batch) {
  CheckBatch padded;
  for (std::size_t row = 0; row < batch.rows(); ++row) {
    padded.content.push_back(batch.content[row]), padded.block.push_back(batch.block[row]);
    if (row % 3 == 0) padded.content.push_back(-1), padded.block.push_back(-1);
  }
  batch = std::move(padded);
}

}  // namespace

TapSet all_taps() {
  TapSet all;
  for (std::size_t t = 0; t < kTaps; ++t) all.add(static_cast<Tap>(t));
  return all;
}

std::string_view name_of(Layout layout) {
  return layout == Layout::straight   ? "batch sizes"
         : layout == Layout::permuted ? "permuted rows and blocks"
                                      : "padding between";
}

Model check_model(const CheckOptions& options) {
  Model model = bench_model(1, options.state);
  const std::string& shape = options.shape;
  if (shape == "tp4") {
    model.H = 4, model.HV = 8;
  } else if (shape == "small") {
    model.H = 2, model.HV = 4, model.K = 64, model.scale = 0.125f;
  } else if (shape != "tp1") {
    throw error("--shape: expected tp1, tp4 or small, found '", shape, "'");
  }
  return model;
}

std::vector<Model> other_models(const CheckOptions& options) {
  Model odd = bench_model(1, options.state);
  odd.H = 2, odd.HV = 6, odd.W = 3, odd.layer_ids = {0, 2};
  Model usual = odd;  // as bench_model has it: K = V = 128
  odd.K = 37, odd.V = 19, odd.scale = 0.164399f;
  if (!undefined_because(options.contract, odd).empty()) odd.K = 64, odd.V = 128, odd.scale = 0.125f;
  return {odd, usual};
}

StepScene::StepScene(Model model, std::int64_t most_rows, bool conv_bias)
    : most_rows_(most_rows), model_(std::move(model)) {
  model_.num_blocks = first_free() + most_rows;
  contents_ = std::make_unique<Contents>(model_, conv_bias);
}

std::vector<int> StepScene::layers() const {
  std::vector<int> all(model_.layer_ids.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::unique_ptr<Pool> StepScene::make_pool(Backend& backend) const {
  auto pool = backend.make_pool(model_, layers());
  for (int content = 0; content < kContents; ++content)
    pool->write(pool->layers().back(), start_of(content), contents_->start(content).recurrent,
                contents_->start(content).conv);
  return pool;
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
    batch.block[row] = first_free() + static_cast<std::int32_t>(blocks[static_cast<std::size_t>(i)]);
  }
  for (std::int64_t probe = 0; probe < probes; ++probe) {  // from the first row to the last
    const std::int64_t i = probes == 1 ? 0 : probe * (size - 1) / (probes - 1);
    const std::int64_t row = rows[static_cast<std::size_t>(i)];
    batch.content[static_cast<std::size_t>(row)] = static_cast<int>((first + probe) % kProbes);
  }
  if (layout == Layout::padded) pad(batch);
  return batch;
}

CheckBatch StepScene::lay_all(int size) const {
  CheckBatch batch;
  for (int row = 0; row < size; ++row) {
    batch.content.push_back(row % kContents);
    batch.block.push_back(first_free() + row);
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
  // Inactive rows at the end are not there; what their index says means nothing, and here names a block.
  plan.present = plan.rows();
  while (plan.present > 1 && !batch.active(static_cast<std::size_t>(plan.present - 1)))
    plan.index[static_cast<std::size_t>(--plan.present)] = start_of(0);
  return plan;
}

void StepScene::gather(const CheckBatch& batch, StepInputs& inputs) const {
  for (Bytes* each : {&inputs.mixed_qkv, &inputs.a, &inputs.b, &inputs.z}) each->clear();
  for (const int content : batch.content) contents_->append(content < 0 ? kInactive : content, inputs);
}

void StepScene::place(const CheckBatch& batch, Pool& pool) const {
  for (std::size_t row = 0; row < batch.rows(); ++row)
    if (batch.active(row)) pool.copy(pool.layers().back(), start_of(batch.content[row]), batch.block[row]);
}

void fill_with_ones(StepOutputs& outputs, const Model& model, std::size_t rows) {
  for (std::size_t t = 0; t < kTaps; ++t)
    if (const Tap tap = static_cast<Tap>(t); outputs.want.has(tap))
      outputs[tap].assign(shape_of(tap, model).bytes() * rows, std::byte{0xFF});
}

StepOutputs run_launch(Backend& backend, const StepScene& scene, Pool& pool, const CheckBatch& batch, TapSet want,
                       const Contract& contract) {
  StepInputs inputs;
  StepOutputs outputs;
  outputs.want = want;
  fill_with_ones(outputs, scene.model(), batch.rows());
  scene.place(batch, pool);
  scene.gather(batch, inputs);
  backend.step({pool.layers().back(), scene.plan(batch), inputs, contract}, pool, outputs);
  return outputs;
}

KeptBlock keep_block(const Pool& pool, std::int32_t block) { return keep_block(pool, block, pool.layers().back()); }

KeptBlock keep_block(const Pool& pool, std::int32_t block, int layer) {
  KeptBlock kept;
  kept.block = block, kept.digest = pool.digest(layer, block);
  kept.make_room(true, pool.model());
  pool.read(layer, block, kept.recurrent, kept.conv);
  return kept;
}

}  // namespace gdnsim
