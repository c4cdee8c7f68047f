// One side of a unit: the run of one layer under one contract and state type, and what it shows after each step. Private to drift.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "drift/measure.hpp"
#include "gdnsim/drift.hpp"
#include "gdnsim/oracle.hpp"
#include "gdnsim/simulator.hpp"
#include "gdnsim/stream_view.hpp"

namespace gdnsim {

/// A stream whose inputs of the last steps are at hand: both sides ask for the same ones, chunk by chunk.
class RecentInputs final : public StreamView {
 public:
  RecentInputs(Stream& whole, std::size_t steps) : StreamView(whole), recent_(steps) {}
  void inputs(std::int64_t step, int layer, StepInputs& out) override;

 private:
  struct Entry {
    std::int64_t step = -1;
    StepInputs inputs;
  };
  std::vector<Entry> recent_;  // [step mod its size]
};

/// A stream whose recurrent states have another type. Load rows are converted: rounded to nearest even, or widened.
class RetypedStream final : public StreamView {
 public:
  RetypedStream(Stream& whole, std::optional<DType> state);
  const Model& model() const override { return model_; }
  void load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) override;

 private:
  Model model_;
};

/// What a side shows after one step: its active rows, one after another.
struct SideStep {
  std::int64_t step = -1;
  bool executed = false;
  std::vector<std::int32_t> blocks;  // [active rows]
  Bytes core, norm;                  // words
  Numbers core_values, norm_values;  // the same; the oracle's own in double
  std::vector<Numbers> states;       // [active rows] when they are looked at after this step
  KeptSums kept;
  bool kept_known = false;  // of at least one row the state before the step is known
};

class DriftObserver final : public Observer {
 public:
  using Done = std::function<void(const SideStep&)>;
  /// Remembers the last `steps` steps. `oracle`: the backend when it is that.
  DriftObserver(const DriftSweep& sweep, const Model& model, int layer, const OracleBackend* oracle, std::size_t steps);
  void on_step(Done done) { done_ = std::move(done); }
  const SideStep& at(std::int64_t step) const;

  bool looks_at(const ComingStep& coming, std::vector<Look>& looks) override;
  void event_applied(const Event& event, int layer, Pool& pool) override;
  void after(const StepView& view) override;

 private:
  bool looks_after(std::int64_t step) const;
  SideStep& slot(std::int64_t step) { return recent_[static_cast<std::size_t>(step) % recent_.size()]; }
  void take_outputs(const StepView& view, SideStep& step) const;
  void take_tap(const StepView& view, Tap tap, Bytes& words, Numbers& values) const;
  void take_state(const Pool& pool, std::int32_t block, Numbers& out);
  void count_kept(const StepView& view, SideStep& step);
  const Numbers* known_before(std::int64_t step, std::int32_t block) const;

  struct Changed {
    std::int64_t step;  // the event's
    Numbers state;
  };
  const DriftSweep& sweep_;
  const Model& model_;
  const int layer_;
  const OracleBackend* const oracle_;
  std::vector<SideStep> recent_;             // [step mod its size]
  std::map<std::int32_t, Changed> changed_;  // blocks that an event changed
  Done done_;
  Bytes recurrent_, conv_;
};

/// A side with all it runs on.
class DriftRun {
 public:
  DriftRun(const DriftSweep& sweep, const DriftSide& side, const DriftOptions& options, Stream& stream, int layer,
           int threads, std::size_t remembers);
  void run(std::int64_t first_step, std::int64_t last_step);
  DriftObserver& observer() { return *observer_; }

 private:
  RetypedStream stream_;
  const int layer_;
  const ContractSet contracts_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<DriftObserver> observer_;
};

}  // namespace gdnsim
