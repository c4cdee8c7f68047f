// What `gdnsim bench` measures of the CUDA backend: every variant of the table, on the device alone and as the program runs it.
#include "gdnsim/bench.hpp"

#include <algorithm>
#include <cmath>

#include "bench_norm.hpp"
#include "bench_scene.hpp"
#include "bench_times.hpp"
#include "device_pool.hpp"
#include "gdnsim/error.hpp"
#include "layer.hpp"
#include "norm_rows.hpp"
#include "step_run.hpp"
#include "variants.hpp"
#include "window_run.hpp"

namespace gdnsim {
namespace {

using namespace cuda;

constexpr int kCalls = 20;                              // in a graph that repeats one step
constexpr int kWindowRows = 1 << 14, kMostSteps = 256;  // of a window on the device alone: 700 MB of inputs and outputs

/// What a step must move, beside parameters: state and window in and out, x, a, b and core_out; conv_out where it is wanted.
double step_bytes(const Model& m, int rows, bool conv_out) {
  const double state = 2.0 * static_cast<double>(m.state_bytes() + m.conv_bytes());
  const double values = (conv_out ? 2.0 : 1.0) * static_cast<double>(m.dim()) + 1.0 * m.HV * m.V + 2.0 * m.HV;
  return rows * (state + 2.0 * values);
}

/// All measures of one batch size, state type and contract.
class CaseBench {
 public:
  CaseBench(const BenchOptions& options, const DeviceInfo& device, double rate, const BenchInputs& inputs,
            std::vector<Measure>& measures)
      : options_(options), device_(device), rate_(rate), in_(inputs), measures_(measures) {}

  void run(const Variant& variant) {
    const bool windows = variant.name == "resident";
    std::vector<std::string> stages;
    for (const std::string stage : {"step", "window", "kernels", "cold"})
      if (options_.wants_stage(stage) && (stage == "kernels" || (stage == "window") == windows))
        stages.push_back(stage);
    if (stages.empty()) return;
    std::string why = variant.refuses(in_.contracts().decode, in_.model());
    std::unique_ptr<Backend> backend;
    try {
      if (why.empty()) backend = make_variant(options_.backend, variant.name, false);
    } catch (const Error& reason) {
      why = reason.what();
    }
    if (!why.empty()) {
      for (const std::string& stage : stages) add(stage, variant).skipped = why;
      return;
    }
    backend->prepare(in_.stream(), {0});
    in_.require_golden(*backend, "variant " + std::string(variant.name));
    const auto has = [&](const char* stage) { return std::ranges::find(stages, stage) != stages.end(); };
    if (has("step")) whole_steps(variant, *backend);
    if (has("window")) whole_windows(variant, *backend);
    if (windows && has("kernels")) resident(variant);
    if (!windows && (has("kernels") || has("cold"))) kernels(variant);
  }

 private:
  Measure& add(const std::string& stage, const Variant& variant) {
    Measure& m = measures_.emplace_back();
    m.stage = stage, m.variant = variant.name, m.contract = in_.contracts().decode.name;
    m.shape = bench_shape(in_.model(), in_.rows());
    return m;
  }
  void measured(const std::string& stage, const Variant& variant, const Times& times, int steps, double bytes) {
    Measure& m = add(stage, variant);
    m.seconds = times.median / steps, m.best = times.best / steps;
    if (bytes == 0) return;
    m.floor = bytes / rate_;
    m.floor_is = bytes_at(rate_);
  }

  /// Steps as the program runs them one by one: inputs up, kernels, taps down.
  void whole_steps(const Variant& variant, Backend& backend) {
    const auto pool = backend.make_pool(in_.model(), {0});
    in_.fill(*pool);
    StepOutputs outputs;
    std::size_t next = 0;
    const auto step = [&] {
      const std::size_t t = next++ % in_.plans.size();
      const StepPlan& plan = in_.plans[t];
      backend.step({0, plan, in_.inputs[t], in_.contracts().of(plan.path)}, *pool, outputs);
    };
    measured("step", variant, call_times(options_.seconds, step), 1,
             step_bytes(in_.model(), in_.rows(), true) + norm_bytes(1LL * in_.rows() * in_.model().HV, in_.model().V));
  }

  /// The same, many at once.
  void whole_windows(const Variant& variant, Backend& backend) {
    const auto pool = backend.make_pool(in_.model(), {0});
    in_.fill(*pool);
    const std::vector<std::vector<Look>> nobody(in_.plans.size());
    std::vector<WindowStep> steps(in_.plans.size());
    const WindowArgs args{0, in_.plans, in_.inputs, in_.contracts(), nobody};
    measured("window", variant, call_times(options_.seconds, [&] { backend.steps(args, *pool, steps); }), in_.steps(),
             0);
  }

  /// On the device alone: conv update to recurrence, on the same blocks again and again, or on scattered others each time.
  void kernels(const Variant& variant) {
    Model model = in_.model();
    const std::size_t block = model.state_bytes() + model.conv_bytes(), blocks = static_cast<std::size_t>(in_.blocks());
    const std::size_t sets = std::clamp<std::size_t>(3 * device_.cache / (blocks * block) + 1, 2, 64);
    model.num_blocks = static_cast<std::int64_t>(1 + blocks * sets);
    DevicePool pool(model, {0}, device_.number);
    in_.fill(pool);
    for (std::size_t to = blocks + 1; to <= blocks * sets; ++to)
      pool.copy(0, static_cast<std::int32_t>((to - 1) % blocks + 1), static_cast<std::int32_t>(to));
    const Layer layer(in_.stream().params(0), true);
    const auto job = [&](std::size_t set) -> StepJob {
      return {
          model,
          in_.contracts().decode,
          layer.pointers(),
          {pool.recurrent(0) + set * blocks * model.state_bytes(), pool.conv(0) + set * blocks * model.conv_bytes()},
          true,
          {Tap::core_out, Tap::norm_out},
          in_.rows()};
    };
    const auto times = [&](const char* stage, const std::vector<std::int32_t>& rows, int calls, bool others) {
      if (!options_.wants_stage(stage)) return;
      StepRun run(device_, variant.name, false);
      Queue queue;
      run.stage(job(0), rows, in_.inputs[0]);
      run.send();
      const auto call = [&](int i) { run.launch_step(job(others ? static_cast<std::size_t>(i) : 0), queue.stream()); };
      measured(stage, variant, graph_times(queue, options_.seconds, calls, call), 1,
               step_bytes(in_.model(), in_.rows(), false));
    };
    times("kernels", in_.plans[0].block, kCalls, false);
    times("cold", in_.scattered(), static_cast<int>(sets), true);
  }

  /// On the device alone: all kernels of a window but the norm, no looks, the steps again and again.
  void resident(const Variant& variant) {
    const auto steps = static_cast<std::size_t>(std::clamp(kWindowRows / in_.rows(), 1, kMostSteps));
    std::vector<StepPlan> plans;
    std::vector<StepInputs> inputs;
    for (std::size_t t = 0; t < steps; ++t) {
      plans.push_back(in_.plans[t % in_.plans.size()]);
      inputs.push_back(in_.inputs[t % in_.inputs.size()]);
    }
    DevicePool pool(in_.model(), {0}, device_.number);
    in_.fill(pool);
    const Layer layer(in_.stream().params(0), true);
    const std::vector<std::vector<Look>> nobody(steps);
    const WindowArgs args{0, plans, inputs, in_.contracts(), nobody};
    const WindowJob job{in_.model(), args, layer.pointers(), true, device_.multiprocessors};
    WindowRun run(0);
    Queue queue;
    const WindowView view = run.stage(job, plan_window(plans, nobody), pool);
    run.wait();
    const auto window = [&](int) { run.launch(job, view, queue.stream()); };
    measured("kernels", variant, graph_times(queue, options_.seconds, 1, window), static_cast<int>(steps), 0);
    set_issue_floor(measures_.back());
  }

  /// Each state element takes so many f32 instructions a step (rule A2.5); every lane can issue one a clock.
  void set_issue_floor(Measure& m) const {
    const Contract& contract = in_.contracts().decode;
    const Model& model = in_.model();
    const bool fused = contract.update == Update::fma && contract.state_dot.product == Product::fma;
    const int each = fused ? 4 : 7, lanes = device_.major == 8 && device_.minor == 0 ? 64 : 128;
    int kilohertz = 0;
    GDNSIM_CUDA(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device_.number));
    const double elements = 1.0 * in_.rows() * model.HV * model.V * model.K;
    m.floor = each * elements / (1e3 * kilohertz * device_.multiprocessors * lanes);
    m.floor_is = std::to_string(each) + " f32 instructions a state element at the highest clock";
  }

  const BenchOptions& options_;
  const DeviceInfo& device_;
  const double rate_;
  const BenchInputs& in_;
  std::vector<Measure>& measures_;
};

}  // namespace

std::vector<Measure> bench_cuda(const BenchOptions& options) {
  const DeviceInfo device = open_device(options.backend.device);
  const double rate = measured_memory_rate();
  std::vector<Measure> measures;
  bench_norms(options, rate, measures);
  for (DType state : options.states)
    for (int rows : options.rows) {
      BenchInputs inputs(options, state, rows);
      for (const char* preset : kBenchContracts) {
        if (!options.wants_contract(preset)) continue;
        inputs.set_contract(preset);
        CaseBench bench(options, device, rate, inputs, measures);
        for (const Variant& variant : variants())
          if (options.wants_variant(variant.name)) bench.run(variant);
      }
    }
  return measures;
}

}  // namespace gdnsim
