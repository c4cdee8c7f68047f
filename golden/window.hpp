// A window of steps of one layer on the vector kernels: stage by stage through all steps, and in the recurrence head by head
// with the head's state at hand.
#pragma once

#include <deque>
#include <map>
#include <memory>

#include "crew.hpp"
#include "decode_step.hpp"
#include "simd.hpp"

namespace gdnsim::golden {

/// One step of a window.
struct WindowItem {
  const StepPlan& plan;
  const StepInputs& inputs;
  const Contract& contract;
  StepOutputs& outputs;
  std::span<const Look> looks;
  std::vector<KeptBlock>* kept;  // one a look; may be null without looks
};

/// Runs windows; keeps its storage from one to the next. The threads' schedule cannot change a bit: every value is computed
/// whole by one thread, and digests are sums modulo 2^64.
class Window {
 public:
  Window(const Model& model, const Kernels& kernels, Crew& crew);

  void run(int layer, const Weights& weights, bool norm, HostPool& pool, std::span<const WindowItem> items);

 private:
  /// Where one step's values lie: in the caller's outputs where they are wanted, else in storage of ours; null when nobody
  /// needs them.
  struct Place {
    const WindowItem* item;
    const Rules* rules;
    std::byte *conv_out, *core_out, *norm_out;
    float *conv_acc, *q, *k, *beta, *g, *decay, *dot_k, *u, *rstd;
  };
  /// A block as somebody wants to see it after a step.
  struct Capture {
    std::vector<KeptBlock*> targets;
    bool bytes = false;
    std::byte* state = nullptr;          // [HV, V, K] when bytes are wanted
    std::byte* conv = nullptr;           // [W-1, dim]
    std::vector<std::uint64_t> digests;  // [HV, slabs]
  };
  struct Touch {
    int step, row;
    int capture;  // -1: none
  };
  /// The steps of the window that touch one block, in order.
  struct Chain {
    std::int32_t block;
    std::vector<Touch> touches;
    std::vector<ConvStep> conv;  // one a touch
  };
  struct Active {
    int step, row;
  };
  struct Scratch {
    Bytes storage;
    std::vector<HeadStep> head;
    float* floats() {
      return reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(storage.data()) + 63) / 64 * 64);
    }
  };

  void begin(int layer, const Weights& weights, bool norm, HostPool& pool, std::span<const WindowItem> items);
  const Rules& rules_of(const WindowItem& item);
  void place(const WindowItem& item, std::size_t step);
  std::byte* place_tap(Place& place, std::size_t step, Tap tap, bool needed);
  void follow_blocks(std::size_t step);
  void attach_look(std::size_t step, const Look& look, KeptBlock& kept);
  void plan_captures();
  void plan_chains();
  void plan_tasks();
  template <class Task>
  void stage(std::int64_t count, const Task& task);

  void conv_task(std::int64_t task);
  void qk_task(std::int64_t task, int thread);
  void head_task(std::int64_t task, int thread);
  void norm_task(std::int64_t task, int thread);
  void capture_task(std::int64_t task);
  HeadStep head_step(const Touch& touch, const Chain& chain, int head, int slab);

  const Model& model_;
  const Kernels& kernels_;
  const std::int64_t conv_chunks_, qk_parts_;
  const std::vector<std::uint64_t> keys_;

  // of the window that is running
  int layer_ = 0;
  const Weights* weights_ = nullptr;
  HostPool* pool_ = nullptr;
  bool norm_ = false;
  bool worth_threads_ = false;
  int rows_ = 0, slabs_ = 0;  // V rows of a task, and such parts in a head
  std::deque<Rules> rules_;
  std::vector<Place> places_;
  std::vector<Chain> chains_;
  std::map<std::int32_t, std::size_t> chain_of_;  // by block
  std::deque<Capture> captures_;
  std::vector<Active> active_;
  std::vector<Active> norms_;  // first (row, head) pair of each group, as step and row * HV + head

  // storage
  std::vector<std::array<Bytes, kTaps>> spare_;  // [steps] values that nobody wanted to see
  std::vector<Bytes> windows_;                   // [captures] conv windows whose digest was enough
  std::vector<Scratch> scratch_;                 // [threads]
  Crew& crew_;
};

}  // namespace gdnsim::golden
