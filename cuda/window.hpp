// A window of known steps as the resident kernels see it (replay_resident.cu, window_prepare.cu). Its steps' rows lie one
// behind another: row b of step t is flat row t * B + b. A chain is one block's visits, the flat rows that use it, in order.
#pragma once

#include <cstdint>

#include "device.hpp"
#include "gdnsim/error.hpp"
#include "kernels.hpp"
#include "window_plan.hpp"

namespace gdnsim::cuda {

struct WindowView {
  StepView step;  // rows: all flat rows; in and out are flat too; in.block[flat row] is -1 for an inactive one
  bool golden;
  int chains, segments, slots;
  int longest;                // chain, in visits: at most kMaxVisits
  const std::uint8_t* mixed;  // [flat rows] runs under triton-sm90-mixed
  const std::int32_t* block;  // [chains] of the pool
  const std::int32_t* first;  // [chains + 1] among the visits
  const std::int32_t* visit;  // [visits] flat rows
  const Segment* segment;     // [segments]
  const std::int32_t* look;   // [visits] the slot that keeps the state after this visit, or -1
  const Slot* slot;           // [slots]
  const std::uint8_t* bytes;  // [slots] keep the bytes beside the digest
  void* kept;                 // state [slots, HV, V, K]; nullptr when no slot has bytes, as the next
  void* kept_conv;            // conv [slots, W-1, dim]
  unsigned long long* heads;  // [slots, HV] digests of the heads, zeros before
  unsigned long long* convs;  // [slots] digests of the windows, zeros before
};

// One launch or a few each, in this order.

/// conv_out, q, k, beta, g and decay of every flat row; the pool's windows are read, not changed.
void launch_window_prepare(const WindowView& window);
/// core_out of every flat row; the pool's states are stepped from the first visit to the last, and kept on the way.
/// `rows_each`: rows of the state in one thread: 1 or 4; 0 chooses.
void launch_window_resident(const WindowView& window, int multiprocessors, int rows_each = 0);
/// The windows that are to be kept.
void launch_window_looks(const WindowView& window);
/// The pool's windows as they are after the last visit.
void launch_window_roll(const WindowView& window);

}  // namespace gdnsim::cuda
