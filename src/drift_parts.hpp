// One unit's measures as a small file of its own, whole or not there. Private to drift.
#pragma once

#include <string>

#include "gdnsim/drift.hpp"

namespace gdnsim {

std::string part_path(const std::string& folder, std::int64_t unit);
void write_part(const DriftSweep& sweep, std::int64_t unit, const DriftMeasures& measures, const std::string& path);
/// Throws Error when it is of another sweep or unit, or damaged.
DriftMeasures read_part(const DriftSweep& sweep, std::int64_t unit, const std::string& path);
/// The same without reading what was measured: its sweep and unit.
void check_part(const DriftSweep& sweep, std::int64_t unit, const std::string& path);

}  // namespace gdnsim
