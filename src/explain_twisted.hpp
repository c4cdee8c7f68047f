// A stream and a backend under twists: the simulator runs them like any other. Private to explain.
#pragma once

#include "explain_trial.hpp"

namespace gdnsim::explaining {

using TwistList = std::vector<const Twist*>;

/// Events that a twist replaces are shown as `free`, which changes nothing.
class TwistedStream final : public Stream {
 public:
  TwistedStream(Stream& stream, const TwistList& twists, int layer);
  const Model& model() const override { return stream_.model(); }
  const LayerParams& params(int layer) const override { return layer == layer_ ? params_ : stream_.params(layer); }
  std::int64_t steps() const override { return stream_.steps(); }
  int rows() const override { return stream_.rows(); }
  StepPlan plan(std::int64_t step) const override { return stream_.plan(step); }
  std::span<const Event> events() const override { return events_; }
  bool has_z(int layer) const override { return stream_.has_z(layer); }
  void inputs(std::int64_t step, int layer, StepInputs& out) override { stream_.inputs(step, layer, out); }
  void load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) override {
    stream_.load_row(source, recurrent, conv);
  }
  std::string source() override { return stream_.source(); }

 private:
  Stream& stream_;
  const int layer_;
  std::vector<Event> events_;
  LayerParams params_;
};

/// Rows under another contract and padded rows are run apart, each from the pool as it stands; a row does not see the others.
class TwistedBackend final : public Backend {
 public:
  TwistedBackend(Backend& backend, const TwistList& twists) : backend_(backend), twists_(twists) {}
  std::string name() const override { return backend_.name(); }
  std::string description() const override { return backend_.description(); }
  std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) override {
    return backend_.make_pool(model, std::move(layers));
  }
  void prepare(const Stream& stream, const std::vector<int>& layers) override { backend_.prepare(stream, layers); }
  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override;

 private:
  void run_rows(const StepArgs& args, const StepInputs& inputs, Pool& pool, StepOutputs& outputs);
  using PaddedRows = std::vector<std::pair<PaddedRow, Words>>;  // with the block as it was before the step
  void run_padded(const StepArgs& args, const StepInputs& inputs, const PaddedRows& padded, Pool& pool,
                  StepOutputs& outputs);

  Backend& backend_;
  const TwistList twists_;
};

}  // namespace gdnsim::explaining
