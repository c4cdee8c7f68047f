#include "synth/values.hpp"

#include <algorithm>
#include <cstring>

#include "gdnsim/arith.hpp"
#include "gdnsim/error.hpp"
#include "synth/normal_table.hpp"

namespace gdnsim {
namespace {

constexpr std::size_t kLanes = kChunk / 4;
constexpr int kUniformBits = 28;
using Integers = std::int32_t[kChunk];

/// Value = integer * scale + offset. The integer has at most 29 bits and the scale is a float times a power of two, so the
/// product is exact in double, with or without contraction; the sum rounds to double, then to float.
struct Affine {
  double scale, offset;
};

Affine affine_of(const Draw& draw) {
  const double first = draw.first, second = draw.second;
  switch (draw.kind) {
    case Draw::Kind::normal:
      return {second / (1 << kNormalBits), first};
    case Draw::Kind::uniform:
    case Draw::Kind::log_of_uniform:
      return {static_cast<double>(static_cast<float>(second - first)) / (1 << kUniformBits), first};
    case Draw::Kind::constant:
      return {0, first};
  }
  GDNSIM_CHECK(false);
  return {};
}

void chunk_normals(const Address& address, std::size_t chunk, Integers& out) {
  const NormalTable& normal = NormalTable::get();
  std::uint32_t words[kChunk];
  chunk_words(address, chunk, words);
  for (std::size_t i = 0; i < kChunk; ++i) out[i] = normal(words[i]);
}

void chunk_integers(Draw::Kind kind, const Address& address, std::size_t chunk, Integers& out) {
  if (kind == Draw::Kind::normal) return chunk_normals(address, chunk, out);
  std::uint32_t words[kChunk] = {};
  if (kind != Draw::Kind::constant) chunk_words(address, chunk, words);
  for (std::size_t i = 0; i < kChunk; ++i) out[i] = static_cast<std::int32_t>(words[i] >> (32 - kUniformBits));
}

void chunk_floats(const Draw& draw, const Affine& affine, const Integers& integers, float (&out)[kChunk]) {
  for (std::size_t i = 0; i < kChunk; ++i) out[i] = static_cast<float>(integers[i] * affine.scale + affine.offset);
  if (draw.kind == Draw::Kind::log_of_uniform)
    for (float& x : out) x = log_cr(x);
}

void store(const float (&values)[kChunk], DType type, std::size_t count, std::byte* out) {
  if (type == DType::f32) {
    std::memcpy(out, values, count * 4);
    return;
  }
  std::uint16_t words[kChunk];
  if (type == DType::bf16)
    for (std::size_t i = 0; i < kChunk; ++i) words[i] = bf16_from_f32(values[i]);
  else
    for (std::size_t i = 0; i < kChunk; ++i) words[i] = f16_from_f32(values[i]);
  std::memcpy(out, words, count * 2);
}

/// Calls integers(chunk, out) for each chunk of the row and stores what comes of it.
template <class Source>
void fill_with(const Draw& draw, DType type, std::span<std::byte> out, Source&& source) {
  const Affine affine = affine_of(draw);
  const std::size_t size = size_of(type), elements = out.size() / size;
  Integers integers;
  float values[kChunk];
  for (std::size_t chunk = 0; chunk * kChunk < elements; ++chunk) {
    source(chunk, integers);
    chunk_floats(draw, affine, integers, values);
    store(values, type, std::min(kChunk, elements - chunk * kChunk), out.data() + chunk * kChunk * size);
  }
}

/// Floor of the square root.
std::uint64_t integer_sqrt(std::uint64_t x) {
  std::uint64_t root = 0;
  for (std::uint64_t bit = std::uint64_t{1} << 31; bit != 0; bit >>= 1)
    if ((root | bit) * (root | bit) <= x) root |= bit;
  return root;
}

/// Weights of the base vector, the next one and the noise, in 2^-20. Their squares sum to 1, so the variance stays.
struct Mix {
  std::int64_t base, next, noise;
  std::uint32_t segment;
};

Mix mix_at(const KeyRecipe& keys, std::uint32_t position) {
  const auto weight = static_cast<std::uint64_t>(keys.weight);
  Mix mix{static_cast<std::int64_t>(weight << 12), 0, 0, 0};
  mix.noise = static_cast<std::int64_t>(integer_sqrt((std::uint64_t{1} << 40) - (weight * weight << 24)));
  if (keys.drift == 0) return mix;
  const auto drift = static_cast<std::uint64_t>(keys.drift);
  const std::uint64_t to = position % drift, from = drift - to, norm = to * to + from * from;
  mix.segment = static_cast<std::uint32_t>(position / drift);
  mix.base = static_cast<std::int64_t>(weight * integer_sqrt((from * from << 24) / norm));
  mix.next = static_cast<std::int64_t>(weight * integer_sqrt((to * to << 24) / norm));
  return mix;
}

/// Mixes the elements of one chunk that are k channels.
void mix_keys(const KeyChannels& channels, const Mix& mix, Address address, std::size_t chunk, Integers& integers) {
  const std::size_t begin = chunk * kChunk;
  if (begin >= channels.end || begin + kChunk <= channels.begin) return;
  Integers base, next = {};
  address.tensor = Tensor::key_base;
  address.position = mix.segment;
  chunk_normals(address, chunk, base);
  address.position = mix.segment + 1;
  if (mix.next != 0) chunk_normals(address, chunk, next);
  for (std::size_t i = 0; i < kChunk; ++i)
    if (begin + i >= channels.begin && begin + i < channels.end)
      integers[i] =
          static_cast<std::int32_t>((mix.base * base[i] + mix.next * next[i] + mix.noise * integers[i]) >> 20);
}

/// The stored word of a special value; `bits` gives sign, payload or denormal where the kind leaves them open.
std::uint32_t special_word(SpecialRecipe::Kind kind, DType type, std::uint32_t bits) {
  const int width = type == DType::f32 ? 32 : 16;
  const int mantissa_bits = type == DType::f32 ? 23 : type == DType::bf16 ? 7 : 10;
  const std::uint32_t sign = 1u << (width - 1), mantissa = (1u << mantissa_bits) - 1, exponent = sign - 1 - mantissa;
  const std::uint32_t any = (bits & 0x80000000u) != 0 ? sign : 0, tail = (bits & mantissa) | 1;
  switch (kind) {
    case SpecialRecipe::Kind::nan:
      return exponent | (mantissa + 1) / 2;
    case SpecialRecipe::Kind::payload:
      return any | exponent | tail;
    case SpecialRecipe::Kind::inf:
      return exponent;
    case SpecialRecipe::Kind::minus_inf:
      return sign | exponent;
    case SpecialRecipe::Kind::zero:
      return 0;
    case SpecialRecipe::Kind::minus_zero:
      return sign;
    case SpecialRecipe::Kind::denormal:
      return any | tail;
    case SpecialRecipe::Kind::largest:
      return any | (exponent - 1);
  }
  GDNSIM_CHECK(false);
  return 0;
}

}  // namespace

PhiloxCounter Address::counter() const {
  return {0, position, sequence, static_cast<std::uint32_t>(layer_id) << 8 | static_cast<std::uint32_t>(tensor)};
}

void chunk_words(const Address& address, std::size_t chunk, std::uint32_t (&words)[kChunk]) {
  std::uint32_t out[4][kLanes];
  philox(static_cast<std::uint32_t>(chunk * kLanes), address.counter(), address.key(), out);
  std::memcpy(words, out, sizeof words);
}

void fill(const Draw& draw, const Address& address, DType type, std::span<std::byte> out) {
  fill_with(draw, type, out,
            [&](std::size_t chunk, Integers& integers) { chunk_integers(draw.kind, address, chunk, integers); });
}

void fill(const Draw& draw, const Address& address, std::span<float> out) {
  fill(draw, address, DType::f32, std::as_writable_bytes(out));
}

void fill_normals(const Address& address, std::span<const float> mean, std::span<const float> deviation, DType type,
                  std::span<std::byte> out) {
  const std::size_t size = size_of(type);
  Integers integers;
  float values[kChunk] = {};
  for (std::size_t begin = 0; begin < mean.size(); begin += kChunk) {
    const std::size_t count = std::min(kChunk, mean.size() - begin);
    chunk_normals(address, begin / kChunk, integers);
    for (std::size_t i = 0; i < count; ++i) {
      const double scale = static_cast<double>(deviation[begin + i]) / (1 << kNormalBits);  // exact, as is the product
      values[i] = static_cast<float>(integers[i] * scale + mean[begin + i]);
    }
    store(values, type, count, out.data() + begin * size);
  }
}

void fill_x(const Draw& draw, const KeyChannels& channels, const Address& address, DType type,
            std::span<std::byte> out) {
  if (channels.keys.weight == 0) return fill(draw, address, type, out);
  const Mix mix = mix_at(channels.keys, address.position);
  fill_with(draw, type, out, [&](std::size_t chunk, Integers& integers) {
    chunk_normals(address, chunk, integers);
    mix_keys(channels, mix, address, chunk, integers);
  });
}

void sprinkle(const SpecialRecipe& specials, const Address& address, DType type, std::span<std::byte> row) {
  const std::uint64_t limit = threshold(specials.rate);
  const std::size_t size = size_of(type), elements = row.size() / size;
  Address where = address;
  where.tensor = special_of(address.tensor);
  std::uint32_t words[kChunk];
  for (std::size_t e = 0; e < elements; ++e) {
    if (e % kChunk == 0) chunk_words(where, e / kChunk, words);
    const std::uint64_t word = words[e % kChunk];
    if (word >= limit) continue;
    // Below the limit the word is uniform again: its size picks the kind, its scrambled bits the rest.
    const auto kind = specials.kinds[static_cast<std::size_t>(word * specials.kinds.size() / limit)];
    const std::uint32_t special = special_word(kind, type, static_cast<std::uint32_t>(word) * 0x9E3779B1u);
    std::memcpy(row.data() + e * size, &special, size);  // little-endian: the low bytes
  }
}

std::uint64_t threshold(double rate) { return static_cast<std::uint64_t>(rate * 0x1p32); }

}  // namespace gdnsim
