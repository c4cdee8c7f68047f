#include "check/contents.hpp"

#include <algorithm>

#include "synth/values.hpp"

namespace gdnsim {
namespace {

constexpr double kWildRate = 0.002;

Recipe recipe_of(const Model& model, Contents::Kind kind, bool conv_bias) {
  Recipe recipe;
  recipe.seed = 11 + static_cast<std::uint64_t>(kind);
  recipe.model = model, recipe.steps = 1, recipe.rows = Contents::kCount;
  if (conv_bias) recipe.params.conv_bias = Draw{Draw::Kind::normal, 0, 0.1f};
  if (kind == Contents::Kind::tiny) recipe.inputs.x.second = tiny_deviation(model.act_dtype);
  if (kind == Contents::Kind::faint) recipe.inputs.b = {Draw::Kind::constant, -200, 0};
  if (kind == Contents::Kind::wild) {
    recipe.inputs.specials = wild_words(kWildRate);
    recipe.inputs.a.second = 30, recipe.inputs.b.second = 60, recipe.inputs.z->second = 30;
  }
  return recipe;
}

void append_row(Bytes& to, const Bytes& from, int row) {
  const std::size_t bytes = from.size() / Contents::kCount, at = static_cast<std::size_t>(row) * bytes;
  to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(at),
            from.begin() + static_cast<std::ptrdiff_t>(at + bytes));
}

}  // namespace

SpecialRecipe wild_words(double rate) {
  using Special = SpecialRecipe::Kind;
  SpecialRecipe specials;
  specials.rate = rate;
  specials.kinds = {Special::nan,  Special::payload,    Special::inf,      Special::minus_inf,
                    Special::zero, Special::minus_zero, Special::denormal, Special::largest};
  return specials;
}

float tiny_deviation(DType type) { return type == DType::f16 ? 1e-6f : 1e-38f; }

SceneParams::SceneParams(Stream& whole) : StreamView(whole) {
  const std::size_t word = size_of(model().act_dtype);
  for (std::size_t layer = 0; layer < model().layer_ids.size(); ++layer) {
    Bytes& weight = params_.emplace_back(whole.params(static_cast<int>(layer))).norm_weight;
    for (std::size_t at = 5 * word; at + word <= weight.size(); at += 50 * word) {
      std::fill_n(weight.begin() + static_cast<std::ptrdiff_t>(at), word, std::byte{0});
      weight[at + word - 1] = std::byte{0x80};
    }
  }
}

Contents::Kind Contents::kind_of(int content) {
  if (content % 4 == 3) return Kind::wild;
  if (content % 8 == 5) return Kind::fresh;
  return content % 16 == 1 ? Kind::tiny : content % 16 == 9 ? Kind::faint : Kind::usual;
}

Contents::Contents(const Model& model, bool conv_bias) : model_(model) {
  for (Kind kind : {Kind::usual, Kind::fresh, Kind::tiny, Kind::faint, Kind::wild}) {
    auto stream = make_recipe_stream(recipe_of(model, kind, conv_bias));
    stream->inputs(0, 0, inputs_[static_cast<std::size_t>(kind)]);
    if (kind == Kind::usual) usual_ = std::move(stream);
  }
  params_ = std::make_unique<SceneParams>(*usual_);
  starts_.resize(kCount);
#pragma omp parallel for schedule(dynamic)
  for (int content = 0; content < kCount; ++content) starts_[static_cast<std::size_t>(content)] = make_start(content);
}

void Contents::append(int content, StepInputs& inputs) const {
  const StepInputs& from = inputs_[static_cast<std::size_t>(kind_of(content))];
  append_row(inputs.mixed_qkv, from.mixed_qkv, content);
  append_row(inputs.a, from.a, content), append_row(inputs.b, from.b, content);
  append_row(inputs.z, from.z, content);
}

Contents::Start Contents::make_start(int content) const {
  const Kind kind = kind_of(content);
  const Address state{7, Tensor::recurrent, 0, static_cast<std::uint32_t>(content), 0},
      window{7, Tensor::conv, 0, static_cast<std::uint32_t>(content), 0};
  Start made{Bytes(model_.state_bytes()), Bytes(model_.conv_bytes())};
  if (kind == Kind::fresh) return made;
  const bool tiny = kind == Kind::tiny || kind == Kind::faint;
  fill({Draw::Kind::normal, 0, tiny ? tiny_deviation(model_.state_dtype) : 0.1f}, state, model_.state_dtype,
       made.recurrent);
  fill({Draw::Kind::normal, 0, tiny ? tiny_deviation(model_.conv_state_dtype) : 1}, window, model_.conv_state_dtype,
       made.conv);
  if (kind != Kind::wild) return made;
  sprinkle(wild_words(kWildRate), state, model_.state_dtype, made.recurrent);
  sprinkle(wild_words(kWildRate), window, model_.conv_state_dtype, made.conv);
  return made;
}

}  // namespace gdnsim
