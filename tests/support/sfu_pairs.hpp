// The library's approximate functions beside the second implementation: one list for the normal and the long test.
#pragma once

#include <vector>

#include "golden/sfu.hpp"
#include "support/approximate.hpp"
#include "support/sweep.hpp"

namespace gdnsim::second {

inline std::vector<Pair> sfu_pairs() {
  const auto pair = [](const char* name, float (*got)(float), float (*want)(float)) {
    return Pair{name, [got](float x) { return bits_of(got(x)); }, [want](float x) { return bits_of(want(x)); }};
  };
  return {
      pair("rcp_approx_ftz", golden::rcp_approx_ftz, rcp_ftz),
      pair("sqrt_approx_ftz", golden::sqrt_approx_ftz, sqrt_ftz),
      pair("rsqrt_approx_ftz", golden::rsqrt_approx_ftz, rsqrt_ftz),
      pair("ex2_approx_ftz", golden::ex2_approx_ftz, ex2_ftz),
      pair("ex2_approx", golden::ex2_approx, ex2),
      pair("log_libdevice", golden::log_libdevice, log_ftz),
  };
}

/// div_full has two arguments: each sweep takes one of them as it comes and the other from a mix of its bits.
inline std::vector<Pair> div_pairs() {
  const auto other = [](float x) { return float_of(bits_of(x) * 2654435761u ^ 0x5BD1E995u); };
  return {
      {"div_full(x, mixed)", [other](float x) { return bits_of(golden::div_full(x, other(x))); },
       [other](float x) { return bits_of(div_full(x, other(x))); }},
      {"div_full(mixed, x)", [other](float x) { return bits_of(golden::div_full(other(x), x)); },
       [other](float x) { return bits_of(div_full(other(x), x)); }},
      {"div_full(1, x)", [](float x) { return bits_of(golden::div_full(1, x)); },
       [](float x) { return bits_of(div_full(1, x)); }},
  };
}

}  // namespace gdnsim::second
