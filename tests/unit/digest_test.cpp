// Digests against vectors from an independent Python script (support/digest_vectors.py), XXH3's published values, and what a
// digest must notice.
#include <gdnsim/digest.hpp>

#include <algorithm>
#include <string>

#include <doctest/doctest.h>

#include "support/pattern.hpp"

using namespace gdnsim;
using gdnsim::test::pattern;

namespace {

Model small_model() {
  Model model;
  model.H = 1, model.HV = 2, model.K = 3, model.V = 5, model.W = 4;
  model.state_dtype = DType::f32;
  model.conv_state_dtype = DType::bf16;
  model.num_blocks = 4;
  model.layer_ids = {0};
  return model;
}

Model wide_model() {
  Model model = small_model();
  model.H = 2, model.HV = 4, model.K = 8, model.V = 8, model.W = 3;
  model.state_dtype = DType::bf16;
  model.conv_state_dtype = DType::f32;
  return model;
}

struct BlockCase {
  std::string name;
  Model model;
  bool zero;
  std::vector<std::uint64_t> heads;
  std::uint64_t conv, block, share;
};

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace

TEST_CASE("mix is SplitMix64's finaliser") {
  CHECK(mix(0) == 0);
  CHECK(mix(1) == 0x5692161D100B05E5u);
  CHECK(mix(kDigestC) == 0xE220A8397B1DCDAFu);  // the first value of SplitMix64 from seed 0
  CHECK(mix(~std::uint64_t{0}) == 0xB4D055FCF2CBBD7Bu);
}

TEST_CASE("digest_line: every length and alignment gives what its definition says, whatever the processor can do") {
  const auto defined = [](std::span<const std::byte> line, std::uint64_t index) {
    std::uint64_t sum = 0;
    for (std::size_t at = 0; at < line.size(); at += 8) {
      std::uint64_t word = 0;
      for (std::size_t i = at; i < std::min(at + 8, line.size()); ++i)
        word |= std::to_integer<std::uint64_t>(line[i]) << 8 * (i - at);
      const std::uint64_t keyed = word ^ mix(at / 8 + 1);
      sum += word + (keyed & 0xFFFFFFFFu) * (keyed >> 32);
    }
    return mix(sum + (index + 1) * kDigestC);
  };
  const Bytes bytes = pattern(33'000, 12);
  int wrong = 0;
  const auto compare = [&](std::size_t first, std::size_t size) {
    const auto line = std::span<const std::byte>(bytes).subspan(first, size);
    wrong += digest_line(line, size) != defined(line, size);
  };
  for (std::size_t first = 0; first < 33; ++first)
    for (std::size_t size = 0; size < 600; ++size) compare(first, size);
  for (std::size_t size = 32'700; size < 32'900; ++size) compare(5, size);  // around the end of the table of keys
  CHECK(wrong == 0);
}

TEST_CASE("digest_line: fixed vectors, whole and partial words, beyond the table of keys") {
  struct {
    std::size_t size;
    std::uint64_t index, digest;
  } const cases[] = {
      {0, 0, 0xE220A8397B1DCDAFu},     {1, 0, 0xADB46C28C11BDCC6u},     {7, 3, 0xDB2D37610026AE3Bu},
      {8, 0, 0x2ACC161A1BEEF75Du},     {9, 1, 0x1ABF09BE2B2C2A95u},     {256, 0, 0x7990F623C80500EAu},
      {512, 127, 0x8BE44FF60CF8FCC4u}, {40000, 2, 0x86D8530ADAE3EAC1u},
  };
  for (const auto& c : cases) {
    CAPTURE(c.size);
    CHECK(digest_line(pattern(c.size, 7), c.index) == c.digest);
  }
}

TEST_CASE("digest_block: fixed vectors") {
  const BlockCase cases[] = {
      {"f32 state",
       small_model(),
       false,
       {0x3812107CF29F0132u, 0x9863D3B84ECDADE4u},
       0x38ED23A06DDB039Bu,
       0xADC00CEE26D8BD0Eu,
       0xB7E159212F2B36FDu},
      {"bf16 state",
       wide_model(),
       false,
       {0x93F801C9A24CF13Au, 0x57328973A0B9A6F7u, 0xF087979C3D4763A7u, 0x8556F80744E2C04Du},
       0x603E0E68A3ADEF0Au,
       0x6BD745B64663358Eu,
       0x6900884E84F70F42u},
      {"zero",
       small_model(),
       true,
       {0x29D63E6F0FA82A34u, 0x29D63E6F0FA82A34u},
       0xC163953016022EEEu,
       0x8E3EFD8209067BA3u,
       0xF1D2A019D361AA6Bu},
  };
  for (const BlockCase& c : cases) {
    CAPTURE(c.name);
    const Bytes recurrent = c.zero ? Bytes(c.model.state_bytes()) : pattern(c.model.state_bytes(), 1);
    const Bytes conv = c.zero ? Bytes(c.model.conv_bytes()) : pattern(c.model.conv_bytes(), 2);
    const BlockDigest digest = digest_block(c.model, recurrent, conv);
    CHECK(digest.heads == c.heads);
    CHECK(digest.conv == c.conv);
    CHECK(digest.block == c.block);
    CHECK(join_block(digest.heads, digest.conv) == c.block);
    CHECK(pool_share(digest.block, 5) == c.share);
  }
}

TEST_CASE("digest_block: every single bit counts") {
  const Model model = small_model();
  Bytes recurrent = pattern(model.state_bytes(), 1), conv = pattern(model.conv_bytes(), 2);
  const std::uint64_t whole = digest_block(model, recurrent, conv).block;
  for (Bytes* bytes : {&recurrent, &conv}) {
    for (std::size_t bit = 0; bit < 8 * bytes->size(); ++bit) {
      (*bytes)[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
      CHECK(digest_block(model, recurrent, conv).block != whole);
      (*bytes)[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    }
  }
}

TEST_CASE("digest_block: places count, not only contents") {
  const Model model = small_model();
  const Bytes recurrent = pattern(model.state_bytes(), 1), conv = pattern(model.conv_bytes(), 2);
  const BlockDigest whole = digest_block(model, recurrent, conv);
  Bytes swapped = recurrent;  // rows 0 and 1 of head 0, 12 bytes each
  std::swap_ranges(swapped.begin(), swapped.begin() + 12, swapped.begin() + 12);
  CHECK(digest_block(model, swapped, conv).heads[0] != whole.heads[0]);
  CHECK(digest_block(model, swapped, conv).heads[1] == whole.heads[1]);
  swapped = recurrent;  // the two heads
  std::swap_ranges(swapped.begin(), swapped.begin() + 60, swapped.begin() + 60);
  CHECK(digest_block(model, swapped, conv).heads[0] == whole.heads[1]);
  CHECK(digest_block(model, swapped, conv).block != whole.block);
  CHECK(pool_share(whole.block, 0) != pool_share(whole.block, 1));
}

TEST_CASE("XXH3: the published values, low word first") {
  CHECK(xxh3_64({}) == 0x2D06800538D394C2u);
  CHECK(xxh3_128({}) == std::array<std::uint64_t, 2>{0x6001C324468D497Fu, 0x99AA06D3014798D8u});
  CHECK(xxh3_64(bytes_of("abc")) == 0x78AF5F94892F3950u);
  CHECK(xxh3_128(bytes_of("abc")) == std::array<std::uint64_t, 2>{0x78AF5F94892F3950u, 0x06B05AB6733A6185u});
}
