// Diff: two recordings (traces or logs), nothing recomputed; the first difference in execution order.
#pragma once

#include "gdnsim/replay.hpp"

namespace gdnsim {

struct DiffResult {
  Verdict verdict = Verdict::inconclusive;
  std::string inconclusive_because;
  Comparison found;  // want is A's word, got is B's
  Slice slice;
  std::vector<std::string> notes;  // what was not comparable, contracts that differ, ...
};

/// The layers (positions in A) and steps that both hold, narrowed to what is asked for. What only one of them holds goes to
/// `missing`, a line each. Throws Error when the two cannot be compared at all: other shapes, nothing in common.
Slice common_slice(const Recording& a, const Recording& b, const Slice& asked, std::vector<std::string>& missing);

/// Throws Error when the two cannot be compared at all: other shapes, another batch in a step, nothing in common.
/// Steps or tensors that only one of them has make the verdict inconclusive unless something diverges.
DiffResult diff(Recording& a, Recording& b, const Slice& slice,
                const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace gdnsim
