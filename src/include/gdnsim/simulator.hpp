// The one step loop. Recording and replaying are this loop with another observer, so they cannot drift apart.
#pragma once

#include <cstdint>
#include <vector>

#include "gdnsim/backend.hpp"
#include "gdnsim/contract.hpp"
#include "gdnsim/pool.hpp"
#include "gdnsim/stream.hpp"

namespace gdnsim {

/// What an observer sees after one layer of one step.
struct StepView {
  std::int64_t step;
  int layer;
  const StepPlan& plan;
  const StepInputs& inputs;
  const StepOutputs& outputs;
  Pool& pool;     // after the step; an observer may overwrite blocks (local comparison does)
  bool executed;  // false for a step of Path::opaque: nothing ran, outputs are stale
};

/// One layer of a step that is to come, when an observer is asked what it will look at.
struct ComingStep {
  std::int64_t step;
  int layer;
  const StepPlan& plan;
  bool next;  // its events have been applied, and all steps before it were seen
};

class Observer {
 public:
  virtual ~Observer() = default;
  /// Names the blocks that this observer will look at after that step, and returns true; then many steps can run at once, and
  /// `before` and `after` see those blocks only. False: it may look at any, or write to some, so it goes step by step.
  virtual bool looks_at(const ComingStep& coming, std::vector<Look>& looks) { return (void)coming, (void)looks, false; }
  /// Before one event is applied to one layer of the pool.
  virtual void event_coming(const Event& event, int layer, Pool& pool) { (void)event, (void)layer, (void)pool; }
  /// After one event was applied to one layer of the pool. `event.block` is the block it changed (`free` and `allocate` change nothing).
  virtual void event_applied(const Event& event, int layer, Pool& pool) { (void)event, (void)layer, (void)pool; }
  /// Before the step runs, after its events were applied; no row has moved yet (StepPlan::source).
  virtual void before(std::int64_t step, int layer, const StepPlan& plan, Pool& pool) {
    (void)step, (void)layer, (void)plan, (void)pool;
  }
  virtual void after(const StepView& view) { (void)view; }
  /// After all layers of a step.
  virtual void step_done(std::int64_t step) { (void)step; }
  /// True ends the loop early (after the current step).
  virtual bool enough() const { return false; }
};

/// Looks at nothing: for steps that are only gone through.
class Nobody final : public Observer {
 public:
  bool looks_at(const ComingStep&, std::vector<Look>&) override { return true; }
};

/// Adds a block to look at, once; its bytes when anybody wants them.
void add_look(std::vector<Look>& looks, std::int32_t block, bool bytes);

struct Simulation {
  Stream& stream;
  Backend& backend;
  const ContractSet& contracts;
  std::vector<int> layers;  // positions, ascending
  std::int64_t last_step;   // runs steps first_step .. last_step - 1
  TapSet taps{Tap::conv_out, Tap::core_out, Tap::norm_out};
  std::int64_t first_step = 0;  // above 0: the pool already holds the state before it; earlier events are not applied
};

/// Runs the steps in order; in each step the layers in order: events, then each moving row's state is copied from its source
/// to its block, then the step, then the observer. `pool` came from
/// `backend.make_pool(stream.model(), layers)`, zeroed unless first_step says otherwise.
void simulate(const Simulation& simulation, Pool& pool, Observer& observer);

}  // namespace gdnsim
