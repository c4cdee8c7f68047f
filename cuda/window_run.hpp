// Runs a window of known steps of one layer on the device: flat copies of its inputs in, the resident kernels, outputs and
// kept blocks out. What it needs at a time lies in one piece of device memory, of a size that is known before.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "device_pool.hpp"
#include "gdnsim/backend.hpp"
#include "host_copies.hpp"
#include "queue.hpp"
#include "window.hpp"

namespace gdnsim::cuda {

/// One layer of a window, known to be what the resident kernels run.
struct WindowJob {
  const Model& model;
  const WindowArgs& args;
  ParamPointers params;
  bool norm;
  int multiprocessors;
};

/// Why the resident kernels cannot run this window, or empty. `want`: of all its steps together.
std::string window_refuses(const Model& model, const WindowArgs& args, TapSet want);

/// Keeps its memory from one window to the next.
class WindowRun {
 public:
  /// `limit`: bytes of device memory that it may take; 0: what the device has free.
  explicit WindowRun(std::size_t limit) : limit_(limit) {}
  /// Fills the outputs and kept blocks of `steps`, one for each of the job's; the pool ends as after the last.
  void run(const WindowJob& job, DevicePool& pool, std::span<WindowStep> steps);
  /// How many of the job's steps, from the first on, the memory is enough for: at least one, and no more than `most`.
  std::size_t steps_that_fit(const WindowJob& job, std::size_t most) const;

  /// For measurements: everything on the device, then the kernels without the norm, as often as one likes.
  WindowView stage(const WindowJob& job, const WindowPlan& plan, const DevicePool& pool);
  void launch(const WindowJob& job, const WindowView& view, cudaStream_t stream);
  void wait() { queue_.wait(); }

 private:
  /// Offsets in the device's memory. The inputs come first; the host's copy of them has the same.
  struct Places {
    std::size_t row_block, mixed, block, first, visit, segment, look, slot, bytes;  // the plan
    std::size_t mixed_qkv, a, b, z, inputs_end;                                     // flat
    std::array<std::size_t, kTaps> taps;                                            // outputs; q, k and gates
    std::size_t heads, convs, kept, kept_conv, all;                                 // looks
  };
  void lay_out(const WindowJob& job, const WindowPlan& plan);
  void send_plan(const WindowJob& job, const WindowPlan& plan);
  void send_flat(const WindowJob& job, std::size_t at, Bytes StepInputs::*member);
  void put(std::size_t at, std::span<const std::byte> bytes);
  WindowView view(const WindowJob& job, const WindowPlan& plan, const DevicePool& pool) const;
  void launch_norm(const WindowJob& job, const WindowView& view);
  void fetch(const WindowJob& job, const WindowPlan& plan, std::span<const WindowStep> steps);
  void take_tap(const WindowJob& job, Tap tap, std::span<WindowStep> steps);
  void take_kept(const WindowJob& job, const WindowPlan& plan, std::span<WindowStep> steps);

  std::byte* at(std::size_t place) const { return device_.data() + place; }

  const std::size_t limit_;
  Queue queue_;
  Buffer device_;
  HostBuffer host_in_, host_out_;
  HostCopies copies_;
  std::size_t held_ = 0;  // of the device's memory
  Places places_{};
  std::array<std::size_t, kTaps> out_at_{};  // in host_out_
  std::size_t looks_at_ = 0;                 // likewise: the digests, behind them the kept blocks
  std::array<Mark, kTaps> tap_there_;
  Mark looks_there_;
};

}  // namespace gdnsim::cuda
