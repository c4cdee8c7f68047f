// A stream and a backend under twists: the simulator runs them like any other. Private to explain.
#pragma once

#include "core/forwarding_backend.hpp"
#include "explain/trial.hpp"
#include "gdnsim/stream_view.hpp"

namespace gdnsim::explaining {

using TwistList = std::vector<const Twist*>;

/// Events that a twist replaces are shown as `free`, which changes nothing.
class TwistedStream final : public StreamView {
 public:
  TwistedStream(Stream& stream, const TwistList& twists, int layer);
  const LayerParams& params(int layer) const override { return layer == layer_ ? params_ : whole_.params(layer); }
  std::span<const Event> events() const override { return events_; }

 private:
  const int layer_;
  std::vector<Event> events_;
  LayerParams params_;
};

/// Rows under another contract and padded rows are run apart, each from the pool as it stands; a row does not see the others.
class TwistedBackend final : public ForwardingBackend {
 public:
  TwistedBackend(Backend& backend, const TwistList& twists) : ForwardingBackend(backend), twists_(twists) {}
  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override;

  Still still;  // set before each step, by whoever sees the pool then

 private:
  void run_rows(const StepArgs& args, const StepInputs& inputs, Pool& pool, StepOutputs& outputs);
  using PaddedRows = std::vector<std::pair<PaddedRow, Words>>;  // with the block as it was before the step
  void run_padded(const StepArgs& args, const StepInputs& inputs, const PaddedRows& padded, Pool& pool,
                  StepOutputs& outputs);

  const TwistList twists_;
};

}  // namespace gdnsim::explaining
