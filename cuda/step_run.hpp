// Runs one step of one layer on the device: its inputs in by one copy, the kernels, the taps asked for out. What repeats is
// recorded once and put into the queue in one call.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "gdnsim/backend.hpp"
#include "host_copies.hpp"
#include "kernels.hpp"
#include "queue.hpp"

namespace gdnsim::cuda {

/// One layer of a step, without its rows' contents: what a recording is good for again.
struct StepJob {
  const Model& model;
  const Contract& contract;
  ParamPointers params;
  PoolPointers pool;
  bool norm;
  TapSet want;
  std::int64_t rows;
  HeldState held{};
};

/// Does a store round the state? Then a launch of several drafts goes on from what was held, not from what was stored.
bool store_rounds(const Model& model, const Contract& contract);

/// Keeps its memory and its recordings from one step to the next.
class StepRun {
 public:
  /// `held_to`: a variant's name, or empty for the fastest that can run each step. With `poison`, outputs are filled beforehand
  /// and what lies beyond them is watched.
  StepRun(const DeviceInfo& device, std::string_view held_to, bool poison);

  /// What was recorded is for another stream.
  void forget() { recorded_.clear(); }
  void run(const StepJob& job, const std::vector<std::int32_t>& block, const StepInputs& inputs, StepOutputs& outputs);

  /// For measurements: the inputs to the device, then the kernels from the conv to the recurrence, or the norm, as often as one
  /// likes, in a queue of one's own.
  void stage(const StepJob& job, const std::vector<std::int32_t>& block, const StepInputs& inputs);
  void send();
  void launch_step(const StepJob& job, cudaStream_t stream);
  void launch_norm(const StepJob& job, cudaStream_t stream);

 private:
  /// How one step is run.
  struct Choice {
    bool fused = false, fast_norm = false;
  };
  /// A step that was run, and from its second time on what it put into the queue.
  struct Recorded {
    Contract contract;
    PoolPointers pool;
    ParamPointers params;
    bool norm;
    TapSet want;
    std::int64_t rows;
    HeldState held;
    Graph graph;
    bool is(const StepJob& job) const;
  };
  enum Input { kBlock, kMixedQkv, kA, kB, kZ, kInputs };

  void lay_out(const StepJob& job);
  void put(Input input, std::span<const std::byte> bytes);
  Choice choose(const StepJob& job) const;
  StepView view(const StepJob& job, const Choice& choice, cudaStream_t stream) const;
  void fuse(const StepView& view, const Contract& contract);
  void launch_stages(const StepView& view, const Contract& contract, const Choice& choice);
  void enqueue(const StepJob& job);
  void enqueue_recorded(const StepJob& job);
  void check_guards(const StepJob& job);
  void fetch(const StepJob& job);
  void take_outputs(const StepJob& job, StepOutputs& outputs);
  void require_none(const std::string& why) const;
  std::size_t tap_bytes(const StepJob& job, std::size_t tap) const;
  bool is_there(const StepJob& job, std::size_t tap) const;

  const DeviceInfo device_;
  const std::string held_to_;
  const bool poison_;
  Queue queue_;
  HostBuffer host_in_, host_taps_;
  HostCopies copies_;
  Buffer in_, taps_, arrived_;  // arrived_: the fused kernel's counters, zeros between steps
  std::array<std::size_t, kInputs> in_at_{}, in_bytes_{};
  std::array<std::size_t, kTaps> tap_at_{};
  std::size_t in_all_ = 0, taps_all_ = 0, arrived_bytes_ = 0;
  std::vector<Recorded> recorded_;
};

}  // namespace gdnsim::cuda
