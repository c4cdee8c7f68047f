// --poison and --audit: what `run` and `replay` can watch the pool for.
#pragma once

#include "cli.hpp"
#include "gdnsim/audit.hpp"
#include "gdnsim/poison.hpp"
#include "gdnsim/simulator.hpp"

namespace gdnsim::tools {

struct PoolChecks {
  bool poison = false;
  std::int64_t audit = 0;  // every so many steps; 0: never
  void add_to(CLI::App& command);
  bool any() const { return poison || audit > 0; }
};

/// Runs the steps on a poisoned pool; says what would be read before it was written, and returns true, when there is such a read.
bool reports_poison(const Simulation& simulation, const std::string& file, const OutputOptions& output,
                    const RunSteps& run = simulate);
/// The same for writes that an audit found.
bool reports_strays(const std::vector<StrayWrite>& found, const std::string& file, const OutputOptions& output);
/// Runs the steps for the checks alone; true when one found something and said so.
bool reports_any(const PoolChecks& checks, const Simulation& simulation, const std::string& file,
                 const OutputOptions& output);

}  // namespace gdnsim::tools
