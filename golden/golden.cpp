// The golden backend: hands rows and heads of a step to threads. Every value is computed whole by one thread, so the schedule
// cannot change a bit. The vector variants go through window.hpp; what is here is the plain one, their reference.
#include <omp.h>

#include <algorithm>
#include <map>

#include "crew.hpp"
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
      : variant_(variant), crew_(threads > 0 ? threads : omp_get_max_threads()) {}

  std::string name() const override { return "golden"; }
  std::string description() const override {
    return "CPU, " + std::to_string(crew_.threads()) + (crew_.threads() == 1 ? " thread, " : " threads, ") +
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
    if (variant_.kernels != nullptr) window_ = std::make_unique<Window>(model_, *variant_.kernels, crew_);
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
    golden::norm_rows(args, crew_, outputs);
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
    each_part(context.plan, chunks, [&](int row, std::int64_t chunk) {
      const std::int32_t block = context.plan.block[static_cast<std::size_t>(row)];
      if (block < 0) return;
      const std::int64_t begin = chunk * kConvChunk, end = std::min(begin + kConvChunk, model_.dim());
      conv_update(context, row, begin, end, pool.conv(layer, block).data(), values_);
    });
  }

  /// `held`: within a launch each head goes on from what it holds, by row number (rule A9).
  void run_heads(const StepContext& context, HostPool& pool, int layer, bool held) {
    const std::int64_t head_size = 1LL * model_.V * model_.K,
                       head_bytes = head_size * static_cast<std::int64_t>(size_of(model_.state_dtype));
    std::vector<float>& held_states = held_[layer];
    if (held) held_states.resize(static_cast<std::size_t>(context.plan.rows() * model_.state_elements()));
    each_part(context.plan, model_.H, [&](int row, std::int64_t head) {
      if (context.plan.block[static_cast<std::size_t>(row)] >= 0)
        normalise_head(context, row, static_cast<int>(head), values_);
    });
    each_part(context.plan, model_.HV, [&](int row, std::int64_t part) {
      const int head = static_cast<int>(part);
      const std::int32_t block = context.plan.block[static_cast<std::size_t>(row)];
      if (block < 0) return;
      gates(context, row, head, values_);
      const golden::HeldState state{held ? held_states.data() + (1LL * row * model_.HV + head) * head_size : nullptr,
                                    held && context.plan.draft > 0, held && !context.plan.last_draft};
      recurrent_head(context, row, head, pool.recurrent(layer, block).data() + head * head_bytes, state, values_);
    });
  }

  void run_norm(const StepContext& context) {
    each_part(context.plan, model_.HV,
              [&](int row, std::int64_t head) { gated_norm(context, row, static_cast<int>(head), values_); });
  }

  /// task(row, part) for every row and part, shared among the threads where there is enough for them.
  template <class Task>
  void each_part(const StepPlan& plan, std::int64_t parts, const Task& task) {
    const std::int64_t count = plan.rows() * parts;
    const auto one = [&](std::int64_t i, int) { task(static_cast<int>(i / parts), i % parts); };
    if (plan.rows() * (model_.state_elements() + 8 * model_.dim()) >= golden::kWorthThreads)
      return crew_.share(count, one);
    for (std::int64_t i = 0; i < count; ++i) one(i, 0);
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

  const Variant& variant_;
  Model model_;
  std::map<int, Layer> layers_;
  Values values_;                           // plain
  std::map<int, std::vector<float>> held_;  // by layer: [B, HV, V, K] between the drafts of a launch
  std::unique_ptr<Window> window_;          // the vector variants
  golden::Crew crew_;                       // last: its threads end before the rest
};

}  // namespace

std::unique_ptr<Backend> make_golden(const BackendOptions& options) {
  return std::make_unique<Golden>(options.threads, golden::choose_variant(options.cpu_level));
}

}  // namespace gdnsim
