// The launcher that computes a device's approximate functions (approximate.cu).
#pragma once

#include "gdnsim/approximate.hpp"

namespace gdnsim::cuda {

/// The function's results for the inputs with the bits first, first + 1, ...; in order with this thread's `copy_now`.
void launch_approximate(Approximate which, std::uint32_t first, std::uint32_t* results, std::int64_t count);

}  // namespace gdnsim::cuda
