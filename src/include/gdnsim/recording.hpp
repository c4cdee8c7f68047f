// What a run produced, as something to compare with: a trace's recorded taps, or a log.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gdnsim/stream.hpp"
#include "gdnsim/types.hpp"

namespace gdnsim {

/// A state snapshot taken after `step`: one block of one layer.
struct Snapshot {
  std::int64_t step = 0;
  int layer = 0;
  std::int32_t block = 0;
  std::int64_t at = 0;  // where it lies in the file; opaque to callers
};

/// Recorded outputs and states. Sorted snapshots, step first, then layer, then file order. Throws Error on bad data.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual std::string path() const = 0;
  virtual const Model& model() const = 0;
  virtual std::int64_t steps() const = 0;  // complete steps: first_step() .. first_step() + steps() - 1
  virtual std::int64_t first_step() const { return 0; }
  /// Layer positions that were recorded, ascending; every layer unless a log holds a part.
  virtual std::vector<int> layers() const;
  virtual int rows() const = 0;
  virtual StepPlan plan(std::int64_t step) const = 0;
  /// Taps recorded for a layer; never `state` or `conv_state` (those are snapshots).
  virtual TapSet taps(int layer) const = 0;
  /// One tap of one step and layer: [B, ...] raw words.
  virtual void read_tap(Tap tap, std::int64_t step, int layer, Bytes& out) = 0;
  /// The same, and only these rows (ascending) are read: what stands in the others says nothing.
  virtual void read_tap_rows(Tap tap, std::int64_t step, int layer, std::span<const int> rows, Bytes& out);
  virtual std::span<const Snapshot> snapshots() const = 0;
  /// recurrent [HV, V, K] and conv [W-1, dim], raw.
  virtual void read_snapshot(const Snapshot& snapshot, Bytes& recurrent, Bytes& conv) = 0;
};

}  // namespace gdnsim
