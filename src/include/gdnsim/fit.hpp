// Fit: find the contract of an unknown provider from what it recorded. Stage by stage (conv, recurrent, norm), each
// fed with the
// recorded inputs of that stage, so that one wrong stage does not hide another; then the whole file is replayed as
// proof.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gdnsim/backend.hpp"
#include "gdnsim/recording.hpp"
#include "gdnsim/replay.hpp"

namespace gdnsim {

struct FitOptions {
  Slice slice;
  double seconds = 45;  // for the search; the replay that proves it comes on top
  std::function<void(const std::string& stage)> progress;
};

/// How the best contract that was found fares on one stage's probe.
struct FitStage {
  std::string name;         // conv, recurrent, norm
  bool recorded = false;    // something of this stage can be compared
  std::string probe;        // what was looked at, in words
  std::int64_t trials = 0;  // contracts tried
  std::uint64_t compared = 0, differing = 0;
  std::uint64_t cost = 0;  // of the differing ones: 1 and the width of the distance in ulps each
};

/// Other values of one field, under which every element of the probe stays the recorded one.
struct Undecided {
  std::string field, chosen;
  std::vector<std::string> others;
  std::string because;  // set when the data hold nothing that the field acts on
};

struct FitPath {
  Path path = Path::decode;
  Contract contract;
  std::vector<std::string> presets;  // presets that reproduce the whole probe, the one taken first
  std::string nearest;               // the preset that differs in the fewest fields
  std::vector<std::string> changes;  // choices other than the nearest preset's, "beta = bf16"
  std::vector<FitStage> stages;
  std::vector<Undecided> undecided;
  bool exact() const;  // every recorded stage matches its probe
};

struct FitResult {
  ContractSet contracts;
  std::vector<FitPath> paths;
  ReplayResult proof;  // the whole slice under `contracts`
  double search_seconds = 0;
  bool out_of_time = false;
};

/// Throws Error when nothing is recorded or no step can be replayed.
FitResult fit(Stream& stream, Recording& recording, Backend& backend, const FitOptions& options);

}  // namespace gdnsim
