// Fit: find the contract of an unknown provider from what it recorded. Stage by stage (conv, recurrent, norm), each
// fed with the recorded inputs of that stage, so that one wrong stage does not hide another; then the whole file is
// replayed as proof.
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
  double seconds = 45;  // processor time, for the search; the replay that proves it comes on top
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

/// A row of a step that a stage's contract does not give although it gives the others: a fault is there, not
/// arithmetic.
struct FitRow {
  std::string stage;
  std::int64_t step = 0;
  int row = 0;
  bool operator==(const FitRow&) const = default;
};

struct FitPath {
  Path path = Path::decode;
  int layer = 0;  // position that was probed
  Contract contract;
  std::vector<std::string> presets;  // presets that reproduce the whole probe, the one taken first
  std::string nearest;               // the preset that differs in the fewest fields
  std::vector<std::string> changes;  // choices other than the nearest preset's, "beta = bf16"
  std::vector<FitStage> stages;
  std::vector<Undecided> undecided;
  std::vector<FitRow> except;    // rows of the probe that differ, when they are few and the others match to the bit
  bool exact() const;            // every recorded stage matches its probe
  bool exact_elsewhere() const;  // the same, or on all rows but `except`
};

/// A layer for which the other layers' contract does not hold, and the contract that its own probe gives.
struct FitLayer {
  FitPath found;
  bool match = false;  // every recorded element of the layer
};

struct FitResult {
  ContractSet contracts;
  std::vector<FitPath> paths;
  ReplayResult proof;            // the whole slice under `contracts`
  std::vector<int> holds;        // when the proof diverged: layers (positions) that match all the same
  std::vector<FitLayer> layers;  // and other contracts for the first few of the rest
  double search_seconds = 0;     // wall time, without the replay that proves it
  bool out_of_time = false;
};

/// The best contract for one layer's steps of one path, first_step .. last_step - 1, and whether it is exact there.
/// Only steps that start from known states are looked at: the first 32 of those. Steps of the other path that lie
/// between are run under `other` where it is given; without it their blocks count as unknown until something recorded
/// them.
FitPath fit_layer(Stream& stream, Recording& recording, Backend& backend, int layer, Path path, std::int64_t first_step,
                  std::int64_t last_step, double seconds, const Contract* other = nullptr);

/// Throws Error when nothing is recorded or no step can be replayed. Of a slice of rows, all rows on their blocks are looked at.
FitResult fit(Stream& stream, Recording& recording, Backend& backend, const FitOptions& options);

}  // namespace gdnsim
