// The library's arithmetic beside its references: one list for the normal and the long test.
#pragma once

#include <gdnsim/arith.hpp>

#include <vector>

#include "support/exact.hpp"
#include "support/sweep.hpp"

namespace gdnsim::second {

/// Against MPFR itself.
inline std::vector<Pair> exact_pairs() {
  return {
      {"exp_cr", [](float x) { return bits_of(exp_cr(x)); }, [](float x) { return bits_of(exact_exp(x)); }},
      {"log_cr", [](float x) { return bits_of(log_cr(x)); }, [](float x) { return bits_of(exact_log(x)); }},
      {"log1p_cr", [](float x) { return bits_of(log1p_cr(x)); }, [](float x) { return bits_of(exact_log1p(x)); }},
  };
}

/// Against the enclosures (exact.cpp says why that is as good); `undecided` is per thread and only grows.
inline thread_local std::uint64_t undecided = 0;
inline std::vector<Pair> quick_pairs() {
  return {
      {"exp_cr", [](float x) { return bits_of(exp_cr(x)); }, [](float x) { return bits_of(quick_exp(x, undecided)); }},
      {"log_cr", [](float x) { return bits_of(log_cr(x)); }, [](float x) { return bits_of(quick_log(x, undecided)); }},
      {"log1p_cr", [](float x) { return bits_of(log1p_cr(x)); },
       [](float x) { return bits_of(quick_log1p(x, undecided)); }},
  };
}

inline std::vector<Pair> conversion_pairs() {
  return {
      {"bf16_from_f32", [](float x) { return std::uint32_t{bf16_from_f32(x)}; },
       [](float x) { return std::uint32_t{to_bf16(x)}; }},
      {"f16_from_f32", [](float x) { return std::uint32_t{f16_from_f32(x)}; },
       [](float x) { return std::uint32_t{to_f16(x)}; }},
  };
}

}  // namespace gdnsim::second
