// What `gdnsim bench` measures of the CPU backend: every variant of the table, stage by stage.
#include <omp.h>

#include "bench.hpp"
#include "gdnsim/bench.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/recipe.hpp"
#include "gdnsim/simulator.hpp"

namespace gdnsim {
namespace {

using golden::Variant;

constexpr int kWindowSteps = 16;

class Nothing final : public Observer {};

/// One layer's backend, pool and the inputs of some steps, the pool as it is after the first.
class Scene {
 public:
  Scene(const Variant& variant, const BenchOptions& options, const Model& model, int rows, const ContractSet& contracts)
      : stream_(stream_of(model, rows)), contracts_(contracts), looks_(kWindowSteps), done_(kWindowSteps) {
    BackendOptions backend = options.backend;
    backend.cpu_level = std::string(variant.name);
    backend_ = make_golden(backend);
    pool_ = backend_->make_pool(model, {0});
    Nothing nobody;
    simulate({*stream_, *backend_, contracts_, {0}, 1}, *pool_, nobody);
    inputs_.resize(kWindowSteps);
    for (int step = 0; step < kWindowSteps; ++step) {
      plans_.push_back(stream_->plan(step));
      stream_->inputs(step, 0, inputs_[static_cast<std::size_t>(step)]);
    }
  }

  void step() {
    const std::size_t at = next_++ % kWindowSteps;
    backend_->step({0, plans_[at], inputs_[at], contracts_.of(plans_[at].path)}, *pool_, done_[at].outputs);
  }
  void window() { backend_->steps({0, plans_, inputs_, contracts_, looks_}, *pool_, done_); }

 private:
  static std::unique_ptr<Stream> stream_of(const Model& model, int rows) {
    Recipe recipe;
    recipe.seed = 1, recipe.model = model, recipe.steps = kWindowSteps, recipe.rows = rows;
    return make_recipe_stream(recipe);
  }

  std::unique_ptr<Stream> stream_;
  const ContractSet& contracts_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Pool> pool_;
  std::vector<StepPlan> plans_;
  std::vector<StepInputs> inputs_;
  std::vector<std::vector<Look>> looks_;
  std::vector<WindowStep> done_;
  std::size_t next_ = 0;
};

void set_times(Measure& m, const golden::Times& times, int steps) {
  m.seconds = times.median / steps, m.best = times.best / steps;
}

/// Everything that is measured of one variant.
class VariantBench {
 public:
  VariantBench(const Variant& variant, const BenchOptions& options, std::vector<Measure>& measures)
      : variant_(variant),
        options_(options),
        threads_(options.backend.threads > 0 ? options.backend.threads : omp_get_max_threads()),
        peak_(variant.kernels != nullptr ? golden::peak_rate(variant, options.seconds) : 0),
        measures_(measures) {}

  void run(const std::string& preset, DType state) {
    const ContractSet contracts = contract_set(preset);
    if (options_.wants_stage("recurrence")) recurrence(contracts, bench_model(1, state));
    for (int rows : options_.rows) steps(contracts, bench_model(rows, state), rows);
  }

 private:
  Measure& add(const std::string& stage, const Contract& contract, const Model& model, int rows) {
    Measure& m = measures_.emplace_back();
    m.stage = stage, m.variant = variant_.name, m.contract = contract.name, m.shape = bench_shape(model, rows);
    m.skipped = variant_.available ? undefined_because(contract, model) : "this CPU, or this build, cannot run it";
    return m;
  }

  /// The least that the recurrence of so many rows takes on so many threads.
  void set_floor(Measure& m, const Contract& contract, const Model& model, int rows, int threads, double peak) const {
    if (variant_.kernels == nullptr) return;
    const int each = golden::instructions_a_vector(contract);
    m.floor = rows * each * golden::state_vectors(variant_, model) / peak / threads;
    m.floor_is = std::to_string(each) + " f32 instructions a state vector at the measured peak of " +
                 (threads == 1 ? "a thread" : std::to_string(threads) + " threads");
  }

  void recurrence(const ContractSet& contracts, const Model& model) {
    Measure& m = add("recurrence", contracts.decode, model, 1);
    if (m.skipped.empty() && variant_.kernels == nullptr) m.skipped = "has no kernel that keeps the state at hand";
    if (!m.skipped.empty()) return;
    const golden::Recurrence found = golden::recurrence_times(variant_, contracts.decode, model, options_.seconds);
    set_times(m, found.times, 1);
    set_floor(m, contracts.decode, model, 1, 1, found.peak);
  }

  void steps(const ContractSet& contracts, const Model& model, int rows) {
    for (const std::string stage : {"step", "window"}) {
      if (!options_.wants_stage(stage)) continue;
      Measure& m = add(stage, contracts.decode, model, rows);
      if (!m.skipped.empty()) continue;
      Scene scene(variant_, options_, model, rows, contracts);
      if (stage == "step")
        set_times(m, golden::times_of(options_.seconds, [&] { scene.step(); }), 1);
      else
        set_times(m, golden::times_of(options_.seconds, [&] { scene.window(); }), kWindowSteps);
      set_floor(m, contracts.decode, model, rows, threads_, peak_);
    }
  }

  const Variant& variant_;
  const BenchOptions& options_;
  const int threads_;
  const double peak_;
  std::vector<Measure>& measures_;
};

}  // namespace

std::vector<Measure> bench_golden(const BenchOptions& options) {
  const std::string& only = options.backend.cpu_level;
  if (!only.empty()) golden::choose_variant(only);
  std::vector<Measure> measures;
  for (const Variant& variant : golden::variants()) {
    if ((!only.empty() && variant.name != only) || !options.wants_variant(variant.name)) continue;
    VariantBench bench(variant, options, measures);
    for (DType state : options.states)
      for (const char* preset : kBenchContracts)
        if (options.wants_contract(preset)) bench.run(preset, state);
  }
  return measures;
}

}  // namespace gdnsim
