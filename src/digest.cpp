// Content digests. Every sum and product is modulo 2^64, so the order of adding never matters: a GPU may sum as it likes.
#include "gdnsim/digest.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include <xxhash.h>

#include "gdnsim/error.hpp"

namespace gdnsim {

// Words are read from memory as they are.
static_assert(std::endian::native == std::endian::little, "digests are defined on little-endian words");

namespace {

constexpr std::size_t kKeyTable = 4096;  // words; a conv line of 16,384 bf16 channels

constexpr std::array<std::uint64_t, kKeyTable> make_keys() {
  std::array<std::uint64_t, kKeyTable> keys{};
  for (std::size_t i = 0; i < kKeyTable; ++i) keys[i] = mix(i + 1);
  return keys;
}

const std::array<std::uint64_t, kKeyTable> kKeys = make_keys();

// x + lo32(x ^ k) * hi32(x ^ k)
constexpr std::uint64_t term(std::uint64_t word, std::uint64_t key) {
  const std::uint64_t keyed = word ^ key;
  return word + (keyed & 0xFFFFFFFFu) * (keyed >> 32);
}

std::uint64_t word_at(const std::byte* bytes) {
  std::uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

}  // namespace

std::uint64_t digest_line(std::span<const std::byte> line, std::uint64_t index) {
  const std::size_t words = line.size() / 8;
  const std::size_t tabled = std::min(words, kKeyTable);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < tabled; ++i) sum += term(word_at(line.data() + 8 * i), kKeys[i]);
  for (std::size_t i = tabled; i < words; ++i) sum += term(word_at(line.data() + 8 * i), mix(i + 1));
  if (const std::size_t rest = line.size() % 8; rest != 0) {
    std::uint64_t last = 0;  // zero-padded
    std::memcpy(&last, line.data() + 8 * words, rest);
    sum += term(last, mix(words + 1));
  }
  return mix(sum + (index + 1) * kDigestC);
}

std::uint64_t digest_lines(std::span<const std::byte> bytes, std::size_t line_bytes) {
  GDNSIM_CHECK(line_bytes > 0 && bytes.size() % line_bytes == 0);
  std::uint64_t sum = 0;
  for (std::size_t v = 0; v < bytes.size() / line_bytes; ++v) {
    sum += digest_line(bytes.subspan(v * line_bytes, line_bytes), v);
  }
  return sum;
}

BlockDigest digest_block(const Model& model, std::span<const std::byte> recurrent, std::span<const std::byte> conv) {
  GDNSIM_CHECK(recurrent.size() == model.state_bytes() && conv.size() == model.conv_bytes());
  const std::size_t row_bytes = static_cast<std::size_t>(model.K) * size_of(model.state_dtype);
  const std::size_t head_bytes = row_bytes * static_cast<std::size_t>(model.V);
  BlockDigest digest;
  digest.heads.resize(static_cast<std::size_t>(model.HV));
  for (std::size_t hv = 0; hv < digest.heads.size(); ++hv) {
    digest.heads[hv] = digest_lines(recurrent.subspan(hv * head_bytes, head_bytes), row_bytes);
  }
  digest.conv = digest_lines(conv, static_cast<std::size_t>(model.dim()) * size_of(model.conv_state_dtype));
  digest.block = join_block(digest.heads, digest.conv);
  return digest;
}

std::uint64_t join_block(std::span<const std::uint64_t> heads, std::uint64_t conv) {
  std::uint64_t sum = mix(conv + kDigestC);
  for (std::size_t hv = 0; hv < heads.size(); ++hv) sum += mix(heads[hv] + (hv + 1) * kDigestC);
  return sum;
}

std::uint64_t xxh3_64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::array<std::uint64_t, 2> xxh3_128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

}  // namespace gdnsim
