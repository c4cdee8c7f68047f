// What the drift files share: which steps are measured, and the cells as the result file has them. Private to drift.
#pragma once

#include <algorithm>
#include <string>

#include "gdnsim/drift.hpp"

namespace gdnsim {

inline bool measured(const DriftSweep& sweep, std::int64_t step) {
  return (step + 1) % sweep.every == 0 || step + 1 == sweep.steps;
}

/// Names go to terminals and tables as they are: no control characters, and not empty.
inline bool is_drift_name(const std::string& name) {
  return !name.empty() && std::ranges::none_of(name, [](unsigned char c) { return c < 0x20 || c == 0x7F; });
}

/// A JSON array: name, pair, labels by axis, layer_ids. drift/result.cpp
std::string cells_text(const DriftSweep& sweep);

}  // namespace gdnsim
