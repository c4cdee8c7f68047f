// Test bytes that any language can make again: the top byte of each state of a 32-bit linear congruential generator.
#pragma once

#include <cstddef>
#include <cstdint>

#include <gdnsim/types.hpp>

namespace gdnsim::test {

inline Bytes pattern(std::size_t size, std::uint32_t seed) {
  Bytes bytes(size);
  std::uint32_t state = seed;
  for (std::byte& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

}  // namespace gdnsim::test
