// The golden backend: hands rows and heads of a step to threads. Every value is computed whole by one thread, so the schedule
// cannot change a bit. The vector variants go through window.hpp; what is here is the plain one, their reference.
#include <omp.h>

#include <algorithm>
#include <map>

#include "decode_step.hpp"
#include "gdnsim/error.hpp"
#include "levels.hpp"
#include "norm_rows.hpp"
#include "window.hpp"

namespace gdnsim {
namespace {

using golden::StepContext;
using golden::Values;
using golden::Variant;
using golden::Weights;
using golden::Window;
using golden::WindowItem;

constexpr std::int64_t kConvChunk = 512;  // channels a thread takes at a time
// By 16 steps, loading and storing the state is a small part of the work, and the values between the stages still fit in a
// core's cache: more is slower.
constexpr int kStepsAtOnce = 16;

class Golden final : public Backend {
 public:
  Golden(int threads, const Variant& variant)
      : threads_(threads > 0 ? threads : omp_get_max_threads()), variant_(variant) {}

  std::string name() const override { return "golden"; }
  std::string description() const override {
    return "CPU, " + std::to_string(threads_) + (threads_ == 1 ? " thread, " : " threads, ") +
           std::string(variant_.name);
  }

  std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) override {
    return std::make_unique<HostPool>(model, std::move(layers));
  }

  void prepare(const Stream& stream, const std::vector<int>& layers) override {
    window_.reset();
    model_ = stream.model();
    layers_.clear();
    for (int layer : layers)
      layers_.emplace(layer, Layer{golden::widen_params(model_, stream.params(layer)), has_norm(stream, layer)});
    if (variant_.kernels != nullptr) window_ = std::make_unique<Window>(model_, *variant_.kernels, threads_);
  }

  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override {
    auto* host = dynamic_cast<HostPool*>(&pool);
    GDNSIM_CHECK(host != nullptr);
    const Layer& layer = layers_.at(args.layer);
    const bool held = holds(args.plan, args.contract);
    if (window_ && !held) {
      const WindowItem item{args.plan, args.inputs, args.contract, outputs, {}, nullptr};
      return window_->run(args.layer, layer.weights, layer.norm, *host, {&item, 1});
    }
    values_.resize(model_, args.plan.rows());
    const StepContext context(model_, layer.weights, args.contract, args.plan, args.inputs);
    run_conv(context, *host, args.layer);
    run_heads(context, *host, args.layer, held);
    if (layer.norm) run_norm(context);
    export_taps(layer.norm, outputs);
  }

  int steps_at_once(const Model&) const override { return variant_.kernels != nullptr ? kStepsAtOnce : 1; }

  void steps(const WindowArgs& args, Pool& pool, std::span<WindowStep> steps) override {
    const bool held = std::ranges::any_of(
        args.plans, [&](const StepPlan& plan) { return holds(plan, args.contracts.of(plan.path)); });
    if (!window_ || held) return Backend::steps(args, pool, steps);
    auto* host = dynamic_cast<HostPool*>(&pool);
    GDNSIM_CHECK(host != nullptr && steps.size() == args.plans.size() && args.inputs.size() == steps.size() &&
                 args.looks.size() == steps.size());
    const Layer& layer = layers_.at(args.layer);
    std::vector<WindowItem> items;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const StepPlan& plan = args.plans[i];
      items.push_back(
          {plan, args.inputs[i], args.contracts.of(plan.path), steps[i].outputs, args.looks[i], &steps[i].kept});
      if (items.size() < kStepsAtOnce && i + 1 < steps.size()) continue;
      window_->run(args.layer, layer.weights, layer.norm, *host, items);
      items.clear();
    }
  }

  void norm(const NormArgs& args, NormOutputs& outputs) override {
    require_defined(args);
    golden::norm_rows(args, threads_, outputs);
  }

 private:
  struct Layer {
    Weights weights;
    bool norm;
  };

  /// Rule A9: does the next draft go on from more than what this one stores? A window holds nothing but the stored state.
  bool holds(const StepPlan& plan, const Contract& contract) const {
    return plan.in_launch() && golden::store_rounds(model_, contract);
  }

  void run_conv(const StepContext& context, HostPool& pool, int layer) {
    const std::int64_t chunks = (model_.dim() + kConvChunk - 1) / kConvChunk;
#pragma omp parallel for collapse(2) num_threads(threads_) schedule(dynamic)
    for (int row = 0; row < context.plan.rows(); ++row)
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        const std::int32_t block = context.plan.block[static_cast<std::size_t>(row)];
        if (block < 0) continue;
        const std::int64_t begin = chunk * kConvChunk, end = std::min(begin + kConvChunk, model_.dim());
        conv_update(context, row, begin, end, pool.conv(layer, block).data(), values_);
      }
  }

  /// `held`: within a launch each head goes on from what it holds, by row number (rule A9).
  void run_heads(const StepContext& context, HostPool& pool, int layer, bool held) {
    const std::int64_t head_size = 1LL * model_.V * model_.K,
                       head_bytes = head_size * static_cast<std::int64_t>(size_of(model_.state_dtype));
    std::vector<float>& held_states = held_[layer];
    if (held) held_states.resize(static_cast<std::size_t>(context.plan.rows() * model_.state_elements()));
#pragma omp parallel for collapse(2) num_threads(threads_) schedule(dynamic)
    for (int row = 0; row < context.plan.rows(); ++row)
      for (int head = 0; head < model_.H; ++head)
        if (context.plan.block[static_cast<std::size_t>(row)] >= 0) normalise_head(context, row, head, values_);
#pragma omp parallel for collapse(2) num_threads(threads_) schedule(dynamic)
    for (int row = 0; row < context.plan.rows(); ++row)
      for (int head = 0; head < model_.HV; ++head) {
        const std::int32_t block = context.plan.block[static_cast<std::size_t>(row)];
        if (block < 0) continue;
        gates(context, row, head, values_);
        const golden::HeldState state{held ? held_states.data() + (1LL * row * model_.HV + head) * head_size : nullptr,
                                      held && context.plan.draft > 0, held && !context.plan.last_draft};
        recurrent_head(context, row, head, pool.recurrent(layer, block).data() + head * head_bytes, state, values_);
      }
  }

  void run_norm(const StepContext& context) {
#pragma omp parallel for collapse(2) num_threads(threads_) schedule(dynamic)
    for (int row = 0; row < context.plan.rows(); ++row)
      for (int head = 0; head < model_.HV; ++head) gated_norm(context, row, head, values_);
  }

  void export_taps(bool norm, StepOutputs& outputs) {
    const auto copy = [&](Tap tap, const void* data, std::size_t bytes) {
      if (!outputs.want.has(tap)) return;
      const auto* begin = static_cast<const std::byte*>(data);
      outputs[tap].assign(begin, begin + bytes);
    };
    const auto floats = [&](Tap tap, const golden::Row& row) {
      copy(tap, row.data(), static_cast<std::size_t>(row.size()) * 4);
    };
    floats(Tap::conv_acc, values_.conv_acc);
    copy(Tap::conv_out, values_.conv_out.data(), values_.conv_out.size());
    floats(Tap::q, values_.q);
    floats(Tap::k, values_.k);
    floats(Tap::beta, values_.beta);
    floats(Tap::g, values_.g);
    floats(Tap::decay, values_.decay);
    floats(Tap::dot_k, values_.dot_k);
    floats(Tap::u, values_.u);
    copy(Tap::core_out, values_.core_out.data(), values_.core_out.size());
    floats(Tap::rstd, norm ? values_.rstd : golden::Row());
    copy(Tap::norm_out, values_.norm_out.data(), norm ? values_.norm_out.size() : 0);
  }

  const int threads_;
  const Variant& variant_;
  Model model_;
  std::map<int, Layer> layers_;
  Values values_;                           // plain
  std::map<int, std::vector<float>> held_;  // by layer: [B, HV, V, K] between the drafts of a launch
  std::unique_ptr<Window> window_;          // the vector variants
};

}  // namespace

std::unique_ptr<Backend> make_golden(const BackendOptions& options) {
  return std::make_unique<Golden>(options.threads, golden::choose_variant(options.cpu_level));
}

}  // namespace gdnsim
