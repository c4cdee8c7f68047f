// Explain: why a recording differs from its replay. Hypotheses - contract choices and faults alike - are re-run on the smallest
// slice; those that give the recorded bits are reported, with their scope. Nothing here knows a tolerance.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gdnsim/mechanism.hpp"
#include "gdnsim/replay.hpp"

namespace gdnsim {

struct ExplainOptions {
  Slice slice;
  std::optional<ContractSet>
      contracts;  // what the provider is held to; absent: the preset nearest to the recorded bits
  std::string contracts_from;
  double seconds = 120;  // for the search; the replays come on top
  std::function<void(const std::string& stage)> progress;
};

struct Explanation {
  ReplayResult replay;                // under the contract that the provider is held to
  std::vector<Mechanism> mechanisms;  // in execution order of their scopes; `unexplained` last
  std::vector<std::string> tried;     // what was re-run: "wrong-block: 12 re-runs, none gives the recorded bits"
  bool complete = false;              // with all mechanisms together every recorded bit is reproduced
};

/// Where the recording repeats a step the repeats must agree; when they do not: `not-repeatable`, said before any comparison.
/// Not of rows in different launches when a replay has `reproduced` every bit: then a rule depends on the batch, like N4.
std::optional<Mechanism> not_repeatable(Stream& stream, Recording& recording, const Slice& slice, bool reproduced);

/// Throws what `replay` throws.
Explanation explain(Stream& stream, Recording& recording, Backend& backend, const ExplainOptions& options);

}  // namespace gdnsim
