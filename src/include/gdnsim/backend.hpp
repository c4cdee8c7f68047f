// A backend runs one layer of one step on a pool. Golden (CPU) and cuda are twins behind this header.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gdnsim/contract.hpp"
#include "gdnsim/digest.hpp"
#include "gdnsim/pool.hpp"
#include "gdnsim/stream.hpp"

namespace gdnsim {

struct NormArgs;
struct NormOutputs;

/// What to run: one layer of one step.
struct StepArgs {
  int layer;
  const StepPlan& plan;
  const StepInputs& inputs;
  const Contract& contract;
};

/// What came out. Ask for taps through `want`; each is filled as [B, ...] raw words of the tap's type (`shape_of`), inactive
/// rows as rule A7 says (+0 where the model leaves them unwritten). `conv_state` and `state` are not taps of a step's outputs:
/// read them from the pool. `rstd` and `norm_out` stay empty for a layer without z, norm weight or eps.
struct StepOutputs {
  TapSet want{Tap::conv_out, Tap::core_out, Tap::norm_out};
  std::array<Bytes, kTaps> taps;
  Bytes& operator[](Tap tap) { return taps[static_cast<std::size_t>(tap)]; }
  const Bytes& operator[](Tap tap) const { return taps[static_cast<std::size_t>(tap)]; }
};

/// A block that somebody will look at after a step: its bytes, or its digest alone.
struct Look {
  std::int32_t block;
  bool bytes;
};

/// Consecutive executed steps of one layer without an event between them: known ahead, a backend can go through them head by
/// head with the head's state at hand.
struct WindowArgs {
  int layer;
  std::span<const StepPlan> plans;           // [steps]
  std::span<const StepInputs> inputs;        // [steps]
  const ContractSet& contracts;              // each step by its path
  std::span<const std::vector<Look>> looks;  // [steps] blocks to keep after the step, each once
};

/// A block as it was after a step.
struct KeptBlock {
  std::int32_t block;
  BlockDigest digest;
  Bytes recurrent, conv;  // empty when the digest was enough
  /// Room for the bytes, in the storage of the window before where there is some; none is held for a digest.
  void make_room(bool bytes, const Model& model);
};

/// One step of a window: its outputs (the caller sets `want`) and the blocks that were to be kept, in the order of the looks.
struct WindowStep {
  StepOutputs outputs;
  std::vector<KeptBlock> kept;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  /// One line on what it runs on: threads, or the device and driver.
  virtual std::string description() const = 0;
  /// Empty when this backend can give the contract's bits here; else one line that says why not.
  virtual std::string refuses(const Contract& contract) const { return (void)contract, std::string(); }
  /// A pool of the kind this backend works on, all blocks zero.
  virtual std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) = 0;
  /// Reads the parameters of these layers once. Call before `step`, again when the stream changes.
  virtual void prepare(const Stream& stream, const std::vector<int>& layers) = 0;
  /// Runs one layer of one step: updates the active rows' blocks in `pool`, fills `outputs`. `pool` came from `make_pool`.
  /// Everything was validated by the stream before; throws Error only for the environment (device lost).
  virtual void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) = 0;
  /// How many steps at once are worth while; 1: `steps` is no faster than `step`.
  virtual int steps_at_once(const Model& model) const { return (void)model, 1; }
  /// The bits of `step` one after another, as this default does it: a step begins with what the one before stored, rounded to
  /// its type; only drafts of a launch hold more (rule A9). `steps` has an entry each; `pool` ends as it is after the last.
  virtual void steps(const WindowArgs& args, Pool& pool, std::span<WindowStep> steps);
  /// Normalises rows (norm.hpp): the decode step's norm, or the decoder's, by itself. Throws Error where the contract does not say
  /// what its bits are, or the backend has none (which is this default).
  virtual void norm(const NormArgs& args, NormOutputs& outputs);
  /// Bytes a second that this device's memory gives a kernel that reads and writes every word once; 0: nobody measured it.
  virtual double memory_rate() { return 0; }
};

/// True when this layer's gated norm can be computed: z, norm weight and eps are all there (rule N1).
bool has_norm(const Stream& stream, int layer);

struct BackendOptions {
  int threads = 0;          // golden: 0 takes what OpenMP gives
  int device = 0;           // cuda: which device
  std::string cpu_level{};  // golden: plain, sse2, avx2 or avx512; empty takes the best that the CPU has
  bool poison =
      false;  // cuda: fills its outputs with ones before every step or norm, and watches what lies behind them
};

/// Factories, defined in golden/ and cuda/ and joined by linking. `make_cuda` throws Error with the reason when it cannot.
std::unique_ptr<Backend> make_golden(const BackendOptions& options);
std::unique_ptr<Backend> make_cuda(const BackendOptions& options);

struct BackendInfo {
  std::string name;
  bool available;
  std::string detail;  // description, or why not
};
/// Every backend known to this build, and why those that cannot run cannot.
std::vector<BackendInfo> list_backends(const BackendOptions& options);

struct ChosenBackend {
  std::unique_ptr<Backend> backend;
  std::string reason;  // "cuda: ...", or "golden, because cuda ..."
};
/// "auto" takes cuda where it can be built and used, else golden with the reason; a named one that cannot run throws Error.
/// What "auto" does with the backend that `cuda` makes: takes it unless making it throws or it refuses a preset.
ChosenBackend choose_auto(const std::function<std::unique_ptr<Backend>()>& cuda, const BackendOptions& options);
ChosenBackend choose_backend(const std::string& name, const BackendOptions& options);

}  // namespace gdnsim
