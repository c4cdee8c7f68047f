// Content digests on the device (docs/log-format.md, rules L1-L5; src/core/digest.cpp). Sums are modulo 2^64: any order will do.
#pragma once

#include "gdnsim/digest.hpp"

namespace gdnsim::cuda {

/// What word number `index` of a line adds to the line's sum.
__device__ inline unsigned long long digest_term(std::uint32_t low, std::uint32_t high, std::int64_t index) {
  const unsigned long long word = low | static_cast<unsigned long long>(high) << 32;
  const unsigned long long keyed = word ^ mix(static_cast<unsigned long long>(index) + 1);
  return word + (keyed & 0xFFFFFFFFull) * (keyed >> 32);
}

}  // namespace gdnsim::cuda
