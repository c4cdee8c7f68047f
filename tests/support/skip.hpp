// Skipping a doctest case at run time, so that it is counted as skipped and never as passed.
#pragma once

#include <string>

namespace gdnsim::test {

/// The reasons that are allowed when GDNSIM_CI=1.
inline constexpr const char *kNoGpu = "no GPU", *kOneGpu = "one GPU";

/// Notes that the running case is skipped (a `[skip]` line that tools/test counts); fails it when GDNSIM_CI=1 forbids the reason.
void skip(const std::string& reason);

}  // namespace gdnsim::test

/// Leaves the running case: `if (dir == nullptr) GDNSIM_SKIP("GDNSIM_EXTRA_DATA is not set");`
#define GDNSIM_SKIP(reason)       \
  do {                            \
    ::gdnsim::test::skip(reason); \
    return;                       \
  } while (false)
