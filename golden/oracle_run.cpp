// The oracle as a backend: blocks in double, one row after another.
#include <algorithm>
#include <cstring>
#include <map>

#include "gdnsim/arith.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/oracle.hpp"
#include "oracle_f64.hpp"

namespace gdnsim {
namespace {

using golden::Doubles;
using golden::OracleBlock;
using golden::OracleCore;
using golden::OracleF64;

void narrow(std::span<const double> values, DType type, std::byte* out) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto single = static_cast<float>(values[i]);
    const std::uint16_t half = type == DType::bf16 ? bf16_from_f32(single) : f16_from_f32(single);
    if (type == DType::f32)
      std::memcpy(out + 4 * i, &single, 4);
    else
      std::memcpy(out + 2 * i, &half, 2);
  }
}

class DoublePool final : public OraclePool {
 public:
  DoublePool(const Model& model, std::vector<int> layers)
      : OraclePool(model, std::move(layers)),
        nothing_{Doubles(static_cast<std::size_t>(model.state_elements())),
                 Doubles(static_cast<std::size_t>(model.conv_elements()))} {}

  void read(int layer, std::int32_t block, std::span<std::byte> recurrent, std::span<std::byte> conv) const override {
    const OracleBlock& from = at(layer, block);
    narrow(from.recurrent, model().state_dtype, recurrent.data());
    narrow(from.conv, model().conv_state_dtype, conv.data());
  }
  void write(int layer, std::int32_t block, std::span<const std::byte> recurrent,
             std::span<const std::byte> conv) override {
    blocks_[{slot(layer), block}] = {golden::widened(recurrent, model().state_dtype),
                                     golden::widened(conv, model().conv_state_dtype)};
  }
  void zero(int layer, std::int32_t block) override { blocks_.erase({slot(layer), block}); }
  void copy(int layer, std::int32_t from, std::int32_t to) override {
    const OracleBlock copied = at(layer, from);
    blocks_[{slot(layer), to}] = copied;
  }
  std::span<const double> recurrent(int layer, std::int32_t block) const override { return at(layer, block).recurrent; }

  OracleBlock& block(int layer, std::int32_t block) {
    return blocks_.try_emplace({slot(layer), block}, nothing_).first->second;
  }

 private:
  const OracleBlock& at(int layer, std::int32_t block) const {
    const auto found = blocks_.find({slot(layer), block});
    return found == blocks_.end() ? nothing_ : found->second;
  }
  const OracleBlock nothing_;  // what no map entry stands for
  std::map<std::pair<std::size_t, std::int32_t>, OracleBlock> blocks_;
};

class Oracle final : public OracleBackend {
 public:
  explicit Oracle(bool round_activations) : options_{round_activations, false} {}

  std::string name() const override { return "oracle"; }
  std::string description() const override { return "CPU, double precision"; }
  std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) override {
    return std::make_unique<DoublePool>(model, std::move(layers));
  }

  void prepare(const Stream& stream, const std::vector<int>& layers) override {
    layers_.clear();
    model_ = stream.model();
    params_.clear();
    for (int layer : layers) params_.emplace(layer, stream.params(layer));
    for (int layer : layers)
      layers_.emplace(layer, Layer{OracleF64(model_, params_.at(layer), options_), has_norm(stream, layer)});
  }

  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override {
    auto* own = dynamic_cast<DoublePool*>(&pool);
    GDNSIM_CHECK(own != nullptr);
    const Layer& layer = layers_.at(args.layer);
    const auto rows = static_cast<std::size_t>(args.plan.rows()), heads = static_cast<std::size_t>(model_.HV),
               values = heads * static_cast<std::size_t>(model_.V);
    core_.assign(rows * values, 0);
    decay_.assign(rows * heads, 0);
    norm_.assign(layer.norm ? rows * values : 0, 0);
    for (std::size_t row = 0; row < rows; ++row) {
      if (args.plan.block[row] >= 0) run_row(args, layer.oracle, row, own->block(args.layer, args.plan.block[row]));
      if (layer.norm) norm_row(args, layer.oracle, row);
    }
    export_tap(Tap::core_out, core_, outputs);
    export_tap(Tap::decay, decay_, outputs);
    export_tap(Tap::norm_out, norm_, outputs);
  }

  std::span<const double> wide(Tap tap) const override {
    if (tap == Tap::core_out) return core_;
    if (tap == Tap::norm_out) return norm_;
    return tap == Tap::decay ? std::span<const double>(decay_) : std::span<const double>();
  }

 private:
  struct Layer {
    OracleF64 oracle;
    bool norm;
  };

  /// One row of an input tensor, widened.
  Doubles line(const Bytes& tensor, std::size_t row, std::int64_t elements) const {
    const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(model_.act_dtype);
    return golden::widened(std::span(tensor).subspan(row * bytes, bytes), model_.act_dtype);
  }

  void run_row(const StepArgs& args, const OracleF64& oracle, std::size_t row, OracleBlock& block) {
    const Doubles x = line(args.inputs.mixed_qkv, row, model_.dim()), a = line(args.inputs.a, row, model_.HV),
                  b = line(args.inputs.b, row, model_.HV);
    const Doubles conv_out = oracle.conv(x, block);
    const OracleCore core = oracle.recurrence(conv_out, a, b, block);
    std::ranges::copy(core.core_out, core_.begin() + static_cast<std::ptrdiff_t>(row * core.core_out.size()));
    std::ranges::copy(core.decay, decay_.begin() + static_cast<std::ptrdiff_t>(row * core.decay.size()));
  }

  void norm_row(const StepArgs& args, const OracleF64& oracle, std::size_t row) {
    const std::size_t values = static_cast<std::size_t>(1LL * model_.HV * model_.V);
    const Doubles z = line(args.inputs.z, row, 1LL * model_.HV * model_.V);
    const auto norm = oracle.norm(std::span<const double>(core_).subspan(row * values, values), z);
    std::ranges::copy(norm.norm_out, norm_.begin() + static_cast<std::ptrdiff_t>(row * values));
  }

  void export_tap(Tap tap, const Doubles& values, StepOutputs& outputs) const {
    if (!outputs.want.has(tap)) return;
    const DType type = shape_of(tap, model_).type;
    outputs[tap].resize(values.size() * size_of(type));
    narrow(values, type, outputs[tap].data());
  }

  const golden::OracleOptions options_;
  Model model_;
  std::map<int, LayerParams> params_;
  std::map<int, Layer> layers_;
  Doubles core_, norm_, decay_;  // of the last step
};

}  // namespace

std::unique_ptr<OracleBackend> make_oracle(bool round_activations) {
  return std::make_unique<Oracle>(round_activations);
}

}  // namespace gdnsim
