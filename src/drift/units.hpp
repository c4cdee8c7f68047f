// The workers of a sweep with what computes a unit left open, so that a test can let one fail. Private to drift.
#pragma once

#include <functional>

#include "gdnsim/drift.hpp"

namespace gdnsim {

struct UnitRunner {
  /// Whether units share a device. Asked only where there are units to compute.
  std::function<bool()> on_device;
  /// Computes one unit on so many threads.
  std::function<DriftMeasures(const DriftUnit& unit, int threads)> run;
};

/// run_drift by this runner. A unit that fails beside others on a device is tried again by itself when they are done. Throws
/// Error naming the unit that failed by itself; the parts of the others are kept.
void run_units(const DriftSweep& sweep, const std::string& folder, const DriftOptions& options,
               const UnitRunner& runner);

}  // namespace gdnsim
