// One unit's measures as a small file of its own, whole or not there. Private to drift.
#pragma once

#include <string>
#include <vector>

#include "gdnsim/drift.hpp"

namespace gdnsim {

std::string part_path(const std::string& folder, std::int64_t unit);
void write_part(const DriftSweep& sweep, std::int64_t unit, const DriftMeasures& measures, const std::string& path);
/// Throws Error when it is of another sweep or unit, or damaged.
DriftMeasures read_part(const DriftSweep& sweep, std::int64_t unit, const std::string& path);
/// Those of the units that have a part in the folder. Each is read in a child process first: Error names the first that is of
/// another sweep or unit, or damaged, however badly. Not while another thread is inside HDF5.
std::vector<std::int64_t> units_with_parts(const DriftSweep& sweep, const std::vector<std::int64_t>& units,
                                           const std::string& folder);

}  // namespace gdnsim
