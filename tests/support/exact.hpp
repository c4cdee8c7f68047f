// Correctly rounded exp, log and log1p for the tests: MPFR, and a fast enclosure that knows when it is not sure.
#pragma once

#include <cstdint>

namespace gdnsim::second {

/// f32 -> f32, rounded to nearest even from the exact value by MPFR, denormals included. NaN results are 0x7FFFFFFF.
float exact_exp(float x);
float exact_log(float x);
float exact_log1p(float x);

/// The same values, about 100 times faster: an enclosure in double decides all but about one input in 10^5, MPFR those.
/// Why that is as good as MPFR on every input stands in exact.cpp. `undecided` counts the calls of MPFR.
float quick_exp(float x, std::uint64_t& undecided);
float quick_log(float x, std::uint64_t& undecided);
float quick_log1p(float x, std::uint64_t& undecided);

}  // namespace gdnsim::second
