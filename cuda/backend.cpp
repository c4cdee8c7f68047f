// The CUDA backend: uploads parameters once and inputs each step, launches the kernels in order, downloads the taps
// asked for.
#include <array>
#include <map>
#include <optional>

#include "device_pool.hpp"
#include "gdnsim/backend.hpp"
#include "gdnsim/error.hpp"
#include "kernels.hpp"

namespace gdnsim {
namespace {

using namespace cuda;

/// One layer's parameters on the device.
struct Layer {
  Buffer A_log, dt_bias, conv_weight, conv_bias, norm_weight;
  bool bias = false, norm = false;

  Layer(const LayerParams& params, bool norm_) : bias(!params.conv_bias.empty()), norm(norm_) {
    A_log.upload(std::span(params.A_log));
    dt_bias.upload(std::span(params.dt_bias));
    conv_weight.upload(params.conv_weight);
    conv_bias.upload(params.conv_bias);
    norm_weight.upload(params.norm_weight);
  }

  ParamPointers pointers() const {
    return {A_log.as<float>(), dt_bias.as<float>(), conv_weight.data(), bias ? conv_bias.data() : nullptr,
            norm_weight.data()};
  }
};

Rules rules_of(const Contract& c) {
  return {.conv_product = c.conv_product,
          .conv_taps = c.conv_taps,
          .conv_bias = c.conv_bias,
          .exp = c.exp,
          .div = c.div,
          .sqrt = c.sqrt,
          .negate = c.negate,
          .softplus = c.softplus,
          .beta = c.beta,
          .params = c.params,
          .decay = c.decay,
          .qk_norm = c.qk_norm,
          .qk_eps = c.qk_eps,
          .scale = c.scale,
          .update = c.update,
          .state_store = c.state_store,
          .head_map = c.head_map,
          .norm = c.norm,
          .rstd = c.rstd};
}

Shape shape_from(const Model& m, std::int64_t rows) {
  return {.H = m.H,
          .HV = m.HV,
          .K = m.K,
          .V = m.V,
          .W = m.W,
          .dim = m.dim(),
          .rows = rows,
          .scale = m.scale,
          .norm_eps = m.norm_eps.value_or(0.0f),
          .silu = m.activation == Activation::silu,
          .qk_l2norm = m.use_qk_l2norm,
          .gate_silu = m.norm_gate == NormGate::silu,
          .state_type = m.state_dtype,
          .conv_type = m.conv_state_dtype,
          .act_type = m.act_dtype};
}

class Cuda final : public Backend {
 public:
  explicit Cuda(int device) : device_(open_device(device)) {}

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
    zero_taps(args.plan.rows());
    launch(view_of(args, layer, *device_pool), layer.norm);
    download(args.plan.rows(), layer.norm, outputs);
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
    block_.upload(std::span(args.plan.block));
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

  void zero_taps(std::int64_t rows) {
    for (std::size_t i = 0; i < kTaps; ++i)
      if (!is_state(i)) taps_[i].zero(tap_bytes(i, rows));
  }

  StepView view_of(const StepArgs& args, const Layer& layer, const DevicePool& pool) {
    const DotContext context{model_.state_dtype, std::int64_t{args.plan.rows()} * model_.HV,
                             args.contract.multiprocessors};
    const auto floats = [this](Tap which) { return tap(which).as<float>(); };
    return {.shape = shape_from(model_, args.plan.rows()),
            .rules = rules_of(args.contract),
            .qk_order = resolve(args.contract.qk_dot, model_.K, context),
            .state_order = resolve(args.contract.state_dot, model_.K, context),
            .norm_order = resolve(args.contract.norm_dot, model_.V, context),
            .params = layer.pointers(),
            .in = {block_.as<const std::int32_t>(), mixed_qkv_.data(), a_.data(), b_.data(), z_.data()},
            .pool = {pool.recurrent(args.layer), pool.conv(args.layer)},
            .out = {.conv_acc = floats(Tap::conv_acc),
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
                    .norm_out = tap(Tap::norm_out).data()}};
  }

  void launch(const StepView& view, bool norm) {
    launch_conv(view);
    launch_qk_norm(view);
    launch_gates(view);
    launch_recurrent(view);
    if (norm) launch_norm(view);
    GDNSIM_CUDA(cudaDeviceSynchronize());
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
  mutable std::optional<Fingerprint> fingerprint_;  // asked of the device once
  Model model_;
  std::map<int, Layer> layers_;
  Buffer block_, mixed_qkv_, a_, b_, z_;  // one step's inputs
  std::array<Buffer, kTaps> taps_;        // one step's values; those of the state stay empty
};

}  // namespace

std::unique_ptr<Backend> make_cuda(const BackendOptions& options) { return std::make_unique<Cuda>(options.device); }

}  // namespace gdnsim
