// Sweeps of one-argument functions over f32 bit patterns: compares got with want, reports the first wrong ones in hex.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "support/rounding.hpp"

namespace gdnsim::second {

/// A function under test and its reference, both from the bits of an f32 to the bits of the result.
struct Pair {
  std::string name;
  std::function<std::uint32_t(float)> got;
  std::function<std::uint32_t(float)> want;
};

/// Compares one input; prints "name(input) got X want Y" while `wrong` is small. Returns 1 when wrong.
inline int wrong_at(const Pair& pair, std::uint32_t input, std::uint64_t wrong_so_far = 0) {
  const std::uint32_t got = pair.got(float_of(input)), want = pair.want(float_of(input));
  if (got == want) return 0;
  if (wrong_so_far < 5) std::fprintf(stderr, "%s(%08X) got %08X want %08X\n", pair.name.c_str(), input, got, want);
  return 1;
}

struct Swept {
  std::uint64_t compared = 0, wrong = 0;
};

/// Inputs first, first + stride, ... while below first + span.
inline Swept sweep(const Pair& pair, std::uint64_t first, std::uint64_t span, std::uint64_t stride) {
  Swept result;
  for (std::uint64_t at = first; at < first + span; at += stride, ++result.compared)
    result.wrong += static_cast<std::uint64_t>(wrong_at(pair, static_cast<std::uint32_t>(at), result.wrong));
  return result;
}

/// `count` consecutive inputs of a pair that is meant to differ; prints nothing.
inline Swept quiet_sweep(const Pair& pair, std::uint32_t first, std::uint32_t count) {
  Swept result;
  for (std::uint32_t i = 0; i < count; ++i, ++result.compared)
    result.wrong += pair.got(float_of(first + i)) != pair.want(float_of(first + i)) ? 1u : 0u;
  return result;
}

inline Swept sweep(const Pair& pair, const std::vector<std::uint32_t>& inputs) {
  Swept result;
  for (std::uint32_t input : inputs) {
    result.wrong += static_cast<std::uint64_t>(wrong_at(pair, input, result.wrong));
    ++result.compared;
  }
  return result;
}

/// Both signs of every exponent's ends and of a few places inside, +-`reach` units: zeros, denormals, Inf and NaNs
/// included.
inline std::vector<std::uint32_t> boundary_inputs(std::uint32_t reach = 16) {
  std::vector<std::uint32_t> inputs;
  for (std::uint32_t field = 0; field < 512; ++field)
    for (std::uint32_t fraction : {0u, 0x2AAAABu, 0x400000u, 0x555555u})
      for (std::uint32_t i = 0; i <= 2 * reach; ++i) inputs.push_back((field << 23) + fraction + i - reach);
  return inputs;
}

/// `value` +- `reach` units in the last place.
inline void add_around(std::vector<std::uint32_t>& inputs, float value, std::uint32_t reach) {
  for (std::uint32_t i = 0; i <= 2 * reach; ++i) inputs.push_back(bits_of(value) + i - reach);
}

}  // namespace gdnsim::second
