// What the drift files share: which steps are measured, and the cells as the result file has them. Private to drift.
#pragma once

#include <string>

#include "gdnsim/drift.hpp"

namespace gdnsim {

inline bool measured(const DriftSweep& sweep, std::int64_t step) {
  return (step + 1) % sweep.every == 0 || step + 1 == sweep.steps;
}

/// A JSON array: name, pair, labels by axis, layer_ids. drift_result.cpp
std::string cells_text(const DriftSweep& sweep);

}  // namespace gdnsim
