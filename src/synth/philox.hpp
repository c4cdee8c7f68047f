// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011): a keyed bijection of 128-bit counters. Any number of the stream can be computed alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gdnsim {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

/// `lanes` counters that differ in word 0 alone (first, first + 1, ...); out[word][lane]. The inner loops vectorise.
template <std::size_t lanes>
void philox(std::uint32_t first, const PhiloxCounter& rest, PhiloxKey key, std::uint32_t (&out)[4][lanes]) {
  constexpr std::uint32_t kMultiply0 = 0xD2511F53u, kMultiply1 = 0xCD9E8D57u;  // the paper's constants
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    out[0][lane] = first + static_cast<std::uint32_t>(lane);
    for (std::size_t word = 1; word < 4; ++word) out[word][lane] = rest[word];
  }
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 1  // g++ 12 unrolls it whole before it would vectorise it
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const std::uint64_t product0 = static_cast<std::uint64_t>(kMultiply0) * out[0][lane];
      const std::uint64_t product1 = static_cast<std::uint64_t>(kMultiply1) * out[2][lane];
      out[0][lane] = static_cast<std::uint32_t>(product1 >> 32) ^ out[1][lane] ^ key[0];
      out[2][lane] = static_cast<std::uint32_t>(product0 >> 32) ^ out[3][lane] ^ key[1];
      out[1][lane] = static_cast<std::uint32_t>(product1);
      out[3][lane] = static_cast<std::uint32_t>(product0);
    }
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
}

/// One counter.
inline PhiloxCounter philox(const PhiloxCounter& counter, const PhiloxKey& key) {
  std::uint32_t out[4][1];
  philox(counter[0], counter, key, out);
  return {out[0][0], out[1][0], out[2][0], out[3][0]};
}

}  // namespace gdnsim
