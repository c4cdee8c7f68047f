// The CUDA backend: what it accepts, which device, and who runs a step or a window of steps.
#include <algorithm>
#include <map>
#include <optional>

#include "device_pool.hpp"
#include "gdnsim/backend.hpp"
#include "gdnsim/order.hpp"
#include "gdnsim/refused.hpp"
#include "kernels.hpp"
#include "layer.hpp"
#include "limits.hpp"
#include "norm_rows.hpp"
#include "step_run.hpp"
#include "variants.hpp"
#include "window_run.hpp"

namespace gdnsim {
namespace {

using namespace cuda;

// Steps that are worth while at once: of one row this many, of more rows fewer, for inputs and outputs travel meanwhile.
constexpr int kWindow = 256, kShortest = 64;

class Cuda final : public Backend {
 public:
  /// `held_to`: a variant's name, or empty for the fastest that can run each step. `window_bytes`: as WindowRun means it.
  explicit Cuda(int device, std::string_view held_to = {}, bool poison = false, std::size_t window_bytes = 0)
      : device_(open_device(device)),
        held_to_(held_to),
        step_(device_, held_to, poison),
        window_(window_bytes),
        norm_(held_to, poison) {
    if (!held_to.empty()) variant(held_to);
    if (held_to == "streamed" && device_.major < 9)
      throw Refused("cuda: variant streamed: expected a device of sm_90 or later; found sm_" +
                    std::to_string(device_.major) + std::to_string(device_.minor));
  }

  std::string name() const override { return "cuda"; }
  std::string description() const override { return describe(device_); }

  std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) override {
    return std::make_unique<DevicePool>(model, std::move(layers), device_.number);
  }

  void prepare(const Stream& stream, const std::vector<int>& layers) override {
    use();
    model_ = stream.model();
    layers_.clear(), held_.clear();
    step_.forget();
    for (int layer : layers) layers_.try_emplace(layer, stream.params(layer), has_norm(stream, layer));
  }

  /// A contract made of approximate functions means the measured ones.
  std::string refuses(const Contract& contract) const override {
    const bool exact = contract.exp == Exp::exact && contract.div == Div::ieee && contract.sqrt == Sqrt::ieee;
    if (exact) return "";
    use();
    if (!fingerprint_) fingerprint_ = approximate_fingerprint();
    const Fingerprint& f = *fingerprint_;
    if (f == kMeasured) return "";
    const auto differs = [](const char* name, std::uint64_t got, std::uint64_t want) {
      return got == want ? "" : std::string(name) + " ";
    };
    return "cuda: " + device_.name + " (sm_" + std::to_string(device_.major) + std::to_string(device_.minor) +
           ") computes " + differs("ex2", f.ex2, kMeasured.ex2) + differs("rcp", f.rcp, kMeasured.rcp) +
           differs("sqrt", f.sqrt, kMeasured.sqrt) + differs("rsqrt", f.rsqrt, kMeasured.rsqrt) +
           "otherwise than contract '" + contract.name +
           "' means (sm_90); use golden, or a contract with exact functions";
  }

  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override {
    DevicePool& mine = pool_of(pool);
    const Layer& layer = layer_of(args.layer);
    use();
    if (const std::string reason = refuses(args.contract); !reason.empty()) throw Error(reason);
    const bool own_launch = !launches_its_rows(args.contract, args.plan);
    const Contract launched = own_launch ? for_launch(args.contract, args.plan.norm_rows(model_.HV)) : Contract{};
    step_.run({model_,
               own_launch ? launched : args.contract,
               layer.pointers(),
               {mine.recurrent(args.layer), mine.conv(args.layer)},
               layer.norm,
               outputs.want,
               args.plan.rows(),
               held_of(args)},
              args.plan.block, args.inputs, outputs);
    mine.changed(args.layer, args.plan.block);
  }

  int steps_at_once(const Model& model) const override {
    const bool can = (held_to_.empty() || held_to_ == "resident") &&
                     variant("resident").refuses(contract_preset("golden"), model).empty();
    return can ? kWindow : 1;
  }

  void steps(const WindowArgs& args, Pool& pool, std::span<WindowStep> steps) override {
    DevicePool& mine = pool_of(pool);
    const Layer& layer = layer_of(args.layer);
    GDNSIM_CHECK(steps.size() == args.plans.size() && args.inputs.size() == steps.size() &&
                 args.looks.size() == steps.size());
    if (steps.empty()) return;
    use();
    const bool one_by_one = !held_to_.empty() && held_to_ != "resident";
    std::string why = one_by_one ? held_to_ : window_refuses(model_, args, wanted(steps));
    for (const StepPlan& plan : args.plans)
      if (why.empty() && !launches_its_rows(args.contracts.of(plan.path), plan))
        why = "a norm whose launch had other rows than the step";
    if (held_to_ == "resident" && !why.empty())
      throw Refused("cuda: variant " + held_to_ + ": refused because of " + why);
    if (!why.empty()) return Backend::steps(args, pool, steps);
    for (const StepPlan& plan : args.plans)
      if (const std::string reason = refuses(args.contracts.of(plan.path)); !reason.empty()) throw Error(reason);
    run_windows(args, layer, mine, steps);
  }

  void norm(const NormArgs& args, NormOutputs& outputs) override {
    require_defined(args);
    use();
    if (const std::string reason = refuses(args.contract); !reason.empty()) throw Error(reason);
    norm_.run(args, outputs);
  }

  double memory_rate() override {
    use();
    if (memory_rate_ == 0) memory_rate_ = measured_memory_rate();
    return memory_rate_;
  }

 private:
  void use() const { GDNSIM_CUDA(cudaSetDevice(device_.number)); }

  /// False where lanes `by-rows` are others in the engine's launch than in one of the step's rows.
  bool launches_its_rows(const Contract& contract, const StepPlan& plan) const {
    if (plan.launch_tokens == 0 || contract.norm_dot.lane != Lane::by_rows) return true;
    const int all = contract.multiprocessors;
    return (rows_per_block(plan.norm_rows(model_.HV), all) == 1) ==
           (rows_per_block(std::int64_t{plan.rows()} * model_.HV, all) == 1);
  }

  DevicePool& pool_of(Pool& pool) const {
    auto* mine = dynamic_cast<DevicePool*>(&pool);
    GDNSIM_CHECK(mine != nullptr && mine->device() == device_.number);
    return *mine;
  }
  const Layer& layer_of(int layer) const {
    GDNSIM_CHECK(layers_.contains(layer));
    return layers_.at(layer);
  }

  /// What the rows of a launch hold between its drafts, by row number: memory for it lasts as long as the stream.
  HeldState held_of(const StepArgs& args) {
    if (!args.plan.in_launch() || !store_rounds(model_, args.contract)) return {};
    Buffer& states = held_[args.layer];
    states.resize(static_cast<std::size_t>(args.plan.rows() * model_.state_elements()) * sizeof(float));
    return {states.as<float>(), args.plan.draft > 0, !args.plan.last_draft};
  }

  /// As many at once as are worth while and as the memory is enough for.
  void run_windows(const WindowArgs& args, const Layer& layer, DevicePool& pool, std::span<WindowStep> steps) {
    for (std::size_t first = 0, count = 0; first < steps.size(); first += count) {
      const auto slice = [&](std::size_t n) -> WindowArgs {
        return {args.layer, args.plans.subspan(first, n), args.inputs.subspan(first, n), args.contracts,
                args.looks.subspan(first, n)};
      };
      const auto job = [&](const WindowArgs& part) -> WindowJob {
        return {model_, part, layer.pointers(), layer.norm, device_.multiprocessors};
      };
      const int worth = std::clamp(kWindow / std::max(args.plans[first].rows(), 1), kShortest, kWindow);
      const std::size_t most = std::min<std::size_t>(static_cast<std::size_t>(worth), steps.size() - first);
      const WindowArgs longest = slice(most);
      count = window_.steps_that_fit(job(longest), most);
      const WindowArgs part = slice(count);
      window_.run(job(part), pool, steps.subspan(first, count));
    }
  }

  static TapSet wanted(std::span<const WindowStep> steps) {
    TapSet want;
    for (const WindowStep& step : steps)
      for (std::size_t t = 0; t < kTaps; ++t)
        if (step.outputs.want.has(static_cast<Tap>(t))) want.add(static_cast<Tap>(t));
    return want;
  }

  const DeviceInfo device_;
  const std::string held_to_;
  mutable std::optional<Fingerprint> fingerprint_;  // asked of the device once
  Model model_;
  std::map<int, Layer> layers_;
  std::map<int, Buffer> held_;  // by layer: f32 [B, HV, V, K] between the drafts of a launch
  StepRun step_;
  WindowRun window_;
  NormRun norm_;
  double memory_rate_ = 0;  // measured once
};

}  // namespace

std::unique_ptr<Backend> cuda::make_variant(const BackendOptions& options, std::string_view name, bool poison) {
  return std::make_unique<Cuda>(options.device, name, poison);
}

std::unique_ptr<Backend> cuda::make_limited(const BackendOptions& options, std::size_t window_bytes) {
  return std::make_unique<Cuda>(options.device, "resident", false, window_bytes);
}

std::unique_ptr<Backend> make_cuda(const BackendOptions& options) {
  return std::make_unique<Cuda>(options.device, "", options.poison);
}

}  // namespace gdnsim
