// The long sweeps' program: arguments, threads, progress. Used by golden/*_long.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "support/sweep.hpp"

namespace gdnsim::second {

/// Compares `count` inputs from `first` on, on all cores, with progress on stderr.
Swept long_sweep(const Pair& pair, std::uint64_t first, std::uint64_t count);

/// main of a long test: [function [first [count]]]; without arguments every function over all 2^32 inputs. Prints one
/// line of counts a function. 0: every input agreed; 1: some did not; 2: the arguments name nothing.
int run_long(const std::vector<Pair>& pairs, int argc, char** argv);

}  // namespace gdnsim::second
