// The tensor-parallel ranks of one rollout as one trace, and one trace as its ranks.
//
// Rank r of R holds key heads r*H/R .. and value heads r*HV/R ..; value head hv reads key head hv / (HV/H) on a rank as in the
// whole, so nothing is computed otherwise. q, k, v and their conv channels are cut each for itself: a rank's channels are
// q | k | v of its heads, never one stretch of the whole. What belongs to no head (norm_weight, indices, events, plans) is
// the same on every rank.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace gdnsim {

/// Provenance attributes by which a capture names a rank; where every file has them they decide the order of the ranks.
inline constexpr char kRankAttribute[] = "tp_rank", kRanksAttribute[] = "tp_size";

struct RankOptions {
  bool force = false;
  std::function<void(std::int64_t done, std::int64_t total)> progress{};  // steps
};

/// Writes the trace of all heads from those of the ranks, inputs, parameters, events, recorded taps and snapshots. Throws
/// Error where the ranks are not of one rollout: another model, plan, event, snapshot or norm weight, a tap that one of them
/// lacks, a rank given twice or missing.
void merge_ranks(const std::vector<std::string>& ranks, const std::string& path, const RankOptions& options);

/// Writes one trace for each rank; there are as many as paths. Throws Error where H is not a multiple of their number.
void split_ranks(const std::string& trace, const std::vector<std::string>& paths, const RankOptions& options);

}  // namespace gdnsim
