// Pack: a slice of a recording as a trace of its own, small enough to send: inputs, parameters, the states it starts from, and
// what was recorded. Any machine replays it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gdnsim/backend.hpp"
#include "gdnsim/recording.hpp"
#include "gdnsim/replay.hpp"

namespace gdnsim {

/// Of a bundle's provenance: the contract it was packed under, in its text form. Replay takes it unless told otherwise.
inline constexpr const char* kBundleContract = "bundle_contract";

struct PackOptions {
  Slice slice;            // resolved; of picked rows, all that are on their blocks are packed
  ContractSet contracts;  // the states that the slice starts from are those of a run under these
  bool force = false;
  std::vector<std::pair<std::string, std::string>> provenance;
};

/// The steps that show a divergence: from one before that in which the block was last recorded (at most 16 back) to its own.
Slice slice_of(const Divergence& divergence);

/// Writes `path`. Steps and layers count from 0 in the bundle; the model's own layer numbers stay. Throws what create_trace and
/// the backend throw.
void pack(Stream& stream, Recording& recording, Backend& backend, const std::string& path, const PackOptions& options);

}  // namespace gdnsim
