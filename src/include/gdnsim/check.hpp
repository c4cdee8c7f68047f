// The batteries: does a backend keep its promises? L0, the same bits run after run; L1, the same bits whatever the batch around a
// row; L2, golden's bits; and how near it comes to the equations, and how fast (docs/check.md).
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gdnsim/backend.hpp"
#include "gdnsim/norm.hpp"
#include "gdnsim/repeats.hpp"

namespace gdnsim {

enum class CheckStage : std::uint8_t { conv, recurrent, gated_norm, rmsnorm };
enum class Battery : std::uint8_t { L0, L1, L2, accuracy, time };
inline constexpr CheckStage kCheckStages[] = {CheckStage::conv, CheckStage::recurrent, CheckStage::gated_norm,
                                              CheckStage::rmsnorm};
inline constexpr Battery kBatteries[] = {Battery::L0, Battery::L1, Battery::L2, Battery::accuracy, Battery::time};
std::string_view name_of(CheckStage stage);
std::string_view name_of(Battery battery);

/// The first element that differs, in the order in which the gate compares.
struct Violation {
  std::string between;  // "264 and 265 rows", "repeat 1 and repeat 7"
  Tap tap = Tap::norm_out;
  std::int64_t row = -1;   // of the second launch
  std::int64_t head = -1;  // -1: not divided into heads
  std::int64_t element = -1;
  DType type = DType::f32;
  std::uint32_t want = 0, got = 0;  // raw words: in the first launch, in the second
};

/// One question and its answer.
///   held      everything compared agreed
///   violated  something did not, or a figure missed its bound: `first` or `note` says what
///   empty     nothing was compared: counts as violated
///   measured  figures without a promise
///   skipped   not asked here; `note` says why. Never counts as held
struct Gate {
  enum class Verdict : std::uint8_t { held, violated, empty, measured, skipped };
  CheckStage stage = CheckStage::conv;
  Battery battery = Battery::L0;
  std::string name;            // "batch sizes", "against golden"
  std::string shape;           // "H 16, HV 32, ...", "gated norm of 128 bf16, silu"
  std::uint64_t launches = 0;  // steps or norms that were run for it
  std::uint64_t compared = 0;  // elements
  std::uint64_t differing = 0;
  std::uint64_t max_ulp = 0;
  double max_abs = 0;
  std::optional<double> correctly_rounded;  // share, of accuracy
  std::optional<double> worst_ulp;          // largest distance from the exact value, in units of its last place
  std::optional<double> seconds;            // of one call
  std::optional<double> of_memory;          // least time that the memory allows over `seconds`
  std::optional<Violation> first;
  Verdict verdict = Verdict::empty;
  std::string note;
  std::string kernel;  // the row of the backend's table that was examined; empty: what the backend takes by itself
};
std::string_view name_of(Gate::Verdict verdict);

struct Mutation;

struct CheckOptions {
  std::string backend = "auto";
  BackendOptions on;
  Contract contract;
  std::vector<CheckStage> stages{std::begin(kCheckStages), std::end(kCheckStages)};
  std::vector<Battery> batteries{std::begin(kBatteries), std::end(kBatteries)};
  std::string shape = "tp1";  // tp1, tp4 or small
  DType state = DType::f32;
  bool reduced = false;                // smaller batches: for a CPU
  const Mutation* mutation = nullptr;  // planted into the backend
  /// A row of the backend's table that it is held to; "own": what it takes by itself; "all": that, then the step of every row.
  std::string kernel = "all";
  bool is_held() const { return kernel != "all" && kernel != "own"; }
  std::function<void(const std::string&)> progress;  // hears what is begun
};

struct CheckReport {
  std::string backend, description, shape;  // backend: which and why
  Contract contract;
  bool reduced = false;
  std::vector<Gate> gates;
  std::uint64_t compared() const;
  std::uint64_t count(Gate::Verdict verdict) const;
  /// Like cmp: 0 what was asked held (or was measured, and nothing skipped), 1 something did not, 2 nothing held.
  int exit_code() const;
};

/// Runs the batteries. Throws Error for a backend that cannot be had, an unknown shape or mutation, a contract it refuses.
CheckReport run_check(const CheckOptions& options);
nlohmann::ordered_json to_json(const CheckReport& report);
/// The table, the violations, and the verdict in the last line.
std::string check_text(const CheckReport& report);

/// A fault that can be planted, and the gate that must find it.
struct Mutation {
  std::string_view name;
  std::string_view what;
  CheckStage stage;
  Battery battery;
  std::string_view gate;  // its name has this in it
};
std::span<const Mutation> mutations();
/// One that changes nothing: the control. Not among `mutations`.
const Mutation& no_mutation();
/// Throws Error listing the names.
const Mutation& mutation(std::string_view name);
/// The backend with the fault; `backend` must outlive it.
std::unique_ptr<Backend> make_mutant(Backend& backend, const Mutation& mutation);

/// A planted fault and what the gate named for it said.
struct MutationResult {
  const Mutation* mutation = nullptr;
  std::vector<Gate> gates;    // of that stage, battery and name
  std::vector<Gate> control;  // the same without the fault; none where no gate was violated with it
  /// False where all gates were skipped: then the fault was neither caught nor missed.
  bool asked() const;
  /// A gate is violated with the fault, and not without.
  bool caught() const;
};
/// 0 all that were asked were caught, 1 some were not, 2 none was asked.
int exit_code(const std::vector<MutationResult>& results);
/// Runs for each the battery that must find it. "all", or a name.
std::vector<MutationResult> run_mutations(const CheckOptions& options, const std::string& which);
std::string check_text(const std::vector<MutationResult>& results);
nlohmann::ordered_json to_json(const std::vector<MutationResult>& results);

/// What a recording answers: rows that were given the same, in the same launch (L0) or in another (L1).
struct TraceCheck {
  RepeatCheck repeats;
  std::uint64_t in_other_batches() const { return repeats.repeats - repeats.same_batch; }
  int exit_code() const { return repeats.differing > 0 ? 1 : repeats.compared > 0 ? 0 : 2; }
};
TraceCheck check_trace(Stream& stream, Recording& recording, const Slice& slice);
nlohmann::ordered_json to_json(const TraceCheck& check, const std::string& path);
std::string check_text(const TraceCheck& check, const std::string& path);

// ---- the tables of kernels (golden/levels.cpp, cuda/variants.cpp); defined there ----

/// Those that can run here.
std::vector<std::string> golden_kernels();
/// All of them.
std::vector<std::string> cuda_kernels();
/// The backend held to one; throws Error for an unknown one, and at a step that it refuses.
std::unique_ptr<Backend> make_cuda_kernel(const BackendOptions& options, const std::string& name);

// ---- the equations without a contract, in double precision; defined in golden/ ----

/// out of a norm before it is rounded, [rows, width]. Of the contract it asks one thing: whether the gate comes first, which is
/// another equation (rule N6). The sign of a zero is that of the product.
void exact_norm(const NormArgs& args, std::span<double> out);

/// One row of a step. `conv_out` is what the recurrence is given: raw act words [dim].
struct ExactRow {
  std::span<const std::byte> mixed_qkv, a, b;  // act
  std::span<const std::byte> recurrent, conv;  // the block before the step
  std::span<const std::byte> conv_out;
};
struct ExactOutputs {
  std::vector<double> conv_out, core_out;  // [dim], [HV, V], before rounding
};
ExactOutputs exact_row(const Model& model, const LayerParams& params, const ExactRow& row);

}  // namespace gdnsim
