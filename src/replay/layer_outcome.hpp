// What the runs of one layer, or of some of its rows, gave, and how the processes of a spread tell each other.
#pragma once

#include <string>
#include <vector>

#include "gdnsim/replay.hpp"
#include "gdnsim/spread.hpp"
#include "replay/replay_run.hpp"

namespace gdnsim {

struct LayerOutcome {
  Comparison carried, local;
  bool reran = false;                             // the local comparison needed a run of its own
  std::vector<PoolSum> carried_pool, local_pool;  // of some rows of a log
};

/// Bytes for a process of the same build. `unpacked` throws Error when they are not whole.
std::string packed(const std::vector<LayerOutcome>& outcomes);
std::vector<LayerOutcome> unpacked(const std::string& bytes);

/// Entry i was found by the rank that takes piece i; afterwards every rank has all of them.
void share(Spread& spread, std::vector<LayerOutcome>& outcomes);

}  // namespace gdnsim
