// A tiny made-up stream and backend for tests of what comes after a step: every byte is a known pattern of step, layer and
// block, inactive rows, an opaque step, a mixed step and events included. No arithmetic.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include <gdnsim/log.hpp>
#include <gdnsim/simulator.hpp>

#include "support/pattern.hpp"

namespace gdnsim::test {

inline Model fake_model() {
  Model model;
  model.H = 1, model.HV = 2, model.K = 4, model.V = 3, model.W = 3;
  model.scale = 0.5f;
  model.num_blocks = 6;
  model.norm_eps = 1e-6f;
  model.layer_ids = {0, 2, 5};
  return model;
}

/// Rows are block 1 + (step + row) % 5; row 1 is inactive every third step. Step 2 is mixed, step 3 opaque.
class FakeStream final : public Stream {
 public:
  FakeStream(std::int64_t steps, int rows, Model model = fake_model()) : model_(model), steps_(steps), rows_(rows) {
    params_.resize(static_cast<std::size_t>(model_.layers()));
    if (steps > 4)
      events_ = {{1, -1, 5, EventKind::load, 7},
                 {2, 2, 4, EventKind::copy, 5},
                 {2, 0, 1, EventKind::free, -1},
                 {4, 0, 3, EventKind::load, 9},
                 {4, -1, 2, EventKind::zero, -1}};
  }
  const Model& model() const override { return model_; }
  const LayerParams& params(int layer) const override { return params_[static_cast<std::size_t>(layer)]; }
  std::int64_t steps() const override { return steps_; }
  int rows() const override { return rows_; }
  std::span<const Event> events() const override { return events_; }
  bool has_z(int) const override { return true; }
  void inputs(std::int64_t, int, StepInputs&) override {}
  void load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) override {
    recurrent = pattern(model_.state_bytes(), 1000u + static_cast<unsigned>(source));
    conv = pattern(model_.conv_bytes(), 2000u + static_cast<unsigned>(source));
  }
  std::string source() override { return "trace:0123456789abcdef0123456789abcdef"; }

  StepPlan plan(std::int64_t step) const override {
    std::vector<std::int32_t> index;
    std::vector<std::int64_t> sequence;
    for (int row = 0; row < rows_; ++row) {
      const bool inactive = row == 1 && step % 3 == 0;
      index.push_back(inactive ? -1 : static_cast<std::int32_t>(1 + (step + row) % 5));
      sequence.push_back(inactive ? -1 : 100 + row);
    }
    const Path path = step == 2 ? Path::mixed : step == 3 ? Path::opaque : Path::decode;
    return make_plan(model_, step, path, index, sequence, step == 5 ? rows_ - 1 : rows_, "fake");
  }

 private:
  Model model_;
  std::int64_t steps_;
  int rows_;
  std::vector<LayerParams> params_;
  std::vector<Event> events_;
};

/// Layer 2 has no norm: rstd and norm_out stay empty there. `stray` writes a block that no row names, at step 4.
class FakeBackend final : public Backend {
 public:
  explicit FakeBackend(bool stray = false) : stray_(stray) {}
  std::string name() const override { return "fake"; }
  std::string description() const override { return "patterns"; }
  std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) override {
    return std::make_unique<HostPool>(model, std::move(layers));
  }
  void prepare(const Stream&, const std::vector<int>&) override {}

  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override {
    const Model& model = pool.model();
    const unsigned seed = static_cast<unsigned>(args.plan.step * 100 + args.layer * 20);
    for (std::size_t i = 0; i < kTaps; ++i) {
      const Tap tap = static_cast<Tap>(i);
      const bool absent = args.layer == 2 && (tap == Tap::rstd || tap == Tap::norm_out);
      const bool asked = outputs.want.has(tap) && tap != Tap::state && tap != Tap::conv_state && !absent;
      outputs[tap] =
          asked ? pattern(shape_of(tap, model).bytes() * args.plan.block.size(), seed + static_cast<unsigned>(i))
                : Bytes{};
    }
    for (std::int32_t block : args.plan.block)
      if (block >= 0) write(pool, args.layer, block, seed);
    if (stray_ && args.plan.step == 4) write(pool, args.layer, 0, seed);
  }

 private:
  void write(Pool& pool, int layer, std::int32_t block, unsigned seed) {
    const unsigned own = 50000u + seed + static_cast<unsigned>(block);
    pool.write(layer, block, pattern(pool.model().state_bytes(), own), pattern(pool.model().conv_bytes(), own + 7));
  }
  bool stray_;
};

/// What a log of this stream's steps first .. first+steps-1 has to be told.
inline LogHeader fake_header(Stream& stream, std::int64_t first, std::int64_t steps, const StatePolicy& policy) {
  LogHeader header;
  header.model = stream.model();
  header.layers = {0, 2};
  header.contracts = contract_set("triton-sm90");
  header.source = stream.source();
  header.first_step = first;
  header.steps = steps;
  header.rows = stream.rows();
  header.state = policy;
  for (std::int64_t t = first; t < first + steps; ++t) header.plans.push_back(stream.plan(t));
  header.events = events_of(stream, first, first + steps);
  return header;
}

/// Runs the stream up to the log's last step with the observer attached.
inline void fake_run(Stream& stream, const LogHeader& header, Observer& observer, bool stray = false) {
  FakeBackend backend(stray);
  const ContractSet contracts = contract_set("golden");
  const auto pool = backend.make_pool(stream.model(), header.layers);
  simulate({stream, backend, contracts, header.layers, header.first_step + header.steps, header.taps}, *pool, observer);
}

}  // namespace gdnsim::test
