// A window: consecutive steps of every layer run at once, layer by layer, when it is known which blocks will be looked at.
// Private to the simulator.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "gdnsim/simulator.hpp"

namespace gdnsim {

/// What will be run at once.
struct WindowPlan {
  std::vector<StepPlan> plans;                        // [steps]
  std::vector<std::vector<std::vector<Look>>> looks;  // [layers of the simulation][steps]
};

/// The steps from `first` on: at most `at_most` of them, no event between them, none opaque, each with its looks known, all
/// within the memory that a window may take. Empty when the first is none of these. `next`: as ComingStep means it.
WindowPlan plan_window(const Simulation& simulation, Observer& observer, std::int64_t first, bool next,
                       std::int64_t at_most);

/// The pool as an observer sees it within a window: the blocks that it named, as they were after one step.
class WindowPool final : public Pool {
 public:
  WindowPool(const Model& model, std::vector<int> layers) : Pool(model, std::move(layers)) {}
  void show(int layer, std::span<const KeptBlock> kept) { layer_ = layer, kept_ = kept; }

  void read(int layer, std::int32_t block, std::span<std::byte> recurrent, std::span<std::byte> conv) const override;
  bool look(int layer, std::int32_t block, BlockBytes& bytes) const override;
  BlockDigest digest(int layer, std::int32_t block) const override;
  void write(int layer, std::int32_t block, std::span<const std::byte> recurrent,
             std::span<const std::byte> conv) override;
  void zero(int layer, std::int32_t block) override;
  void copy(int layer, std::int32_t from, std::int32_t to) override;

 private:
  const KeptBlock& kept(int layer, std::int32_t block, bool bytes) const;

  int layer_ = -1;
  std::span<const KeptBlock> kept_;
};

/// Runs windows one after another: while one is computed, the one before it is shown to the observer and the inputs of the
/// next are read, both by one thread, so that the stream and the recording never have two readers.
class WindowRunner {
 public:
  WindowRunner(const Simulation& simulation, Pool& pool, Observer& observer);
  /// Runs the window and those that follow it without an event between; returns the step to go on with. Stops early when the
  /// observer has enough; the pool is then further on than the last step it saw.
  std::int64_t run(WindowPlan first, std::int64_t& at_once, std::int64_t longest);

 private:
  struct Window {
    WindowPlan plan;
    std::vector<std::vector<StepInputs>> inputs;  // [layers][steps]
    std::vector<std::vector<WindowStep>> done;    // [layers][steps]
  };
  void read(Window& window);
  void compute(Window& window);
  void show(const Window& window);
  void show_step(const Window& window, std::size_t step);
  WindowPlan plan_after(const WindowPlan& window, std::int64_t at_most);

  const Simulation& simulation_;
  Pool& pool_;
  Observer& observer_;
  WindowPool seen_;
  std::array<Window, 3> windows_;  // being shown, computed and read; they keep their storage
};

}  // namespace gdnsim
