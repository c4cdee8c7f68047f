// The CUDA backend: uploads parameters once and inputs each step, launches the kernels in order, downloads the taps
// asked for.
#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "device_pool.hpp"
#include "fused.hpp"
#include "gdnsim/backend.hpp"
#include "gdnsim/error.hpp"
#include "kernels.hpp"
#include "norm_fast.hpp"
#include "variants.hpp"
#include "view.hpp"
#include "window_run.hpp"

namespace gdnsim {
namespace {

using namespace cuda;

/// One layer's parameters on the device.
struct Layer {
  Buffer A_log, dt_bias, conv_weight, conv_bias, norm_weight;
  bool bias = false, norm = false;

  Layer(const LayerParams& params, bool norm_) : bias(!params.conv_bias.empty()), norm(norm_) {
    A_log.upload(params.A_log);
    dt_bias.upload(params.dt_bias);
    conv_weight.upload(params.conv_weight);
    conv_bias.upload(params.conv_bias);
    norm_weight.upload(params.norm_weight);
  }

  ParamPointers pointers() const {
    return {A_log.as<float>(), dt_bias.as<float>(), conv_weight.data(), bias ? conv_bias.data() : nullptr,
            norm_weight.data()};
  }
};

/// How one step is run.
struct Choice {
  bool fused = false, fast_norm = false;
};

constexpr int kWindow = 64;          // steps that are worth while at once
constexpr std::size_t kGuard = 256;  // bytes watched beyond an output
constexpr int kPoison = 0xA5;

class Cuda final : public Backend {
 public:
  /// `held_to`: a variant's name, or empty for the fastest that can run each step.
  explicit Cuda(int device, std::string_view held_to = {}, bool poison = false)
      : device_(open_device(device)), held_to_(held_to), poison_(poison) {
    if (!held_to.empty()) variant(held_to);
    if (held_to == "streamed" && device_.major < 9)
      throw error("cuda: variant streamed: expected a device of sm_90 or later; found sm_", device_.major,
                  device_.minor);
  }

  std::string name() const override { return "cuda"; }
  std::string description() const override { return describe(device_); }

  std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) override {
    return std::make_unique<DevicePool>(model, std::move(layers), device_.number);
  }

  void prepare(const Stream& stream, const std::vector<int>& layers) override {
    use();
    model_ = stream.model();
    layers_.clear();
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
    const auto* device_pool = dynamic_cast<const DevicePool*>(&pool);
    GDNSIM_CHECK(device_pool != nullptr && device_pool->device() == device_.number);
    GDNSIM_CHECK(layers_.contains(args.layer));
    const Layer& layer = layers_.at(args.layer);
    use();
    if (const std::string reason = refuses(args.contract); !reason.empty()) throw Error(reason);
    upload(args, layer.norm);
    const Choice choice = choose(args.contract, outputs.want);
    prepare_taps(args.plan.rows(), choice);
    launch(view_for(args, layer, *device_pool, choice, outputs.want), args.contract, choice, layer.norm);
    if (poison_) check_guards(args.plan.rows());
    download(args.plan.rows(), layer.norm, outputs);
  }

  int steps_at_once(const Model& model) const override {
    const bool can = (held_to_.empty() || held_to_ == "resident") &&
                     variant("resident").refuses(contract_preset("golden"), model).empty();
    return can ? kWindow : 1;
  }

  void steps(const WindowArgs& args, Pool& pool, std::span<WindowStep> steps) override {
    auto* device_pool = dynamic_cast<DevicePool*>(&pool);
    GDNSIM_CHECK(device_pool != nullptr && device_pool->device() == device_.number && layers_.contains(args.layer));
    GDNSIM_CHECK(steps.size() == args.plans.size() && args.inputs.size() == steps.size() &&
                 args.looks.size() == steps.size());
    if (steps.empty()) return;
    use();
    TapSet want;
    for (const WindowStep& step : steps)
      for (std::size_t t = 0; t < kTaps; ++t)
        if (step.outputs.want.has(static_cast<Tap>(t))) want.add(static_cast<Tap>(t));
    const bool one_by_one = !held_to_.empty() && held_to_ != "resident";
    const std::string why = one_by_one ? held_to_ : window_refuses(model_, args, want);
    if (held_to_ == "resident") require_none(why);
    if (!why.empty()) return Backend::steps(args, pool, steps);
    for (const StepPlan& plan : args.plans)
      if (const std::string reason = refuses(args.contracts.of(plan.path)); !reason.empty()) throw Error(reason);
    const Layer& layer = layers_.at(args.layer);
    for (std::size_t first = 0; first < steps.size(); first += kWindow) {
      const std::size_t count = std::min<std::size_t>(kWindow, steps.size() - first);
      const WindowArgs part{args.layer, args.plans.subspan(first, count), args.inputs.subspan(first, count),
                            args.contracts, args.looks.subspan(first, count)};
      window_.run({model_, part, layer.pointers(), layer.norm, device_.multiprocessors}, *device_pool,
                  steps.subspan(first, count));
    }
  }

 private:
  void use() const { GDNSIM_CUDA(cudaSetDevice(device_.number)); }
  Buffer& tap(Tap tap) { return taps_[static_cast<std::size_t>(tap)]; }

  void upload(const StepArgs& args, bool norm) {
    const std::size_t rows = args.plan.block.size(), word = size_of(model_.act_dtype);
    const std::size_t heads = rows * static_cast<std::size_t>(model_.HV);
    const StepInputs& in = args.inputs;
    GDNSIM_CHECK(in.mixed_qkv.size() == rows * static_cast<std::size_t>(model_.dim()) * word);
    GDNSIM_CHECK(in.a.size() == heads * word && in.b.size() == heads * word);
    GDNSIM_CHECK(!norm || in.z.size() == heads * static_cast<std::size_t>(model_.V) * word);
    block_.upload(args.plan.block);
    mixed_qkv_.upload(in.mixed_qkv);
    a_.upload(in.a);
    b_.upload(in.b);
    if (norm) z_.upload(in.z);
  }

  std::size_t tap_bytes(std::size_t tap, std::int64_t rows) const {
    return static_cast<std::size_t>(rows) * shape_of(static_cast<Tap>(tap), model_).bytes();
  }
  static bool is_state(std::size_t tap) {
    return static_cast<Tap>(tap) == Tap::state || static_cast<Tap>(tap) == Tap::conv_state;
  }

  /// Held to a variant, what it cannot run is an error.
  void require_none(const std::string& why) const {
    if (!why.empty()) throw error("cuda: variant ", held_to_, ": refused because of ", why);
  }

  /// The fastest kernels that can run the contract and need not write what only the plain ones do.
  Choice choose(const Contract& contract, TapSet want) const {
    if (held_to_ == "plain") return {};
    std::string why = variant(held_to_ == "streamed" ? held_to_ : "fused").refuses(contract, model_);
    for (Tap tap : {Tap::conv_out, Tap::core_out, Tap::rstd, Tap::norm_out}) want.remove(tap);
    if (why.empty() && !want.empty()) why = "values inside the step";
    if (!held_to_.empty()) require_none(why);
    return {.fused = why.empty(), .fast_norm = fast_norm_refuses(contract, model_).empty()};
  }

  /// The plain kernels leave inactive rows alone, so their outputs start as zeros; the fused one writes every output.
  void prepare_taps(std::int64_t rows, const Choice& choice) {
    for (std::size_t i = 0; i < kTaps; ++i) {
      if (is_state(i)) continue;
      const std::size_t bytes = tap_bytes(i, rows);
      taps_[i].resize(bytes + kGuard);
      if (poison_) GDNSIM_CUDA(cudaMemset(taps_[i].data(), kPoison, bytes + kGuard));
      if (!choice.fused) taps_[i].zero(bytes);
    }
  }

  void check_guards(std::int64_t rows) {
    for (std::size_t i = 0; i < kTaps; ++i) {
      if (is_state(i)) continue;
      const std::size_t bytes = tap_bytes(i, rows);
      Bytes all;
      taps_[i].download(all, bytes + kGuard);
      for (std::size_t at = bytes; at < all.size(); ++at)
        if (all[at] != std::byte{kPoison})
          throw error("cuda: a kernel wrote beyond ", name_of(static_cast<Tap>(i)), ", ", at - bytes, " bytes behind");
    }
  }

  StepView view_for(const StepArgs& args, const Layer& layer, const DevicePool& pool, const Choice& choice,
                    TapSet want) {
    StepView view = view_of(model_, args.contract, args.plan.rows());
    view.params = layer.pointers();
    view.in = {block_.as<const std::int32_t>(), mixed_qkv_.data(), a_.data(), b_.data(), z_.data()};
    view.pool = {pool.recurrent(args.layer), pool.conv(args.layer)};
    const auto floats = [this](Tap which) { return tap(which).as<float>(); };
    view.out = {.conv_acc = floats(Tap::conv_acc),
                .conv_out = tap(Tap::conv_out).data(),
                .q = floats(Tap::q),
                .k = floats(Tap::k),
                .beta = floats(Tap::beta),
                .g = floats(Tap::g),
                .decay = floats(Tap::decay),
                .rstd = floats(Tap::rstd),
                .dot_k = floats(Tap::dot_k),
                .u = floats(Tap::u),
                .core_out = tap(Tap::core_out).data(),
                .norm_out = tap(Tap::norm_out).data()};
    if (choice.fused && !want.has(Tap::conv_out)) view.out.conv_out = nullptr;
    return view;
  }

  void launch(const StepView& view, const Contract& contract, const Choice& choice, bool norm) {
    if (choice.fused) {
      fuse(view, contract);
    } else {
      launch_conv(view);
      launch_qk_norm(view);
      launch_gates(view);
      launch_recurrent(view);
    }
    if (norm && choice.fast_norm) launch_norm_fast(view, norm_preset(contract) == Preset::golden);
    if (norm && !choice.fast_norm) launch_norm(view);
    GDNSIM_CUDA(cudaDeviceSynchronize());
  }

  void fuse(const StepView& view, const Contract& contract) {
    const std::size_t counters = static_cast<std::size_t>(view.shape.rows) * static_cast<std::size_t>(view.shape.H) * 8;
    if (counters > arrived_bytes_) arrived_.zero(counters), arrived_bytes_ = counters;
    FusedView f{};
    f.step = view;
    f.golden = step_preset(contract) == Preset::golden;
    f.mixed = step_preset(contract) == Preset::triton_mixed;
    f.arrived = arrived_.as<unsigned>();
    if (held_to_ == "streamed" || (held_to_.empty() && streams(view.shape, device_.major, device_.multiprocessors)))
      return launch_streamed(f, poison_ ? 1 : device_.multiprocessors);  // under test each warp gets a long stretch
    cut_heads(f, device_.multiprocessors);
    f.staying = staying_heads(view.shape, device_.cache / 4 * 3);
    launch_fused(f);
  }

  void download(std::int64_t rows, bool norm, StepOutputs& outputs) {
    for (std::size_t i = 0; i < kTaps; ++i) {
      const Tap which = static_cast<Tap>(i);
      if (is_state(i) || !outputs.want.has(which)) continue;
      const bool there = norm || (which != Tap::rstd && which != Tap::norm_out);
      taps_[i].download(outputs[which], there ? tap_bytes(i, rows) : 0);
    }
  }

  const DeviceInfo device_;
  const std::string held_to_;
  const bool poison_;
  mutable std::optional<Fingerprint> fingerprint_;  // asked of the device once
  Model model_;
  std::map<int, Layer> layers_;
  Buffer block_, mixed_qkv_, a_, b_, z_;  // one step's inputs
  std::array<Buffer, kTaps> taps_;        // one step's values; those of the state stay empty
  WindowRun window_;
  Buffer arrived_;  // the fused kernel's counters, zeros between steps
  std::size_t arrived_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Backend> cuda::make_variant(const BackendOptions& options, std::string_view name, bool poison) {
  return std::make_unique<Cuda>(options.device, name, poison);
}

std::unique_ptr<Backend> make_cuda(const BackendOptions& options) { return std::make_unique<Cuda>(options.device); }

}  // namespace gdnsim
