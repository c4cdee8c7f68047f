// Who is examined, and what is common to all batteries of one examination.
#pragma once

#include <memory>
#include <vector>

#include "check/gate.hpp"

namespace gdnsim {

/// The backend, once as it is and once with poisoned outputs (where it has that); with a planted fault in both when one
/// is asked for. `reference` is golden's plain code.
struct Subject {
  explicit Subject(const CheckOptions& options);
  bool has(CheckStage stage) const;
  bool has(Battery battery) const;
  /// True when the backend's plain norm is the very code that it would be compared with.
  bool is_reference_norm() const { return backend->name() == "golden" && options.mutation == nullptr; }
  bool is_reference_step() const {
    return is_reference_norm() && (options.on.cpu_level == "plain" || options.kernel == "plain");
  }
  /// Why a step by itself says nothing of the kernel that is examined; empty where it does.
  std::string not_by_steps() const {
    return options.kernel == "resident" ? "it runs windows of steps; a step by itself is run by fused" : "";
  }
  /// The two sides of battery L2.
  std::string against() const {
    return backend->name() == "golden" ? "plain golden and golden" : "golden and " + backend->name();
  }
  void begin(const std::string& what) const {
    if (options.progress) options.progress(what);
  }

  const CheckOptions& options;
  std::string reason;  // which backend, and why
  std::vector<std::unique_ptr<Backend>> owned;
  Backend *backend = nullptr, *poisoned = nullptr;
  std::unique_ptr<Backend> reference;
};

/// tp1, tp4 or small; throws Error for another name.
Model check_model(const CheckOptions& options);
/// Small ones with a shorter conv and two layers, of which the second runs: heads that divide nothing where the contract
/// is defined for that, and heads of 128, which most kernels have.
std::vector<Model> other_models(const CheckOptions& options);

/// What a gate is called before it has been asked.
struct Question {
  Battery battery;
  std::string name, shape;
  std::span<const CheckStage> stages;  // a gate for each of them that is examined
};
/// Runs what answers it. Where the backend is held to one row of its table, what that refuses becomes skipped gates which
/// say so; any other Error is a finding of the backend's own, and violated gates.
void attempt(const CheckOptions& options, const Question& question, std::vector<Gate>& gates,
             const std::function<void()>& run);
/// Of a step, with a gate for each of its stages.
void attempt(const CheckOptions& options, Battery battery, const std::string& name, const Model& model,
             std::vector<Gate>& gates, const std::function<void()>& run);

/// One launch at a time; what goes on from step to step, with the pool by itself; the norms by themselves; times.
void check_steps(const Subject& subject, std::vector<Gate>& gates);
void check_carried(const Subject& subject, std::vector<Gate>& gates);
void check_pool(const Subject& subject, std::vector<Gate>& gates);
void check_norms(const Subject& subject, std::vector<Gate>& gates);
void check_times(const Subject& subject, std::vector<Gate>& gates);

/// Of 50 runs, which have poisoned outputs, and before which another one passes, so that what is left of it can be seen.
/// Run 1 follows run 0 at once, on the same backend.
inline bool is_poisoned(int repeat) { return repeat / 2 % 2 == 1; }
inline bool follows_another(int repeat) { return repeat % 8 >= 4; }

/// Batch sizes of battery L1 up to `most`.
std::vector<std::int64_t> batch_sizes(std::int64_t most);
/// "1 to 4097 rows": what a gate says of them.
std::string rows_asked(const std::vector<std::int64_t>& sizes);

/// How near words are to exact values: share that are the nearest word, and the largest distance in units of the exact
/// value's last place. Values that are not finite are left out.
struct Accuracy {
  std::uint64_t compared = 0, nearest = 0;
  double worst = 0;
  void add(DType type, std::span<const std::byte> words, std::span<const double> exact);
  double share() const { return compared == 0 ? 0 : static_cast<double>(nearest) / static_cast<double>(compared); }
};
/// The word nearest to x, ties to even; rounded once.
std::uint32_t nearest_word(DType type, double x);

}  // namespace gdnsim
