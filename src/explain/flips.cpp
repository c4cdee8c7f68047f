// Hypotheses about memory: one bit of the recurrent state that flipped before one of the block's steps read it.
#include <algorithm>
#include <cmath>
#include <optional>

#include "explain/words.hpp"
#include "gdnsim/compare.hpp"

namespace gdnsim::explaining {
namespace {

constexpr std::size_t kRows = 8;  // steps of the block that are looked at, the latest ones

/// How a change of one state word before a step grows until the first wrong unit. The recurrence is linear in the state, so
/// this tells in double precision which of thousands of flips are worth a re-run; the re-run decides.
class Propagation {
 public:
  /// One run from the scene's start: what each of the rows reads and computes.
  Propagation(const Scene& scene, const std::vector<RowStep>& rows, std::int64_t head) : scene_(scene), head_(head) {
    Twist see;
    see.before = [&](StepEdit& edit) {
      for (const RowStep& place : rows)
        if (place.step == edit.plan.step)
          states_.push_back(read_words(edit.pool, edit.layer, scene.at.block).recurrent);
    };
    scene.trials.watch({see}, scene.from, rows.back().step + 1, [&](const StepView& view) {
      for (const RowStep& place : rows)
        if (place.step == view.step) steps_.push_back(read(view.outputs, place.row));
    });
  }

  /// The block's recurrent state as row i reads it.
  const Bytes& state_before(std::size_t i) const { return states_[i]; }

  /// d: change of the state row [K] before step `first` (an index of rows); returns the change of the output, d that after it.
  double run(std::size_t first, std::vector<double>& d) const {
    double out = 0;
    for (std::size_t i = first; i < steps_.size(); ++i) {
      const Step& s = steps_[i];
      double dot = 0;
      for (std::size_t k = 0; k < d.size(); ++k) d[k] *= s.decay, dot += d[k] * s.k[k];
      out = 0;
      for (std::size_t k = 0; k < d.size(); ++k) d[k] -= dot * s.beta * s.k[k], out += d[k] * s.q[k];
    }
    return out;
  }

 private:
  struct Step {
    std::vector<double> q, k;
    double decay, beta;
  };
  Step read(const StepOutputs& outputs, int row) const {
    const Model& model = scene_.model();
    const std::int64_t grouped = head_ / (model.HV / model.H);
    const std::size_t K = static_cast<std::size_t>(model.K),
                      keys = (static_cast<std::size_t>(row) * static_cast<std::size_t>(model.H) +
                              static_cast<std::size_t>(grouped)) *
                             K;
    const std::size_t value =
        static_cast<std::size_t>(row) * static_cast<std::size_t>(model.HV) + static_cast<std::size_t>(head_);
    const auto at = [&](Tap tap, std::size_t i) { return value_of(DType::f32, word_at(DType::f32, outputs[tap], i)); };
    Step step{{}, {}, at(Tap::decay, value), at(Tap::beta, value)};
    for (std::size_t k = 0; k < K; ++k) step.q.push_back(at(Tap::q, keys + k)), step.k.push_back(at(Tap::k, keys + k));
    return step;
  }

  const Scene& scene_;
  const std::int64_t head_;
  std::vector<Step> steps_;    // [rows]
  std::vector<Bytes> states_;  // [rows]
};

struct StateRow {
  std::int64_t head = -1, v = -1;
};
/// The one row of the state in which everything wrong lies, if it is one.
std::optional<StateRow> one_state_row(const Scene& scene, const std::vector<WrongWord>& words) {
  const Model& model = scene.model();
  const std::int64_t per_row = scene.at.tap == Tap::state ? model.K : 1;
  std::optional<StateRow> row;
  for (const WrongWord& word : words) {
    const std::int64_t flat = word.element / per_row;
    const StateRow here{flat / model.V, flat % model.V};
    if (row && (row->head != here.head || row->v != here.v)) return std::nullopt;
    row = here;
  }
  return row;
}

/// Does the predicted change look like the observed one? Generous: a re-run decides.
bool plausible(const Scene& scene, const std::vector<WrongWord>& words, const std::vector<double>& d, double out) {
  const DType type = shape_of(scene.at.tap, scene.model()).type;
  const auto close = [&](double predicted, const WrongWord& word) {
    const double got = value_of(type, word.got), want = value_of(type, word.want);
    if (!std::isfinite(predicted) || !std::isfinite(want)) return !std::isfinite(predicted) && !std::isfinite(want);
    const double ulp = std::max(std::fabs(got), std::fabs(want)) * (type == DType::f32    ? 0x1p-20
                                                                    : type == DType::bf16 ? 0x1p-7
                                                                                          : 0x1p-10);
    return std::fabs(predicted - (want - got)) <= 2 * ulp + 1e-2 * std::fabs(want - got);
  };
  if (scene.at.tap != Tap::state) return close(out, words.front());
  const auto largest = std::ranges::max_element(
      words, {}, [&](const WrongWord& w) { return std::fabs(value_of(type, w.want) - value_of(type, w.got)); });
  return close(d[static_cast<std::size_t>(largest->element % scene.model().K)], *largest);
}

/// Flips of one word before row i that would look like what was recorded.
void flips_of_word(const Scene& scene, const Propagation& propagation, const std::vector<WrongWord>& words,
                   const std::vector<RowStep>& rows, std::size_t i, std::int64_t element, Hypotheses& out) {
  const Model& model = scene.model();
  const DType type = model.state_dtype;
  const std::uint32_t word = word_at(type, propagation.state_before(i), static_cast<std::size_t>(element));
  const std::int32_t block = scene.at.block;
  const std::int64_t step = rows[i].step, since = i > 0 ? rows[i - 1].step : scene.anchor;
  for (int bit = 0; bit < bits_in(type); ++bit) {
    std::vector<double> d(static_cast<std::size_t>(model.K));
    d[static_cast<std::size_t>(element % model.K)] = value_of(type, word ^ (1u << bit)) - value_of(type, word);
    const double change = propagation.run(i, d);
    if (!plausible(scene, words, d, change)) continue;
    propose_corruption(out, {since, step, scene.bench.layer, -1, block, element / (1LL * model.V * model.K)},
                       "recurrent state of block " + std::to_string(block) + ": " +
                           element_text(model, Tap::state, element) + ", bit " + std::to_string(bit) +
                           " changed before step " + std::to_string(step) + " read it",
                       flipped_bit(step, block, Part::recurrent, element, bit));
    out.back().more = [&scene, block, step] { return last_writer_of(scene, block, step, false); };
  }
}

}  // namespace

void propose_flips(const Scene& scene, Hypotheses& out) {
  const Tap tap = scene.at.tap;
  const auto words = first_wrong_words(scene);
  if ((tap != Tap::core_out && tap != Tap::state) || scene.at.block < 0 || words.empty()) return;
  const auto place = one_state_row(scene, words);
  auto rows = rows_of_block(scene, scene.at.block, scene.anchor, scene.at.step);
  if (!place || rows.empty() || (tap == Tap::core_out && rows.front().step != scene.at.step)) return;
  if (rows.size() > kRows) rows.resize(kRows);
  std::ranges::reverse(rows);
  const Propagation propagation(scene, rows, place->head);
  const Model& model = scene.model();
  const std::int64_t first = (place->head * model.V + place->v) * model.K;
  for (std::size_t i = rows.size(); i-- > 0;)
    for (std::int64_t k = 0; k < model.K; ++k) flips_of_word(scene, propagation, words, rows, i, first + k, out);
}

}  // namespace gdnsim::explaining
