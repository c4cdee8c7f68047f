// Bisect: the first step and layer in which two recordings part, with as little reading and recomputing as the files allow.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gdnsim/backend.hpp"
#include "gdnsim/compare.hpp"
#include "gdnsim/recording.hpp"
#include "gdnsim/replay.hpp"

namespace gdnsim {

/// Where one layer parts first. A layer is judged by its own records alone, so none waits for another.
struct LayerPart {
  int layer = -1;  // position in A
  std::optional<Divergence> first;
};

/// What a log's own step says when it is run again from the nearest checkpoint before it.
struct Recomputed {
  std::string which;                // "A", "B"
  std::int64_t from = 0, to = 0;    // steps that were run
  std::optional<Divergence> first;  // where the log differs from the run; nothing: it agrees
};

struct BisectResult {
  Verdict verdict = Verdict::inconclusive;
  std::string inconclusive_because;
  Slice slice;
  std::vector<LayerPart> layers;
  std::optional<Divergence> first;  // over all layers, in execution order
  std::vector<Recomputed> recomputed;
  std::string how;                    // how the first step was found
  std::uint64_t records_read = 0;     // commit records and digests
  std::uint64_t layer_steps_run = 0;  // steps recomputed, of one layer each
  std::uint64_t layer_steps_all = 0;  // steps times layers of the slice
  std::vector<std::string> notes;
};

struct BisectOptions {
  Slice slice;
  std::function<void(std::int64_t done, std::int64_t total)> progress;
};

/// Two recordings. Logs of the same run (equal headers) are searched by their commit chains, which are cumulative: O(log T)
/// records; other logs by their digests; traces by their snapshots, after which everything before is compared too, since a
/// state can come back. Throws what `diff` throws.
BisectResult bisect(Recording& a, Recording& b, const BisectOptions& options);

/// Runs the layer of the result's first divergence again, from the log's last checkpoint before it, and compares: which of
/// the two is right? At most one checkpoint interval.
Recomputed recompute(Stream& stream, Recording& log, const std::string& which, int layer, std::int64_t step,
                     Backend& backend, const ContractSet& contracts, const Pick& pick = {});

/// One recording against a fresh run: each layer from checkpoint to checkpoint of its own, until it differs.
BisectResult bisect_against_run(Stream& stream, Recording& recording, Backend& backend, const ContractSet& contracts,
                                const BisectOptions& options);

/// The outcome of a user's test of one step, as git-bisect has it.
enum class CheckOutcome : std::uint8_t { good, bad, skip };

/// Finds the first bad step of [first, last), when every step before it is good and every later one bad. `test` is asked at
/// most about log2(last - first) times, more when it skips.
struct CheckResult {
  std::optional<std::int64_t> first_bad;
  std::int64_t last_good = -1;  // -1: none known; steps between the two were skipped
  std::int64_t tested = 0;
};
CheckResult bisect_check(std::int64_t first, std::int64_t last, const std::function<CheckOutcome(std::int64_t)>& test);

}  // namespace gdnsim
