// A unit: both sides go through the stream in turn, a chunk of steps at a time; the second one compares.
#include <algorithm>
#include <cmath>
#include <limits>

#include "drift/json.hpp"
#include "drift/side.hpp"
#include "gdnsim/drift.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{48} << 20;  // of the reference's states

/// Steps that one side runs ahead of the other: enough for the simulator's windows, as few as fit a cache.
std::int64_t chunk_steps(const Stream& stream) {
  const std::size_t step = static_cast<std::size_t>(stream.rows()) *
                           static_cast<std::size_t>(stream.model().state_elements()) * sizeof(float);
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(kChunkBytes / step), 16, 64);
}

/// Where the chunks end: about every `each` steps, never within a launch.
std::vector<std::int64_t> chunk_ends(const Stream& stream, std::int64_t each) {
  std::vector<std::int64_t> ends;
  for (std::int64_t last = 0; last < stream.steps(); ends.push_back(last)) {
    last = std::min(last + each, stream.steps());
    while (stream.version() > 1 && last < stream.steps() && stream.plan(last).draft > 0) ++last;
  }
  return ends;
}

std::size_t longest(const std::vector<std::int64_t>& ends) {
  std::int64_t most = 0, before = 0;
  for (std::int64_t end : ends) most = std::max(most, end - before), before = end;
  return static_cast<std::size_t>(most);
}

/// Puts the numbers of one step where they belong.
class Measuring {
 public:
  explicit Measuring(const DriftSweep& sweep, DriftMeasures& out) : sweep_(sweep), out_(out) {
    const std::size_t points = sweep.points().size();
    for (auto& curve : out_.curves) curve.assign(points, std::numeric_limits<float>::quiet_NaN());
  }

  void step(const SideStep& reference, const SideStep& other, DType act) {
    const bool here = measured(sweep_, other.step);
    if (!other.executed) {
      point_ += here;
      return;
    }
    WordSums core, norm;
    add_words(reference.core, other.core, act, core);
    add_words(reference.norm, other.norm, act, norm);
    if (out_.first_output_change < 0 && core.differing + norm.differing > 0) out_.first_output_change = other.step;
    if (out_.first_bf16_change < 0 && core.bf16_changed + norm.bf16_changed > 0) out_.first_bf16_change = other.step;
    if (!here) return;
    std::uint64_t nonfinite = states(reference, other);
    nonfinite += outputs(Curve::core_relative, reference.core_values, other.core_values, core);
    if (norm.pairs > 0) nonfinite += outputs(Curve::norm_relative, reference.norm_values, other.norm_values, norm);
    put(Curve::nonfinite, static_cast<double>(nonfinite));
    if (reference.kept_known) put(Curve::decay_lost_reference, reference.kept.share());
    if (other.kept_known) put(Curve::decay_lost_other, other.kept.share());
    ++point_;
  }

 private:
  void put(Curve curve, double value) { out_[curve][point_] = static_cast<float>(value); }

  std::uint64_t states(const SideStep& reference, const SideStep& other) {
    PairSums sums;
    for (std::size_t row = 0; row < other.states.size(); ++row)
      add_pairs(reference.states[row], other.states[row], sums);
    put(Curve::state_relative, sums.relative());
    put(Curve::state_max_abs, sums.max_abs);
    put(Curve::state_differing, sums.share());
    put(Curve::state_norm, sums.norm());
    return sums.nonfinite;
  }

  /// `first`: the first of the four curves of this output.
  std::uint64_t outputs(Curve first, const Numbers& reference, const Numbers& other, const WordSums& words) {
    PairSums sums;
    add_pairs(reference, other, sums);
    const auto curve = [&](int i) { return static_cast<Curve>(static_cast<int>(first) + i); };
    const double pairs = static_cast<double>(std::max<std::uint64_t>(words.pairs, 1));
    put(curve(0), sums.relative());
    put(curve(1), sums.max_abs);
    put(curve(2), static_cast<double>(words.differing) / pairs);
    put(curve(3), static_cast<double>(words.bf16_changed) / pairs);
    return sums.nonfinite;
  }

  const DriftSweep& sweep_;
  DriftMeasures& out_;
  std::size_t point_ = 0;
};

}  // namespace

DriftMeasures run_unit(const DriftSweep& sweep, const DriftUnit& unit, const DriftOptions& options, int threads) {
  const DriftPair& pair = sweep.pairs[sweep.cells[unit.cell].pair];
  const auto whole = open_drift_stream(sweep, unit);
  const std::vector<std::int64_t> ends = chunk_ends(*whole, chunk_steps(*whole));
  const std::size_t remembers = longest(ends) + 1;  // the last step of the chunk before, too
  RecentInputs stream(*whole, remembers);
  DriftRun reference(sweep, pair.reference, options, stream, unit.layer, threads, remembers);
  DriftRun other(sweep, pair.other, options, stream, unit.layer, threads, 2);
  DriftMeasures measures;
  Measuring measuring(sweep, measures);
  const DType act = whole->model().act_dtype;
  other.observer().on_step(
      [&](const SideStep& step) { measuring.step(reference.observer().at(step.step), step, act); });
  std::int64_t first = 0;
  for (std::int64_t end : ends) {
    reference.run(first, end);
    other.run(first, end);
    first = end;
  }
  return measures;
}

}  // namespace gdnsim
