// Replay: run a recorded stream again and find the first divergence, carried (our own state goes on) and local (each step
// starts from the recorded state before it).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gdnsim/backend.hpp"
#include "gdnsim/compare.hpp"
#include "gdnsim/contract.hpp"
#include "gdnsim/recording.hpp"
#include "gdnsim/slice.hpp"
#include "gdnsim/spread.hpp"

namespace gdnsim {

enum class Mode : std::uint8_t { local, carried, both };

/// What one way of comparing found, over all layers.
struct Comparison {
  bool done = false;
  std::string note;  // why it was not done, or why it needed no run of its own
  TapCounts counts{};
  std::vector<CellRow> cells;  // one for each layer, ascending
  std::array<std::optional<Divergence>, kTaps> firsts;
  std::optional<Divergence> first;
  std::uint64_t snapshots = 0;  // blocks compared
  std::uint64_t digests_compared = 0, digests_differing = 0;

  std::uint64_t compared() const;
  std::uint64_t differing() const;
  void add(const LayerComparer& layer);
  /// What was found in other layers, or in other rows of the same; `note` is not taken over.
  void add(const Comparison& other);
};

enum class Verdict : std::uint8_t { match, diverged, inconclusive };
std::string_view name_of(Verdict verdict);

/// How one candidate contract fared on the first steps of one path.
struct Candidate {
  std::string name;
  Path path = Path::decode;
  std::uint64_t compared = 0, differing = 0;
};

struct ContractChoice {
  ContractSet contracts;
  std::string chosen_by;  // one sentence
  std::vector<Candidate> tried;
  std::vector<ContractSet> ties;  // further contracts that the first steps could not tell from the chosen one
};

struct ReplayOptions {
  Slice slice;
  Mode mode = Mode::both;
  std::optional<ContractSet> contracts;  // absent: choose among the presets
  std::string contracts_from;            // how the given contracts were named: "--contract golden", "the log"
  std::function<void(std::int64_t done, std::int64_t total)> progress;
  Spread* spread = nullptr;  // its ranks share the layers and rows, and all get the whole result
};

struct ReplayResult {
  Verdict verdict = Verdict::inconclusive;
  std::string inconclusive_because;
  ContractChoice contract;
  Comparison carried, local;
  Slice slice;                    // as resolved
  std::int64_t opaque_steps = 0;  // steps that cannot be replayed (path 2)
  std::vector<std::string> notes;

  /// The first divergence in execution order, carried first: up to the first snapshot both runs are the same.
  const std::optional<Divergence>& first() const { return carried.done ? carried.first : local.first; }
};

/// Replays `stream` against what `recording` holds. Throws Error for what makes a comparison impossible (nothing recorded, a
/// tap that other layers have, inputs of a recorded tap missing).
ReplayResult replay(Stream& stream, Recording& recording, Backend& backend, const ReplayOptions& options);

/// Tries the presets on the first steps of each path on the slice's first layer (replay's --contract auto).
ContractChoice choose_contract(Stream& stream, Recording& recording, Backend& backend, const Slice& slice);

}  // namespace gdnsim
