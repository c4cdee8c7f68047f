#include "explain/words.hpp"

#include <bit>
#include <cstdio>
#include <cstring>

#include "gdnsim/compare.hpp"

namespace gdnsim::explaining {

std::vector<WrongWord> wrong_words(const WrongUnit& wrong, DType type) {
  std::vector<WrongWord> words;
  for (std::size_t i = 0; i < wrong.want.size() / size_of(type); ++i) {
    const std::uint32_t a = word_at(type, wrong.got, i), b = word_at(type, wrong.want, i);
    if (a != b) words.push_back({static_cast<std::int64_t>(i), a, b});
  }
  return words;
}

std::vector<WrongWord> first_wrong_words(const Scene& scene) {
  const WrongUnit& wrong = scene.found.wrong.front();
  return wrong_words(wrong, shape_of(wrong.unit.tap, scene.model()).type);
}

void put_word(DType type, Bytes& words, std::int64_t element, std::uint32_t word) {
  std::memcpy(words.data() + static_cast<std::size_t>(element) * size_of(type), &word, size_of(type));
}

void flip(DType type, Bytes& words, std::int64_t element, int bit) {
  put_word(type, words, element, word_at(type, words, static_cast<std::size_t>(element)) ^ (1u << bit));
}

std::string element_text(const Model& model, Tap tap, std::int64_t element) {
  const TapShape shape = shape_of(tap, model);
  if (tap <= Tap::conv_state) return "element " + std::to_string(element);
  return "head " + std::to_string(element / shape.per_head) + ", element " + std::to_string(element % shape.per_head);
}

std::string word_text(const Model& model, Tap tap, const WrongWord& word) {
  const DType type = shape_of(tap, model).type;
  const std::uint32_t changed = word.got ^ word.want;
  std::string text = element_text(model, tap, word.element);
  if (std::popcount(changed) > 4) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, type == DType::f32 ? ", bits 0x%08x" : ", bits 0x%04x", changed);
    return text + buffer;
  }
  text += std::popcount(changed) == 1 ? ", bit" : ", bits";
  for (int bit = 0; bit < 32; ++bit)
    if ((changed >> bit & 1) != 0) text += " " + std::to_string(bit);
  return text;
}

Twist changed_bits(std::int64_t step, std::int32_t block, Part part, std::vector<WrongWord> words) {
  Twist twist;
  twist.before = [=](StepEdit& edit) {
    if (edit.plan.step != step) return;
    const Model& model = edit.pool.model();
    Words state = read_words(edit.pool, edit.layer, block);
    Bytes& bytes = has_recurrent(part) ? state.recurrent : state.conv;
    const DType type = has_recurrent(part) ? model.state_dtype : model.conv_state_dtype;
    for (const WrongWord& word : words)
      put_word(type, bytes, word.element,
               word_at(type, bytes, static_cast<std::size_t>(word.element)) ^ word.got ^ word.want);
    write_words(edit.pool, edit.layer, block, state);
  };
  return twist;
}

Twist flipped_bit(std::int64_t step, std::int32_t block, Part part, std::int64_t element, int bit) {
  return changed_bits(step, block, part, {{element, 0, 1u << bit}});
}

std::string tap_text(Tap tap) {
  return tap == Tap::state ? "recurrent state" : tap == Tap::conv_state ? "conv state" : std::string(name_of(tap));
}

void propose_corruption(Hypotheses& out, const Scope& scope, std::string says, Twist twist, bool whole) {
  Hypothesis hypothesis;
  hypothesis.mechanisms = {{"memory-corruption", scope, std::move(says), "", Proof::rerun}};
  hypothesis.twists = {std::move(twist)};
  hypothesis.whole = whole;
  out.push_back(std::move(hypothesis));
}

}  // namespace gdnsim::explaining
