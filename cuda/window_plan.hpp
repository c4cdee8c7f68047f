// A window of known steps as chains: for each block its visits in order, and what is to be kept after which visit. Plain
// host code; the numbers mean what window.hpp says.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gdnsim/backend.hpp"

namespace gdnsim::cuda {

/// Some consecutive visits of one chain, for the conv: each needs the W-1 columns before it.
struct Segment {
  std::int32_t chain, first, count;  // first: among all visits
};

/// A block's state after its first `visits` visits.
struct Slot {
  std::int32_t chain, visits;
};

struct WindowPlan {
  int steps = 0, rows = 0;              // rows: of a step
  std::vector<std::int32_t> row_block;  // [steps * rows] -1: inactive
  std::vector<std::int32_t> block;      // [chains]
  std::vector<std::int32_t> first;      // [chains + 1] among the visits
  std::vector<std::int32_t> visit;      // [visits] flat rows, chain by chain
  std::vector<Segment> segments;
  std::vector<std::int32_t> look;               // [visits] the slot that keeps the state after this visit, or -1
  std::vector<Slot> slots;                      // each keeps its digest, the first ones their bytes too
  std::vector<std::uint8_t> bytes;              // [slots] 1 where the bytes are kept
  std::size_t with_bytes = 0;                   // how many slots that are
  std::vector<std::vector<std::int32_t>> kept;  // [steps][looks] the look's slot, or -1: as it was before the window

  bool has_inactive() const;
  int longest() const;  // chain, in visits
};

inline constexpr int kSegment = 16;      // visits
inline constexpr int kMaxVisits = 1024;  // of a chain, which shared memory holds: steps of a window

WindowPlan plan_window(std::span<const StepPlan> plans, std::span<const std::vector<Look>> looks);

}  // namespace gdnsim::cuda
