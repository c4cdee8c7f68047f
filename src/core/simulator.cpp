#include "gdnsim/simulator.hpp"

#include <algorithm>

#include "core/window.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

/// Windows grow: an observer that has enough after a few steps has not paid for hundreds.
constexpr std::int64_t kFirstWindow = 4;

/// The loop's moving parts: what is reused from step to step, and how far the events have been applied.
struct Loop {
  const Simulation& simulation;
  Pool& pool;
  Observer& observer;
  StepInputs inputs;
  StepOutputs outputs;
  std::size_t next_event = 0;
};

/// Applies the events that name this step, to every layer that is run and that they name.
void apply_events(Loop& loop, std::int64_t step) {
  const auto events = loop.simulation.stream.events();
  for (; loop.next_event < events.size() && events[loop.next_event].step <= step; ++loop.next_event) {
    const Event& event = events[loop.next_event];
    for (int layer : loop.simulation.layers) {
      if (event.layer != -1 && event.layer != layer) continue;
      loop.observer.event_coming(event, layer, loop.pool);
      loop.pool.apply(event, layer, loop.simulation.stream);
      loop.observer.event_applied(event, layer, loop.pool);
    }
  }
}

/// A row that moves takes both states along. No source is another row's block, so the order is nobody's.
void move_rows(const StepPlan& plan, int layer, Pool& pool) {
  for (std::size_t row = 0; row < plan.source.size(); ++row)
    if (plan.start(row) != plan.block[row]) pool.copy(layer, plan.source[row], plan.block[row]);
}

void run_layer(Loop& loop, const StepPlan& plan, int layer) {
  const Simulation& s = loop.simulation;
  loop.observer.before(plan.step, layer, plan, loop.pool);
  const bool executed = plan.path != Path::opaque;
  if (executed) {
    move_rows(plan, layer, loop.pool);
    s.stream.inputs(plan.step, layer, loop.inputs);
    s.backend.step({layer, plan, loop.inputs, s.contracts.of(plan.path)}, loop.pool, loop.outputs);
  }
  loop.observer.after({plan.step, layer, plan, loop.inputs, loop.outputs, loop.pool, executed});
}

void run_step(Loop& loop, std::int64_t step) {
  const StepPlan plan = loop.simulation.stream.plan(step);
  for (int layer : loop.simulation.layers) run_layer(loop, plan, layer);
  loop.observer.step_done(step);
}

}  // namespace

void add_look(std::vector<Look>& looks, std::int32_t block, bool bytes) {
  const auto found = std::ranges::find(looks, block, &Look::block);
  if (found == looks.end())
    looks.push_back({block, bytes});
  else
    found->bytes |= bytes;
}

void simulate(const Simulation& simulation, Pool& pool, Observer& observer) {
  require_defined(simulation.contracts.decode, simulation.stream.model());
  require_defined(simulation.contracts.mixed, simulation.stream.model());
  Loop loop{simulation, pool, observer, {}, {}};
  loop.outputs.want = simulation.taps;
  const auto events = simulation.stream.events();
  while (loop.next_event < events.size() && events[loop.next_event].step < simulation.first_step) ++loop.next_event;
  simulation.backend.prepare(simulation.stream, simulation.layers);
  WindowRunner windows(simulation, pool, observer);
  const std::int64_t longest = simulation.backend.steps_at_once(simulation.stream.model());
  std::int64_t at_once = kFirstWindow;
  for (std::int64_t step = simulation.first_step; step < simulation.last_step && !observer.enough();) {
    apply_events(loop, step);
    WindowPlan window = plan_window(simulation, observer, step, true, std::min(at_once, longest));
    if (window.plans.size() > 1)
      step = windows.run(std::move(window), at_once, longest);
    else
      run_step(loop, step++);
  }
}

}  // namespace gdnsim
