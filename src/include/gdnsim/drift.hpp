// Drift: how far two carried runs over the same stream part, step by step, over a sweep of streams, pairs and seeds
// (docs/drift.md).
//
//   sweep file -> DriftSweep -> units (cell, seed, layer) -> a part file each -> one result file, the same bytes however the
//   units were spread over threads, processes, machines and interruptions.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gdnsim/backend.hpp"
#include "gdnsim/captured_stream.hpp"
#include "gdnsim/contract.hpp"
#include "gdnsim/recipe.hpp"

namespace gdnsim {

/// One of the two runs of a pair.
struct DriftSide {
  std::string words;                     // as the sweep says it: "golden", "f64", "f64-act"
  std::optional<ContractSet> contracts;  // absent: the oracle
  bool round_activations = false;        // of the oracle ("f64-act")
  std::optional<DType> state;            // absent: the stream's
};

struct DriftPair {
  std::string name;
  DriftSide reference, other;
};

/// What the layers are fed with: a recipe whose seed is the unit's, or what was captured from a trace.
struct DriftStream {
  std::optional<Recipe> recipe;
  std::shared_ptr<const Captured> captured;
  Extend extend = Extend::loop;
};

/// A cell: one value of each axis, and one pair. The pair is the fastest axis.
struct DriftCell {
  std::string name;                 // the labels and the pair, joined by ", "
  std::vector<std::string> labels;  // [axes]
  std::size_t pair = 0;
  std::size_t stream = 0;  // of DriftSweep::streams
  std::vector<std::int32_t> layer_ids;
};

/// One cell, seed and layer: what is computed on its own.
struct DriftUnit {
  std::size_t cell, seed;
  int layer;
};

struct DriftSweep {
  std::string where;  // the file, for messages
  std::string note;   // for people: in the result, but no part of text and digest
  std::vector<std::string> axes;
  std::vector<DriftPair> pairs;
  std::vector<DriftStream> streams;
  std::vector<DriftCell> cells;
  std::vector<std::uint64_t> seeds;
  std::int64_t steps = 0, every = 1;  // states are compared after every `every`th step, and after the last
  std::vector<float> thresholds;      // ascending
  std::string text;                   // canonical JSON: whatever decides a number of the result, and nothing else
  std::string digest;                 // of the text, in hex
  int layers() const;                 // the most that a cell has
  std::vector<DriftUnit> units() const;
  std::vector<std::int32_t> points() const;  // the measured steps
};
/// Throws Error naming the key. Paths in it start from the file's folder.
DriftSweep load_sweep(const std::string& path);
DriftSweep parse_sweep(const std::string& text, const std::string& where, const std::string& folder);
std::unique_ptr<Stream> open_drift_stream(const DriftSweep& sweep, const DriftUnit& unit);

/// What is measured, a number a measured step. `reference` and `other` are the sides of a pair; all rows of a step together.
///   relative       ||other - reference|| / ||reference||, Euclidean; 0 where both are zero
///   max_abs        largest |other - reference|
///   differing      share of elements of other bits, both widened or (the oracle) rounded to f32; outputs in their own type
///   bf16_changed   share of elements whose bits differ once they are rounded to bf16
///   state_norm     ||reference state||
///   decay_lost     share of nonzero state elements that a step left as they were although their head's decay is below 1
///   nonfinite      elements of state and outputs that are not finite on either side: left out of the sums
enum class Curve : std::uint8_t {
  state_relative,
  state_max_abs,
  state_differing,
  state_norm,
  core_relative,
  core_max_abs,
  core_differing,
  core_bf16_changed,
  norm_relative,
  norm_max_abs,
  norm_differing,
  norm_bf16_changed,
  decay_lost_reference,
  decay_lost_other,
  nonfinite
};
inline constexpr std::size_t kCurves = 15;
std::string_view name_of(Curve curve);

/// What came of one unit. Curves are [points]; NaN: not there (no gated norm, no state known before the step).
struct DriftMeasures {
  std::array<std::vector<float>, kCurves> curves;
  std::int64_t first_output_change = -1;  // the first step with a core_out or norm_out of other bits; -1: none
  std::int64_t first_bf16_change = -1;    // the same for their bf16 values
  const std::vector<float>& operator[](Curve curve) const { return curves[static_cast<std::size_t>(curve)]; }
  std::vector<float>& operator[](Curve curve) { return curves[static_cast<std::size_t>(curve)]; }
};

/// How a curve goes on in its second half (drift/growth.cpp).
///   none         zero throughout
///   plateau      level
///   linear       in proportion to the step         value: gain a step
///   power        as a power of the step            value: the exponent
///   exponential  by the same factor a step         value: log of the factor a step
///   undecided    the seeds disagree, or no class fits better than the others
enum class Growth : std::uint8_t { none, plateau, linear, power, exponential, undecided };
std::string_view name_of(Growth growth);
struct GrowthFit {
  Growth kind = Growth::none;
  float level = 0;                         // mean over the second half, all seeds and layers
  float level_error = 0;                   // standard deviation of the curves' own levels
  float exponent = 0, exponent_error = 0;  // of the power fit, whatever the class
  float rate = 0, rate_error = 0;          // of the exponential fit, a step
  float gain = 0, gain_error = 0;          // of the linear fit, a step; error NaN: an older file that has none
};
/// `curves`: one for each seed and layer, [points] each.
GrowthFit fit_growth(const std::vector<std::int32_t>& points, const std::vector<std::vector<float>>& curves);

/// The first point at or above the threshold, as a step; -1: never.
std::int64_t crossing(const std::vector<std::int32_t>& points, const std::vector<float>& curve, float threshold);

struct DriftOptions {
  std::string backend = "golden";  // of the sides that are not the oracle
  // threads: in all; 0 takes what there is. On the CPU units run side by side as far as they go
  BackendOptions backend_options;
  std::int64_t shard = 0, shards = 1;                                   // computes the units u with u % shards == shard
  std::function<void(std::int64_t done, std::int64_t total)> progress;  // units of this shard
};

/// Runs one unit.
DriftMeasures run_unit(const DriftSweep& sweep, const DriftUnit& unit, const DriftOptions& options, int threads);

/// Computes the units of this shard that have no part in `folder` yet and writes their parts; makes the folder. A part of
/// another sweep is refused; one that is not whole cannot be: parts appear whole or not at all.
void run_drift(const DriftSweep& sweep, const std::string& folder, const DriftOptions& options);
/// Numbers of the units without a part in any of the folders, ascending.
std::vector<std::int64_t> missing_units(const DriftSweep& sweep, const std::vector<std::string>& folders);
/// Writes the result from the parts. Throws Error when one is missing, or `path` exists and not `force`.
void write_drift(const DriftSweep& sweep, const std::vector<std::string>& folders, const std::string& path, bool force);
/// Removes the sweep's parts, and the folder when nothing else is in it.
void remove_parts(const DriftSweep& sweep, const std::string& folder);

/// The labels of a cell as a result file has them.
struct DriftCellNames {
  std::string name, pair;
  std::vector<std::string> labels;      // [axes]
  std::vector<std::int32_t> layer_ids;  // shorter than the layers axis where the cell has fewer
};
/// What a unit comes down to. Steps; -1: never.
struct DriftSummary {
  std::int64_t first_output_change = -1, first_bf16_change = -1;
  std::vector<std::int64_t> crossing_state, crossing_output;  // [thresholds]
};

/// An open result.
class DriftResult {
 public:
  virtual ~DriftResult() = default;
  virtual const std::string& path() const = 0;
  virtual const std::string& sweep_text() const = 0;
  virtual const std::string& note() const = 0;  // empty: none, or an older file
  virtual const std::string& digest() const = 0;
  virtual const std::vector<std::string>& axes() const = 0;
  virtual const std::vector<DriftCellNames>& cells() const = 0;
  virtual const std::vector<std::uint64_t>& seeds() const = 0;
  virtual const std::vector<std::int32_t>& points() const = 0;
  virtual const std::vector<float>& thresholds() const = 0;
  virtual std::vector<float> curve(Curve curve, std::size_t cell, std::size_t seed, int layer) = 0;
  virtual DriftSummary summary(std::size_t cell, std::size_t seed, int layer) = 0;
  /// Of state_relative (`output` false), or of norm_relative, in a cell without a norm core_relative.
  virtual GrowthFit growth(std::size_t cell, bool output) = 0;
};
std::unique_ptr<DriftResult> open_drift(const std::string& path);

/// A quantity over the units of a cell.
struct DriftSpread {
  double median = 0, lowest = 0, highest = 0;  // NaN where no unit has it
};
/// What a cell comes down to, over its seeds and layers. The end of a curve is the mean of its last sixteenth.
struct DriftRow {
  DriftSpread state_end, output_end, lost_reference_end, lost_other_end;
  GrowthFit state_growth, output_growth;
  std::int64_t first_output_change = -1, first_bf16_change = -1;  // medians, -1 where half of the units never do
  std::vector<std::int64_t> crossing_state, crossing_output;      // [thresholds], likewise
  std::int64_t nonfinite = 0;                                     // elements, all units and points
};
DriftRow row_of(DriftResult& result, std::size_t cell);

/// One line a cell; as a table for people; and as JSON ("gdnsim.drift-report/1").
std::string drift_csv(DriftResult& result);
std::string drift_table(DriftResult& result);
nlohmann::ordered_json drift_json(DriftResult& result);

/// A page that needs nothing else: curves with bands over seeds, heat maps, a regime map (src/drift/page.html).
std::string drift_html(DriftResult& result);

}  // namespace gdnsim
