// Content digests, the same on CPU and GPU (docs/log-format.md, rules L1-L5). For equality and integrity, not security.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gdnsim/types.hpp"

namespace gdnsim {

inline constexpr std::uint64_t kDigestC = 0x9E3779B97F4A7C15u;

/// SplitMix64's 64-bit finaliser.
constexpr std::uint64_t mix(std::uint64_t z) {
  z ^= z >> 30;
  z *= 0xBF58476D1CE4E5B9u;
  z ^= z >> 27;
  z *= 0x94D049BB133111EBu;
  z ^= z >> 31;
  return z;
}

/// r(v): one line of a block (a V row of K elements, or a conv column of dim elements), `index` its number in the block.
std::uint64_t digest_line(std::span<const std::byte> line, std::uint64_t index);
/// Sum of r(v) over the lines of `bytes`, each `line_bytes` long.
std::uint64_t digest_lines(std::span<const std::byte> bytes, std::size_t line_bytes);

/// Digests of one block: one per value head, one for the conv state, and both joined.
struct BlockDigest {
  std::vector<std::uint64_t> heads;  // [HV]
  std::uint64_t conv = 0;
  std::uint64_t block = 0;
};
BlockDigest digest_block(const Model& model, std::span<const std::byte> recurrent, std::span<const std::byte> conv);
/// Sum over heads of mix(head + (hv + 1) * C), plus mix(conv + C).
std::uint64_t join_block(std::span<const std::uint64_t> heads, std::uint64_t conv);
/// A block's share of the pool digest: mix(block digest + (block + 1) * C).
constexpr std::uint64_t pool_share(std::uint64_t block_digest, std::int64_t block) {
  return mix(block_digest + (static_cast<std::uint64_t>(block) + 1) * kDigestC);
}

/// XXH3 of raw bytes, seed 0.
std::uint64_t xxh3_64(std::span<const std::byte> bytes);
std::array<std::uint64_t, 2> xxh3_128(std::span<const std::byte> bytes);  // low word first

}  // namespace gdnsim
