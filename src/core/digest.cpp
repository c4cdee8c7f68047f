// Content digests. Every sum and product is modulo 2^64, so the order of adding never matters: a GPU may sum as it likes.
#include "gdnsim/digest.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include <xxhash.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define GDNSIM_DIGEST_AVX2 1
#include <immintrin.h>
#endif

#include "gdnsim/error.hpp"

namespace gdnsim {

// Words are read from memory as they are.
static_assert(std::endian::native == std::endian::little, "digests are defined on little-endian words");

namespace {

constexpr std::size_t kWorthThreads = std::size_t{512} << 10;  // bytes of a block's state
constexpr std::size_t kKeyTable = 4096;                        // words; a conv line of 16,384 bf16 channels

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

/// The sum of terms over whole words that have a key in the table.
std::uint64_t sum_plain(const std::byte* bytes, std::size_t words) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < words; ++i) sum += term(word_at(bytes + 8 * i), kKeys[i]);
  return sum;
}

#ifdef GDNSIM_DIGEST_AVX2
/// Four words at a time: `mul_epu32` is the product of the low halves, all that a term needs. Sums modulo 2^64 in any order
/// are the same sum.
__attribute__((target("avx2"))) std::uint64_t sum_avx2(const std::byte* bytes, std::size_t words) {
  __m256i sums = _mm256_setzero_si256(), products = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + 4 <= words; i += 4) {
    const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 8 * i));
    const __m256i keyed = _mm256_xor_si256(word, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(&kKeys[i])));
    sums = _mm256_add_epi64(sums, word);
    products = _mm256_add_epi64(products, _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32)));
  }
  std::uint64_t four[4], sum = 0;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(four), _mm256_add_epi64(sums, products));
  for (; i < words; ++i) sum += term(word_at(bytes + 8 * i), kKeys[i]);
  return sum + four[0] + four[1] + four[2] + four[3];
}

const auto sum_of_words = __builtin_cpu_supports("avx2") ? sum_avx2 : sum_plain;
#else
const auto sum_of_words = sum_plain;
#endif

}  // namespace

std::uint64_t digest_line(std::span<const std::byte> line, std::uint64_t index) {
  const std::size_t words = line.size() / 8;
  const std::size_t tabled = std::min(words, kKeyTable);
  std::uint64_t sum = sum_of_words(line.data(), tabled);
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
#pragma omp parallel for schedule(static) if (recurrent.size() >= kWorthThreads)
  for (std::size_t hv = 0; hv < digest.heads.size(); ++hv)
    digest.heads[hv] = digest_lines(recurrent.subspan(hv * head_bytes, head_bytes), row_bytes);
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
