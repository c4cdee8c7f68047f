// Words that changed on their own: which of a unit's words differ, and twists that flip one bit. Private to explain.
#pragma once

#include "explain/kinds.hpp"

namespace gdnsim::explaining {

struct WrongWord {
  std::int64_t element;  // flat within the unit
  std::uint32_t got, want;
};
/// The differing words of a unit; none for a digest.
std::vector<WrongWord> wrong_words(const WrongUnit& wrong, DType type);
std::vector<WrongWord> first_wrong_words(const Scene& scene);

void put_word(DType type, Bytes& words, std::int64_t element, std::uint32_t word);
void flip(DType type, Bytes& words, std::int64_t element, int bit);
constexpr int bits_in(DType type) { return static_cast<int>(8 * size_of(type)); }

/// Before the step some bits of one of the block's states are other ones: each word takes the exclusive or of got and want.
Twist changed_bits(std::int64_t step, std::int32_t block, Part part, std::vector<WrongWord> words);
/// The same for a single bit.
Twist flipped_bit(std::int64_t step, std::int32_t block, Part part, std::int64_t element, int bit);

/// "head 1, element 777", as a report's place has it; conv values have no head.
std::string element_text(const Model& model, Tap tap, std::int64_t element);
/// The same, and which bits changed.
std::string word_text(const Model& model, Tap tap, const WrongWord& word);
/// "recurrent state", "conv state", or the tap's name.
std::string tap_text(Tap tap);

void propose_corruption(Hypotheses& out, const Scope& scope, std::string says, Twist twist, bool whole = false);

}  // namespace gdnsim::explaining
