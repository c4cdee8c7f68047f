// How the heads of a tensor are spread over ranks. A tensor is lines of parts, a part is heads of equal size: mixed_qkv is B
// lines of q, k and v. Private to merging and splitting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gdnsim/types.hpp"

namespace gdnsim::ranks {

/// `heads` x `bytes` of one rank's line, one beside the other.
struct Part {
  std::int64_t heads;
  std::size_t bytes;
  std::size_t size() const { return static_cast<std::size_t>(heads) * bytes; }
};
using Parts = std::vector<Part>;

/// q | k | v, each channel of `bytes`.
Parts channels(const Model& rank, std::size_t bytes);
/// Value heads of `bytes` each.
Parts value_heads(const Model& rank, std::size_t bytes);
/// One row of a tap.
Parts of_tap(const Model& rank, Tap tap);

/// All ranks' tensors as one: for each line each part of rank 0, 1, ... one after the other.
Bytes join(const Parts& parts, std::span<const Bytes> ranks);
/// Rank `rank`'s share of a tensor of `ranks` ranks.
Bytes cut(const Parts& parts, const Bytes& whole, std::size_t rank, std::size_t ranks);

}  // namespace gdnsim::ranks
