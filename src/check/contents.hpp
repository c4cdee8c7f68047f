// What the rows of the batteries are made of: inputs, and the block that each starts from.
#pragma once

#include <memory>

#include "gdnsim/recipe.hpp"
#include "gdnsim/stream_view.hpp"

namespace gdnsim {

/// NaNs with and without payload, infinities, zeros, denormals and the largest numbers, in that share of the elements.
SpecialRecipe wild_words(double rate);
/// A deviation that makes numbers of the type denormal.
float tiny_deviation(DType type);

/// The layers' parameters, with a few -0 among the norm's weights.
class SceneParams final : public StreamView {
 public:
  explicit SceneParams(Stream& whole);
  const LayerParams& params(int layer) const override { return params_[static_cast<std::size_t>(layer)]; }

 private:
  std::vector<LayerParams> params_;
};

class Contents {
 public:
  static constexpr int kCount = 64;
  enum class Kind {
    usual,
    fresh,  // from zeros, as a sequence does
    tiny,   // x and the start are denormal
    faint,  // the start is denormal, and beta 0: so is core_out
    wild    // NaNs, infinities, denormals and zeros; gates that saturate, decays down to 0
  };
  static Kind kind_of(int content);

  /// Kinds lie the same way in every sixteen.
  Contents(const Model& model, bool conv_bias);
  /// For the parameters.
  Stream& stream() { return *params_; }
  void append(int content, StepInputs& inputs) const;
  struct Start {
    Bytes recurrent, conv;
  };
  /// What the content starts from.
  const Start& start(int content) const { return starts_[static_cast<std::size_t>(content)]; }

 private:
  Start make_start(int content) const;

  const Model model_;
  std::unique_ptr<Stream> usual_;
  std::unique_ptr<SceneParams> params_;
  StepInputs inputs_[5];       // by kind, [kCount] rows each
  std::vector<Start> starts_;  // [kCount]
};

}  // namespace gdnsim
