// Runs a window of known steps of one layer on the device: flat copies of its inputs in, the resident kernels, outputs and
// kept blocks out.
#pragma once

#include <array>
#include <span>

#include "device_pool.hpp"
#include "gdnsim/backend.hpp"
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

/// Keeps its device memory from one window to the next.
class WindowRun {
 public:
  /// Fills the outputs and kept blocks of `steps`, one for each of the job's; the pool ends as after the last.
  void run(const WindowJob& job, DevicePool& pool, std::span<WindowStep> steps);

 private:
  void upload(const WindowJob& job, const WindowPlan& plan);
  void upload_flat(Buffer& to, std::span<const StepInputs> inputs, Bytes StepInputs::*member);
  void prepare_outputs(const WindowJob& job, const WindowPlan& plan);
  WindowView view(const WindowJob& job, const WindowPlan& plan, const DevicePool& pool);
  void launch(const WindowJob& job, const WindowView& view);
  void download(const WindowJob& job, const WindowPlan& plan, std::span<WindowStep> steps);
  void download_kept(const WindowJob& job, const WindowPlan& plan, std::span<WindowStep> steps);

  Buffer row_block_, mixed_, block_, first_, visit_, segment_, look_, slot_, bytes_;  // the plan
  Buffer mixed_qkv_, a_, b_, z_;                                                      // inputs, flat
  std::array<Buffer, kTaps> taps_;                                                    // outputs and q, k, gates
  Buffer kept_, kept_conv_, heads_, convs_;                                           // looks
};

}  // namespace gdnsim::cuda
