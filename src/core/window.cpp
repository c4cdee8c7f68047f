#include "core/window.hpp"

#include <algorithm>
#include <future>

#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

constexpr std::size_t kWindowBytes = std::size_t{40}
                                     << 20;  // inputs, outputs and kept blocks of all layers; three are held

/// What one step of one layer takes in memory, without its looks.
std::size_t step_bytes(const Stream& stream, int layer, TapSet taps) {
  const Model& m = stream.model();
  const std::int64_t rows = stream.rows(), values = 1LL * m.HV * m.V;
  std::size_t bytes = static_cast<std::size_t>(rows * (m.dim() + 2LL * m.HV + (stream.has_z(layer) ? values : 0))) *
                      size_of(m.act_dtype);
  for (std::size_t i = 0; i < kTaps; ++i)
    if (taps.has(static_cast<Tap>(i)))
      bytes += static_cast<std::size_t>(rows) * shape_of(static_cast<Tap>(i), m).bytes();
  return bytes;
}

std::size_t look_bytes(const Model& model, const std::vector<Look>& looks) {
  std::size_t bytes = 0;
  for (const Look& look : looks)
    bytes += look.bytes ? model.state_bytes() + model.conv_bytes() : 8 * static_cast<std::size_t>(model.HV + 2);
  return bytes;
}

/// The first step after `first` that has an event before it.
std::int64_t next_event_after(const Stream& stream, std::int64_t first) {
  const auto events = stream.events();
  const auto at = std::ranges::upper_bound(events, first, {}, [](const Event& e) { return std::int64_t{e.step}; });
  return at == events.end() ? stream.steps() : at->step;
}

/// Does a row go on from another block? That is copied between steps.
bool moves(const StepPlan& plan) {
  for (std::size_t row = 0; row < plan.source.size(); ++row)
    if (plan.start(row) != plan.block[row]) return true;
  return false;
}

}  // namespace

WindowPlan plan_window(const Simulation& s, Observer& observer, std::int64_t first, bool next, std::int64_t at_most) {
  WindowPlan window;
  window.looks.resize(s.layers.size());
  const std::int64_t end = std::min({first + at_most, s.last_step, next_event_after(s.stream, first)});
  std::size_t each = 0, bytes = 0;
  for (int layer : s.layers) each += step_bytes(s.stream, layer, s.taps);
  for (std::int64_t step = first; step < end; ++step) {
    StepPlan plan = s.stream.plan(step);
    if (plan.path == Path::opaque || plan.in_launch() || moves(plan)) break;
    std::vector<std::vector<Look>> looks(s.layers.size());
    bool known = true;
    bytes += each;
    for (std::size_t i = 0; i < looks.size() && known; ++i) {
      known = observer.looks_at({step, s.layers[i], plan, next && step == first}, looks[i]);
      bytes += look_bytes(s.stream.model(), looks[i]);
    }
    if (!known || bytes > kWindowBytes) break;
    window.plans.push_back(std::move(plan));
    for (std::size_t i = 0; i < looks.size(); ++i) window.looks[i].push_back(std::move(looks[i]));
  }
  return window;
}

const KeptBlock& WindowPool::kept(int layer, std::int32_t block, bool bytes) const {
  const auto found = std::ranges::find(kept_, block, &KeptBlock::block);
  GDNSIM_CHECK(layer == layer_ && found != kept_.end());  // an observer looks at what it named
  GDNSIM_CHECK(!bytes || !found->recurrent.empty());
  return *found;
}

void WindowPool::read(int layer, std::int32_t block, std::span<std::byte> recurrent, std::span<std::byte> conv) const {
  const KeptBlock& from = kept(layer, block, true);
  std::ranges::copy(from.recurrent, recurrent.begin());
  std::ranges::copy(from.conv, conv.begin());
}

bool WindowPool::look(int layer, std::int32_t block, BlockBytes& bytes) const {
  const KeptBlock& from = kept(layer, block, true);
  bytes = {from.recurrent, from.conv};
  return true;
}

BlockDigest WindowPool::digest(int layer, std::int32_t block) const { return kept(layer, block, false).digest; }

// What comes later has been computed already.
void WindowPool::write(int, std::int32_t, std::span<const std::byte>, std::span<const std::byte>) {
  GDNSIM_CHECK(!"a window's pool is only looked at");
}
void WindowPool::zero(int, std::int32_t) { GDNSIM_CHECK(!"a window's pool is only looked at"); }
void WindowPool::copy(int, std::int32_t, std::int32_t) { GDNSIM_CHECK(!"a window's pool is only looked at"); }

WindowRunner::WindowRunner(const Simulation& simulation, Pool& pool, Observer& observer)
    : simulation_(simulation), pool_(pool), observer_(observer), seen_(simulation.stream.model(), simulation.layers) {}

std::int64_t WindowRunner::run(WindowPlan first, std::int64_t& at_once, std::int64_t longest) {
  Window *shown = nullptr, *now = &windows_[0], *next = &windows_[1], *spare = &windows_[2];
  now->plan = std::move(first);
  read(*now);
  for (;;) {
    at_once = std::min(2 * at_once, longest);
    next->plan = plan_after(now->plan, at_once);
    auto beside = std::async(std::launch::async, [&] {
      if (shown != nullptr) show(*shown);
      read(*next);
    });
    compute(*now);
    beside.get();
    if (next->plan.plans.empty() || observer_.enough()) break;
    Window* free = shown != nullptr ? shown : spare;
    shown = now, now = next, next = free;
  }
  show(*now);
  return now->plan.plans.back().step + 1;
}

/// Empty when an event comes first.
WindowPlan WindowRunner::plan_after(const WindowPlan& window, std::int64_t at_most) {
  const std::int64_t first = window.plans.back().step + 1;
  if (next_event_after(simulation_.stream, first - 1) == first) return {};
  return plan_window(simulation_, observer_, first, false, at_most);
}

void WindowRunner::read(Window& window) {
  window.inputs.resize(simulation_.layers.size());
  for (std::size_t slot = 0; slot < window.inputs.size(); ++slot) {
    auto& inputs = window.inputs[slot];
    if (inputs.size() < window.plan.plans.size()) inputs.resize(window.plan.plans.size());
    for (std::size_t i = 0; i < window.plan.plans.size(); ++i)
      simulation_.stream.inputs(window.plan.plans[i].step, simulation_.layers[slot], inputs[i]);
  }
}

void WindowRunner::compute(Window& window) {
  const std::size_t steps = window.plan.plans.size();
  window.done.resize(simulation_.layers.size());
  for (std::size_t slot = 0; slot < window.done.size(); ++slot) {
    auto& done = window.done[slot];
    if (done.size() < steps) done.resize(steps);
    for (std::size_t i = steps; i < done.size(); ++i) done[i].kept.clear();  // a longer window's
    for (WindowStep& step : done) step.outputs.want = simulation_.taps;
    const WindowArgs args{simulation_.layers[slot], window.plan.plans, std::span(window.inputs[slot]).first(steps),
                          simulation_.contracts, window.plan.looks[slot]};
    simulation_.backend.steps(args, pool_, std::span(done).first(steps));
  }
}

void WindowRunner::show(const Window& window) {
  for (std::size_t step = 0; step < window.plan.plans.size() && !observer_.enough(); ++step) {
    show_step(window, step);
    observer_.step_done(window.plan.plans[step].step);
  }
}

void WindowRunner::show_step(const Window& window, std::size_t step) {
  const StepPlan& who = window.plan.plans[step];
  for (std::size_t slot = 0; slot < simulation_.layers.size(); ++slot) {
    const int layer = simulation_.layers[slot];
    const WindowStep& done = window.done[slot][step];
    seen_.show(layer, done.kept);
    observer_.before(who.step, layer, who, seen_);
    observer_.after({who.step, layer, who, window.inputs[slot][step], done.outputs, seen_, true});
  }
}

}  // namespace gdnsim
