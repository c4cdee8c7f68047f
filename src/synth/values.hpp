// The values of synthetic tensors. An address and an element number give a random word, the word an integer, the integer a
// float and the float a stored word; every step is exact or rounds once, to nearest even, in a way the code fixes.
#pragma once

#include <cstdint>
#include <span>

#include "gdnsim/recipe.hpp"
#include "synth/philox.hpp"

namespace gdnsim {

/// The last counter word holds the layer id (24 bits) and one of these. Numbers are part of the format: never reuse one.
enum class Tensor : std::uint8_t {
  A_log = 1,
  dt_bias = 2,
  conv_weight = 3,
  conv_bias = 4,
  norm_weight = 5,
  x = 16,
  a = 17,
  b = 18,
  z = 19,
  key_base = 20,
  recurrent = 32,
  conv = 33,
  captured_x = 48,  // fresh tokens after captured ones
  captured_a = 49,
  captured_b = 50,
  captured_z = 51,
  captured_offset = 52,
  schedule = 64,  // 64.. : one for each decision (synth/plan.cpp)
  special = 128,  // added to x, a, b or z: where special values go
};
constexpr Tensor special_of(Tensor tensor) {
  return static_cast<Tensor>(static_cast<int>(Tensor::special) + static_cast<int>(tensor));
}

/// Sequence word of an inactive row: nothing a real sequence can have; its position is the step.
constexpr std::uint32_t padding_row(int row) { return 0x80000000u | static_cast<std::uint32_t>(row); }

struct Address {
  std::uint64_t seed;
  Tensor tensor;
  std::int32_t layer_id = 0;
  std::uint32_t sequence = 0;
  std::uint32_t position = 0;
  PhiloxCounter counter() const;  // word 0 free
  PhiloxKey key() const { return {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}; }
};

/// Elements come in chunks of 64: element e is word e / 16 % 4 of counter (e / 64) * 16 + e % 16.
inline constexpr std::size_t kChunk = 64;
void chunk_words(const Address& address, std::size_t chunk, std::uint32_t (&words)[kChunk]);

/// Fills `out` with elements 0, 1, ... of `type`.
void fill(const Draw& draw, const Address& address, DType type, std::span<std::byte> out);
void fill(const Draw& draw, const Address& address, std::span<float> out);

/// Normal draws with a mean and a deviation of their own for each element.
void fill_normals(const Address& address, std::span<const float> mean, std::span<const float> deviation, DType type,
                  std::span<std::byte> out);

/// x's k channels, begin..end of the row, mixed as `keys` says. The draw is normal.
struct KeyChannels {
  const KeyRecipe& keys;
  std::size_t begin, end;
};
void fill_x(const Draw& draw, const KeyChannels& channels, const Address& address, DType type,
            std::span<std::byte> out);

/// Overwrites elements of a filled row at the recipe's rate.
void sprinkle(const SpecialRecipe& specials, const Address& address, DType type, std::span<std::byte> row);

/// A probability as a threshold for a word: certain is 2^32.
std::uint64_t threshold(double rate);

}  // namespace gdnsim
