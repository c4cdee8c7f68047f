// The stream of a recipe: the schedule is played once, values are computed when they are asked for.
#include <algorithm>

#include "gdnsim/error.hpp"
#include "gdnsim/lifecycle.hpp"
#include "gdnsim/recipe.hpp"
#include "synth/plan.hpp"
#include "synth/values.hpp"

namespace gdnsim {
namespace {

constexpr const char* kWhere = "recipe";

class RecipeStream final : public Stream {
 public:
  explicit RecipeStream(const Recipe& recipe);

  const Model& model() const override { return recipe_.model; }
  int version() const override {
    return recipe_.script || recipe_.schedule.allocator != Allocation::drawn || !schedule_.draft.empty() ? 2 : 1;
  }
  const LayerParams& params(int layer) const override { return params_.at(static_cast<std::size_t>(layer)); }
  std::int64_t steps() const override { return recipe_.steps; }
  int rows() const override { return recipe_.rows; }
  StepPlan plan(std::int64_t step) const override;
  std::span<const Event> events() const override { return schedule_.events; }
  bool has_z(int) const override { return recipe_.inputs.z.has_value(); }
  void inputs(std::int64_t step, int layer, StepInputs& out) override;
  void load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) override;
  std::string source() override { return canonical_json(recipe_); }

 private:
  std::int32_t layer_id(int layer) const { return recipe_.model.layer_ids.at(static_cast<std::size_t>(layer)); }
  Bytes act(const Draw& draw, Address address, std::int64_t elements) const;
  LayerParams make_params(int layer) const;
  Address address_of_row(std::int64_t step, int layer, int row) const;
  void fill_row(const Address& row, std::size_t at, StepInputs& out) const;
  std::span<std::byte> line(Bytes& tensor, std::size_t row) const;

  const Recipe recipe_;
  Schedule schedule_;
  std::vector<LayerParams> params_;
};

RecipeStream::RecipeStream(const Recipe& recipe) : recipe_(recipe) {
  validate(recipe_, kWhere);
  schedule_ = make_schedule(recipe_);
  const auto load_rows = static_cast<std::int64_t>(schedule_.loads.size()) * recipe_.model.layers();
  validate_events(recipe_.model, recipe_.steps, load_rows, schedule_.events, kWhere);
  for (int layer = 0; layer < recipe_.model.layers(); ++layer) params_.push_back(make_params(layer));
}

StepPlan RecipeStream::plan(std::int64_t step) const {
  GDNSIM_CHECK(step >= 0 && step < recipe_.steps);
  const auto rows = static_cast<std::size_t>(recipe_.rows), t = static_cast<std::size_t>(step), at = t * rows;
  const auto of_step = [&](const auto& values) {
    return values.empty() ? std::span(values) : std::span(values).subspan(at, rows);
  };
  Launch launch;
  if (!schedule_.draft.empty()) launch = {schedule_.draft[t], schedule_.last_draft[t]};
  launch.source = of_step(schedule_.source);
  launch.accepted = of_step(schedule_.accepted);
  return make_plan(recipe_.model, step, schedule_.path[t], of_step(schedule_.index), of_step(schedule_.sequence),
                   schedule_.present[t], kWhere, launch);
}

Bytes RecipeStream::act(const Draw& draw, Address address, std::int64_t elements) const {
  Bytes out(static_cast<std::size_t>(elements) * size_of(recipe_.model.act_dtype));
  fill(draw, address, recipe_.model.act_dtype, out);
  return out;
}

LayerParams RecipeStream::make_params(int layer) const {
  const Model& model = recipe_.model;
  const ParamRecipe& draws = recipe_.params;
  const auto at = [&](Tensor tensor) { return Address{recipe_.seed, tensor, layer_id(layer)}; };
  LayerParams params;
  params.A_log.resize(static_cast<std::size_t>(model.HV));
  params.dt_bias.resize(static_cast<std::size_t>(model.HV));
  fill(draws.A_log, at(Tensor::A_log), params.A_log);
  fill(draws.dt_bias, at(Tensor::dt_bias), params.dt_bias);
  params.conv_weight = act(draws.conv_weight, at(Tensor::conv_weight), model.dim() * model.W);
  if (draws.conv_bias) params.conv_bias = act(*draws.conv_bias, at(Tensor::conv_bias), model.dim());
  if (draws.norm_weight) params.norm_weight = act(*draws.norm_weight, at(Tensor::norm_weight), model.V);
  return params;
}

/// A running row is addressed by its token; an inactive one by row and step, so that whoever reads it shows.
Address RecipeStream::address_of_row(std::int64_t step, int layer, int row) const {
  const auto at = static_cast<std::size_t>(step * recipe_.rows + row);
  const bool active = schedule_.sequence[at] >= 0;
  const Token token = active ? schedule_.token[at] : Token{padding_row(row), static_cast<std::uint32_t>(step)};
  return {recipe_.seed, Tensor::x, layer_id(layer), token.sequence, token.position};
}

std::span<std::byte> RecipeStream::line(Bytes& tensor, std::size_t row) const {
  const std::size_t bytes = tensor.size() / static_cast<std::size_t>(recipe_.rows);
  return std::span(tensor).subspan(row * bytes, bytes);
}

void RecipeStream::fill_row(const Address& row, std::size_t at, StepInputs& out) const {
  const Model& model = recipe_.model;
  const InputRecipe& draws = recipe_.inputs;
  const auto key_begin = static_cast<std::size_t>(model.H) * static_cast<std::size_t>(model.K);
  const auto tensor = [&](Tensor name, const Draw& draw, Bytes& bytes, bool special) {
    Address address = row;
    address.tensor = name;
    const std::span<std::byte> words = line(bytes, at);
    if (name == Tensor::x)
      fill_x(draw, {draws.keys, key_begin, 2 * key_begin}, address, model.act_dtype, words);
    else
      fill(draw, address, model.act_dtype, words);
    if (special && draws.specials.rate > 0) sprinkle(draws.specials, address, model.act_dtype, words);
  };
  tensor(Tensor::x, draws.x, out.mixed_qkv, draws.specials.mixed_qkv);
  tensor(Tensor::a, draws.a, out.a, draws.specials.a);
  tensor(Tensor::b, draws.b, out.b, draws.specials.b);
  if (draws.z) tensor(Tensor::z, *draws.z, out.z, draws.specials.z);
}

/// Bytes of drawn words below which one thread is sooner done: a team waits for its slowest, on a busy machine for milliseconds.
constexpr std::size_t kWorthThreads = 1 << 18;

void RecipeStream::inputs(std::int64_t step, int layer, StepInputs& out) {
  GDNSIM_CHECK(step >= 0 && step < recipe_.steps);
  const Model& model = recipe_.model;
  const std::size_t line_words = static_cast<std::size_t>(recipe_.rows) * size_of(model.act_dtype);
  const auto heads = static_cast<std::size_t>(model.HV);
  out.mixed_qkv.resize(line_words * static_cast<std::size_t>(model.dim()));
  out.a.resize(line_words * heads);
  out.b.resize(line_words * heads);
  out.z.resize(recipe_.inputs.z ? line_words * heads * static_cast<std::size_t>(model.V) : 0);
  const bool worth_threads = out.mixed_qkv.size() + out.z.size() >= kWorthThreads;
#pragma omp parallel for schedule(static) if (worth_threads)
  for (int row = 0; row < recipe_.rows; ++row)
    fill_row(address_of_row(step, layer, row), static_cast<std::size_t>(row), out);
}

void RecipeStream::load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) {
  const int layers = recipe_.model.layers();
  const Load& load = schedule_.loads.at(static_cast<std::size_t>(source / layers));
  Address address{recipe_.seed, Tensor::recurrent, layer_id(source % layers), load.sequence, load.resumed};
  recurrent.resize(recipe_.model.state_bytes());
  conv.resize(recipe_.model.conv_bytes());
  fill(recipe_.states.recurrent, address, recipe_.model.state_dtype, recurrent);
  address.tensor = Tensor::conv;
  fill(recipe_.states.conv, address, recipe_.model.conv_state_dtype, conv);
}

}  // namespace

std::unique_ptr<Stream> make_recipe_stream(const Recipe& recipe) {
  auto stream = std::make_unique<RecipeStream>(recipe);
  if (stream->version() > 1) require_life(*stream, kWhere);
  return stream;
}

}  // namespace gdnsim
