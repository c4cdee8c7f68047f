// Record: run a stream and write it as a trace together with what came out, so that it can be replayed anywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gdnsim/backend.hpp"
#include "gdnsim/contract.hpp"
#include "gdnsim/recipe.hpp"
#include "gdnsim/simulator.hpp"
#include "gdnsim/stream.hpp"

namespace gdnsim {

struct RecordOptions {
  TapSet taps{Tap::conv_out, Tap::core_out, Tap::norm_out};  // norm taps only where every layer has a norm
  std::int64_t snapshot_every = 0;  // states of all blocks after every Nth step and the last; 0: after the last
  bool force = false;
  std::vector<Fault> faults;  // what the run does wrong while the stream says what is right
  std::vector<std::pair<std::string, std::string>> provenance;
  std::function<void(std::int64_t done, std::int64_t total)> progress;
};

/// Writes `path`: the stream, and what `backend` makes of it under `contracts`. Throws what create_trace and the backend throw.
void record_trace(Stream& stream, Backend& backend, const ContractSet& contracts, const std::string& path,
                  const RecordOptions& options);

/// `simulate` as an engine with these faults does it; the observer is shown the events and plans that were meant. From step 0.
void simulate_with_faults(const Simulation& simulation, const std::vector<Fault>& faults, Pool& pool,
                          Observer& observer);

}  // namespace gdnsim
