// The words of poison, and what is said of a read of them.
#include "gdnsim/poison.hpp"

#include <cstring>

namespace gdnsim {
namespace {

constexpr std::uint32_t kF32 = 0x7FA00000u, kF32Blocks = 1u << 21, kBf16 = 0x7FA0u, kBf16Blocks = 32, kF16 = 0x7D00u;

struct Padding {
  std::uint32_t first, rows;
};
constexpr Padding kPaddingF32{0x7F900000u, 1u << 20}, kPaddingBf16{0x7F90u, 16}, kPaddingF16{0x7C80u, 128};

}  // namespace

void fill_words(std::span<std::byte> words, DType type, std::uint32_t word) {
  for (std::size_t i = 0; i < words.size() / size_of(type); ++i)
    std::memcpy(words.data() + i * size_of(type), &word, size_of(type));
}

std::int64_t poison_blocks(DType type) {
  return type == DType::f32 ? kF32Blocks : type == DType::bf16 ? kBf16Blocks : 1;
}

std::uint32_t poison_word(DType type, std::int32_t block) {
  const auto number = static_cast<std::uint32_t>(block);
  if (type == DType::f16) return kF16;
  return type == DType::f32 ? kF32 + number % kF32Blocks : kBf16 + number % kBf16Blocks;
}

std::optional<std::int32_t> poison_of(DType type, std::uint32_t word) {
  if (type == DType::f16) return word == kF16 ? std::optional<std::int32_t>(0) : std::nullopt;
  const std::uint32_t first = type == DType::f32 ? kF32 : kBf16, count = type == DType::f32 ? kF32Blocks : kBf16Blocks;
  if (word < first || word >= first + count) return std::nullopt;
  return static_cast<std::int32_t>(word - first);
}

std::uint32_t padding_word(DType type, int row) {
  const Padding padding = type == DType::f32 ? kPaddingF32 : type == DType::bf16 ? kPaddingBf16 : kPaddingF16;
  return padding.first + static_cast<std::uint32_t>(row) % padding.rows;
}

void fill_poison(Pool& pool, int layer, std::int32_t block) {
  const Model& model = pool.model();
  Bytes recurrent(model.state_bytes()), conv(model.conv_bytes());
  fill_words(recurrent, model.state_dtype, poison_word(model.state_dtype, block));
  fill_words(conv, model.conv_state_dtype, poison_word(model.conv_state_dtype, block));
  pool.write(layer, block, recurrent, conv);
}

std::string PoisonRead::place() const {
  std::string text = "step " + std::to_string(step) + ", ";
  if (row >= 0) text += "row " + std::to_string(row) + ", sequence " + std::to_string(sequence) + ", ";
  text += "layer " + std::to_string(layer) + ", ";
  if (row < 0) text += "block " + std::to_string(block) + ", ";
  const std::string at = std::to_string(head) + " element " + std::to_string(element);
  if (tap == Tap::state) return text + "recurrent state head " + at;
  return text + (tap == Tap::conv_state ? "conv state column " : std::string(name_of(tap)) + " head ") + at;
}

std::string PoisonRead::text() const {
  if (padding >= 0) {
    const std::string when = padding_step == step ? "" : " of step " + std::to_string(padding_step);
    return "padding of row " + std::to_string(padding) + when + " read: " + place();
  }
  if (poison < 0) return "output never written: " + place();
  const bool own = named() == block;
  const std::string modulo = own || poison_modulo == 0 ? "" : " (modulo " + std::to_string(poison_modulo) + ")";
  std::string text = "poison of block " + std::to_string(named()) + modulo + " read: " + place();
  if (!own) text += " (the row goes on from block " + std::to_string(block) + ")";
  return text;
}

std::int32_t PoisonRead::named() const {
  const bool own = poison_modulo > 0 && block % poison_modulo == poison;
  return own ? block : poison;
}

}  // namespace gdnsim
