// Hypotheses about memory: one bit of the conv window, of an input or of a parameter that is not the recorded one.
#include <algorithm>
#include <bit>

#include "explain/words.hpp"

namespace gdnsim::explaining {
namespace {

using Target = std::function<Bytes*(StepInputs&)>;

void flipped_input(const Scene& scene, const char* name, std::int64_t element, std::int64_t shown, DType type,
                   const Target& target, Hypotheses& out) {
  const std::int64_t step = scene.at.step;
  for (int bit = 0; bit < bits_in(type); ++bit) {
    Twist twist;
    twist.before = [=](StepEdit& edit) {
      if (edit.plan.step == step) flip(type, *target(edit.inputs), element, bit);
    };
    propose_corruption(out, scene.scope(step, scene.at.row, -1),
                       std::string("the recorded input ") + name + ", element " + std::to_string(shown) +
                           ", differs in bit " + std::to_string(bit) + " from what was read",
                       twist);
  }
}

/// One bit of the conv window: an older column, or x itself.
void flipped_window(const Scene& scene, const std::vector<WrongWord>& words, Hypotheses& out) {
  const Model& model = scene.model();
  if (words.size() != 1 || scene.at.row < 0 || scene.at.tap == Tap::conv_state) return;
  const std::int64_t channel = words.front().element, step = scene.at.step;
  const std::int32_t block = scene.at.block;
  const auto rows = rows_of_block(scene, block, scene.anchor, step - 1);
  for (int column = 0; column + 1 < model.W; ++column) {
    const std::size_t back = static_cast<std::size_t>(model.W - 2 - column);  // steps since the value came in as x
    const std::int64_t since = back < rows.size() ? rows[back].step : scene.anchor;
    for (int bit = 0; bit < bits_in(model.conv_state_dtype); ++bit) {
      const std::int64_t element = column * model.dim() + channel;
      propose_corruption(out, {since, step, scene.bench.layer, -1, block, -1},
                         "conv state of block " + std::to_string(block) + ": element " + std::to_string(element) +
                             " (column " + std::to_string(column) + ", channel " + std::to_string(channel) + "), bit " +
                             std::to_string(bit) + " changed before step " + std::to_string(step) + " read it",
                         flipped_bit(step, block, Part::conv, element, bit));
      out.back().more = [&scene, block, step] { return last_writer_of(scene, block, step, false); };
    }
  }
  flipped_input(
      scene, "mixed_qkv", scene.at.row * model.dim() + channel, channel, model.act_dtype,
      [](StepInputs& in) { return &in.mixed_qkv; }, out);
}

/// One bit of a parameter, which shows in every step.
template <class Word>
void flipped_param(const Scene& scene, const char* name, std::int64_t element, int bits, const Word& word,
                   Hypotheses& out) {
  for (int bit = 0; bit < bits; ++bit) {
    Twist twist;
    twist.params = [=](LayerParams& params) { word(params, element, bit); };
    propose_corruption(out, {-1, -1, scene.bench.layer, -1, -1, -1},
                       std::string("the recorded parameter ") + name + ", element " + std::to_string(element) +
                           ", differs in bit " + std::to_string(bit) + " from what was used",
                       twist, true);
  }
}

void flip_float(std::vector<float>& values, std::int64_t element, int bit) {
  float& x = values[static_cast<std::size_t>(element)];
  x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^ (1u << bit));
}

/// Into one channel's output: its W weights and its bias.
void flipped_channel(const Scene& scene, std::int64_t channel, Hypotheses& out) {
  const DType act = scene.model().act_dtype;
  const int bits = bits_in(act);
  for (int j = 0; j < scene.model().W; ++j)
    flipped_param(
        scene, "conv_weight", channel * scene.model().W + j, bits,
        [act](LayerParams& p, std::int64_t e, int bit) { flip(act, p.conv_weight, e, bit); }, out);
  if (!scene.bench.stream.params(scene.bench.layer).conv_bias.empty())
    flipped_param(
        scene, "conv_bias", channel, bits,
        [act](LayerParams& p, std::int64_t e, int bit) { flip(act, p.conv_bias, e, bit); }, out);
}

/// Into one element of norm_out: its gate and its weight.
void flipped_norm(const Scene& scene, std::int64_t element, Hypotheses& out) {
  const Model& model = scene.model();
  const DType act = model.act_dtype;
  flipped_input(
      scene, "z", scene.at.row * model.HV * model.V + element, element, act, [](StepInputs& in) { return &in.z; }, out);
  flipped_param(
      scene, "norm_weight", element % model.V, bits_in(act),
      [act](LayerParams& p, std::int64_t e, int bit) { flip(act, p.norm_weight, e, bit); }, out);
}

/// Into everything of one head: what its decay and its beta come from.
void flipped_gates(const Scene& scene, std::int64_t head, Hypotheses& out) {
  const DType act = scene.model().act_dtype;
  const std::int64_t at = scene.at.row * scene.model().HV + head;
  flipped_input(
      scene, "a", at, head, act, [](StepInputs& in) { return &in.a; }, out);
  flipped_input(
      scene, "b", at, head, act, [](StepInputs& in) { return &in.b; }, out);
  flipped_param(
      scene, "A_log", head, 32, [](LayerParams& p, std::int64_t e, int bit) { flip_float(p.A_log, e, bit); }, out);
  flipped_param(
      scene, "dt_bias", head, 32, [](LayerParams& p, std::int64_t e, int bit) { flip_float(p.dt_bias, e, bit); }, out);
}

void flipped_inputs(const Scene& scene, const std::vector<WrongWord>& words, Hypotheses& out) {
  if (scene.at.row < 0 || words.empty()) return;
  const Tap tap = scene.at.tap;
  const bool one_word = words.size() == 1;
  if (scene.in_conv()) {
    if (one_word && tap != Tap::conv_state) flipped_channel(scene, words.front().element, out);
    return;
  }
  const std::int64_t per_head = shape_of(tap, scene.model()).per_head;
  const std::int64_t head = words.front().element / per_head;
  if (!std::ranges::all_of(words, [&](const WrongWord& w) { return w.element / per_head == head; })) return;
  if (tap == Tap::norm_out) {
    if (one_word && scene.bench.stream.has_z(scene.bench.layer)) flipped_norm(scene, words.front().element, out);
  } else if (tap != Tap::q && tap != Tap::k && tap != Tap::rstd) {
    flipped_gates(scene, head, out);
  }
}

}  // namespace

void propose_input_flips(const Scene& scene, Hypotheses& out) {
  const auto words = first_wrong_words(scene);
  if (scene.in_conv() && scene.at.block >= 0) flipped_window(scene, words, out);  // an inactive row has no window
  flipped_inputs(scene, words, out);
}

}  // namespace gdnsim::explaining
