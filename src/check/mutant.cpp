// A backend that hands its work to a sound one and spoils one thing.
#include <algorithm>
#include <cstring>

#include "core/forwarding_backend.hpp"
#include "gdnsim/check.hpp"
#include "gdnsim/contract.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

void reorder(Dot& dot) { dot.tree = dot.tree == Tree::widest ? Tree::narrowest : Tree::widest; }

class Mutant final : public ForwardingBackend {
 public:
  Mutant(Backend& backend, const Mutation& mutation) : ForwardingBackend(backend), name_(mutation.name) {}

  void prepare(const Stream& stream, const std::vector<int>& layers) override {
    ForwardingBackend::prepare(stream, layers);
    has_bias_ = !stream.params(layers.back()).conv_bias.empty();
  }

  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override {
    Contract contract = args.contract;
    const int rows = args.plan.rows();
    if (is("state-order") || (is("step-by-batch") && rows > 16) || (is("candidate") && args.plan.draft == 2) ||
        (is("window") && step_of_window_ > 2))
      reorder(contract.state_dot);
    if (is("tiled") && rows > 66) reorder(contract.norm_dot);
    if (is("taps")) contract.conv_taps = ConvTaps::newest_first;
    backend_.step({args.layer, args.plan, args.inputs, contract}, pool, outputs);
    spoil_step(args, pool.model(), outputs);
    if (is("leftover")) leave_over(args.plan, outputs[Tap::core_out]);
    for (std::size_t row = 0; row < args.plan.block.size(); ++row)
      if (args.plan.block[row] < 0) spoil_inactive(args, row, pool, outputs);
  }

  void steps(const WindowArgs& args, Pool& pool, std::span<WindowStep> steps) override {
    for (step_of_window_ = 1; step_of_window_ <= static_cast<int>(steps.size()); ++step_of_window_) {
      const auto i = static_cast<std::size_t>(step_of_window_ - 1);
      Backend::steps(
          {args.layer, args.plans.subspan(i, 1), args.inputs.subspan(i, 1), args.contracts, args.looks.subspan(i, 1)},
          pool, steps.subspan(i, 1));
    }
    step_of_window_ = 0;
  }

  std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) override {
    auto pool = ForwardingBackend::make_pool(model, std::move(layers));
    const Bytes ones(model.state_bytes(), std::byte{0xFF}), zeros(model.conv_bytes());
    if (is("fresh-pool"))
      pool->write(pool->layers().back(), static_cast<std::int32_t>(model.num_blocks - 1), ones, zeros);
    return pool;
  }

  void norm(const NormArgs& args, NormOutputs& outputs) override {
    NormSpec spec = args.spec;
    Contract contract = args.contract;
    Bytes weight(args.weight.begin(), args.weight.end());
    if (is("squares") || is("squares-plain")) return off_squares(args, outputs);
    if (is("norm-order") || (is("by-batch") && args.rows > 264) || (is("root") && !spec.gated))
      reorder(contract.norm_dot);
    if (is("offset-lost")) spec.weight_offset = 0;
    if (spec.weight_offset == 0 && (is("offset-zero") || (is("offset-plain") && !spec.gated)))
      add_zero(weight, spec.act);
    backend_.norm({spec, contract, args.rows, args.x, args.z, weight, args.timed}, outputs);
    if (is("norm-beyond") && !spec.gated) throw error("a kernel wrote beyond out, 0 bytes behind");
    const std::size_t word = size_of(spec.act);
    if (is("by-place") && args.rows % 2 == 1 && args.rows > 1) flip(outputs.out, outputs.out.size() - word);
    if (now_and_then("norm-noise")) flip(outputs.out, 0);
  }

 private:
  bool is(std::string_view name) const { return name == name_; }
  bool now_and_then(std::string_view name) { return is(name) && ++calls_ % 17 == 0; }
  /// Not where the values were not asked for.
  static void flip(Bytes& words, std::size_t at) {
    if (at < words.size()) words[at] ^= std::byte{1};
  }

  /// Rows that are inactive now keep what was there.
  void leave_over(const StepPlan& plan, Bytes& words) {
    const std::size_t bytes = words.size() / plan.block.size();
    for (std::size_t row = 0; row < plan.block.size(); ++row)
      if (plan.block[row] < 0 && last_.size() >= (row + 1) * bytes)
        std::memcpy(words.data() + row * bytes, last_.data() + row * bytes, bytes);
    last_ = words;
  }

  /// A bit here or there.
  void spoil_step(const StepArgs& args, const Model& model, StepOutputs& outputs) {
    const int rows = args.plan.rows();
    const bool in_window = step_of_window_ > 0;
    const std::size_t bytes = shape_of(Tap::core_out, model).bytes();
    if (is("beyond")) throw error("a kernel wrote beyond core_out, 0 bytes behind");
    if (now_and_then("step-noise")) flip(outputs[Tap::core_out], 0);
    if (now_and_then("conv-noise")) flip(outputs[Tap::conv_out], 0);
    if (is("late-row") && rows > 100) flip(outputs[Tap::core_out], 97 * bytes);
    if (is("second") && ++calls_ == 2) flip(outputs[Tap::core_out], 0);
    if (is("wide-window") && in_window && rows > 32) flip(outputs[Tap::core_out], 5 * bytes);
    if (is("late-step") && step_of_window_ > 200) flip(outputs[Tap::core_out], 0);
    if (is("layer") && args.layer > 0) flip(outputs[Tap::core_out], 0);
    if (is("window-bias") && in_window && has_bias_) flip(outputs[Tap::conv_out], 0);
    if (is("few-outputs") && !outputs.want.has(Tap::norm_out)) flip(outputs[Tap::core_out], 0);
  }

  void spoil_inactive(const StepArgs& args, std::size_t row, Pool& pool, StepOutputs& outputs) {
    const std::size_t bytes = shape_of(Tap::rstd, pool.model()).bytes();
    if (is("inactive-norm") && outputs.want.has(Tap::rstd))
      std::memset(outputs[Tap::rstd].data() + row * bytes, 0, bytes);
    if (is("inactive-block") && args.plan.block[0] >= 0) pool.copy(args.layer, args.plan.block[0], 0);
  }

  /// -0 + 0 is +0; every other word stays.
  static void add_zero(Bytes& words, DType act) {
    const std::size_t size = size_of(act);
    for (std::size_t at = 0; at < words.size(); at += size) {
      const bool zero = std::all_of(words.begin() + static_cast<std::ptrdiff_t>(at),
                                    words.begin() + static_cast<std::ptrdiff_t>(at + size - 1),
                                    [](std::byte b) { return b == std::byte{0}; });
      if (zero && words[at + size - 1] == std::byte{0x80}) words[at + size - 1] = std::byte{0};
    }
  }

  /// Row by row: what 1e-4 of the sum of squares comes to is added to eps.
  void off_squares(const NormArgs& args, NormOutputs& outputs) {
    backend_.norm(args, outputs);
    const std::size_t bytes = args.x.size() / static_cast<std::size_t>(std::max<std::int64_t>(args.rows, 1));
    for (std::size_t row = 0; row < static_cast<std::size_t>(args.rows); ++row) {
      const float root = outputs.rstd[row];
      NormSpec spec = args.spec;
      spec.eps += 1e-4f * (1 / (root * root) - spec.eps);
      const auto part = [&](std::span<const std::byte> all) {
        return all.empty() ? all : all.subspan(row * bytes, bytes);
      };
      NormOutputs one;
      backend_.norm({spec, args.contract, 1, part(args.x), part(args.z), args.weight}, one);
      std::memcpy(outputs.out.data() + row * bytes, one.out.data(), bytes);
      outputs.rstd[row] = one.rstd[0];
    }
  }

  const std::string_view name_;
  int calls_ = 0;
  bool has_bias_ = false;
  int step_of_window_ = 0;  // from 1 on; 0: no window
  Bytes last_;              // core_out of the launch before
};

}  // namespace

std::unique_ptr<Backend> make_mutant(Backend& backend, const Mutation& mutation) {
  return std::make_unique<Mutant>(backend, mutation);
}

}  // namespace gdnsim
