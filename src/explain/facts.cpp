#include "explain/facts.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

#include "explain/rows.hpp"
#include "gdnsim/arith.hpp"
#include "gdnsim/compare.hpp"
#include "gdnsim/explain.hpp"
#include "gdnsim/repeats.hpp"
#include "gdnsim/report.hpp"

namespace gdnsim::explaining {
namespace {

std::string place_text(const RepeatPlace& place) {
  return "row " + std::to_string(place.row) + " of step " + std::to_string(place.step) + " (block " +
         std::to_string(place.block) + ")";
}

bool is_nan(DType type, std::uint32_t word) { return std::isnan(value_of(type, word)); }

/// The first NaN of a run of words, or -1.
std::int64_t first_nan(DType type, std::span<const std::byte> words) {
  for (std::size_t i = 0; i < words.size() / size_of(type); ++i)
    if (is_nan(type, word_at(type, words, i))) return static_cast<std::int64_t>(i);
  return -1;
}

bool records_nan(const Bench& bench, Tap tap, std::int64_t step, Bytes& words) {
  const StepPlan plan = bench.stream.plan(step);
  const TapShape shape = shape_of(tap, bench.stream.model());
  if (!read_picked(bench.recording, bench.pick, plan, tap, bench.layer, words)) return false;
  return std::ranges::any_of(bench.pick.rows_of(plan), [&](int row) {
    const std::size_t at = static_cast<std::size_t>(row) * shape.bytes();
    return first_nan(shape.type, std::span(words).subspan(at, shape.bytes())) >= 0;
  });
}

bool records_nan(const Bench& bench) {
  const Model& model = bench.stream.model();
  const TapSet taps = bench.recording.taps(bench.layer);
  Bytes words, conv;
  for (std::int64_t step = bench.first_step; step < bench.last_step; ++step)
    for (std::size_t i = 0; i < kTaps; ++i)
      if (const Tap tap = static_cast<Tap>(i); taps.has(tap) && records_nan(bench, tap, step, words)) return true;
  for (const Snapshot& snapshot : bench.recording.snapshots()) {
    if (snapshot.layer != bench.layer || !bench.pick.state(bench.stream.plan(snapshot.step), snapshot.block)) continue;
    bench.recording.read_snapshot(snapshot, words, conv);
    if (first_nan(model.state_dtype, words) >= 0 || first_nan(model.conv_state_dtype, conv) >= 0) return true;
  }
  return false;
}

std::span<const std::byte> row_of(const Bytes& words, std::size_t bytes, int row) {
  return std::span(words).subspan(static_cast<std::size_t>(row) * bytes, bytes);
}

struct BornNaN {
  std::int64_t step = -1, head = -1, element = -1, state_step = -1, out_step = -1;
  int row = -1;
  Tap tap = Tap::conv_acc;
  std::string inputs;
  std::uint64_t spread = 0;  // NaN outputs of the layer from then on
};

/// Looks at every tap of every row of a run for the first NaN that was not read.
class NaNWatch {
 public:
  NaNWatch(const Bench& bench, const std::set<std::int32_t>& poisoned) : bench_(bench), poisoned_(poisoned) {}

  void look(const StepView& view) {
    for (int row = 0; row < view.plan.rows(); ++row) {
      const std::int32_t block = view.plan.block[static_cast<std::size_t>(row)];
      if (block < 0 || !bench_.pick.row(view.plan, row)) continue;
      for (std::size_t i = 0; i < kTaps; ++i) look_at(view, row, static_cast<Tap>(i));
      const Words after = read_words(view.pool, view.layer, block);
      if (found_.step >= 0 && found_.state_step < 0 &&
          first_nan(bench_.stream.model().state_dtype, after.recurrent) >= 0)
        found_.state_step = view.step;
    }
  }
  const BornNaN& found() const { return found_; }

 private:
  void look_at(const StepView& view, int row, Tap tap) {
    if (view.outputs[tap].empty()) return;
    const TapShape shape = shape_of(tap, bench_.stream.model());
    const auto words = row_of(view.outputs[tap], shape.bytes(), row);
    const std::int64_t at = first_nan(shape.type, words);
    if (at < 0) return;
    if (tap == Tap::core_out) {
      if (found_.out_step < 0) found_.out_step = view.step;
      for (std::int64_t i = 0; i < shape.elements(); ++i)
        found_.spread += is_nan(shape.type, word_at(shape.type, words, static_cast<std::size_t>(i)));
    }
    if (found_.step >= 0 || reads_nan(view, row)) return;
    found_.step = view.step, found_.row = row, found_.tap = tap;
    found_.head = tap <= Tap::conv_state ? -1 : at / shape.per_head;
    found_.element = at % shape.per_head;
    found_.inputs = inputs_of(view, row, found_.head);
  }

  /// x, a, b, z, or a state that was NaN before the replay computed anything with it.
  bool reads_nan(const StepView& view, int row) const {
    const Model& model = bench_.stream.model();
    const auto nan_in = [&](const Bytes& words, std::int64_t per_row) {
      const std::size_t bytes = static_cast<std::size_t>(per_row) * size_of(model.act_dtype);
      return !words.empty() && first_nan(model.act_dtype, row_of(words, bytes, row)) >= 0;
    };
    return poisoned_.contains(view.plan.block[static_cast<std::size_t>(row)]) ||
           nan_in(view.inputs.mixed_qkv, model.dim()) || nan_in(view.inputs.a, model.HV) ||
           nan_in(view.inputs.b, model.HV);
  }

  std::string inputs_of(const StepView& view, int row, std::int64_t head) const {
    if (head < 0 || found_.tap == Tap::q || found_.tap == Tap::k) return "";
    const Model& model = bench_.stream.model();
    const LayerParams& params = bench_.stream.params(bench_.layer);
    const std::size_t h = static_cast<std::size_t>(head),
                      at = static_cast<std::size_t>(row) * static_cast<std::size_t>(model.HV) + h;
    std::ostringstream text;
    text << "A_log = " << params.A_log[h] << ", dt_bias = " << params.dt_bias[h]
         << ", a = " << value_text(model.act_dtype, word_at(model.act_dtype, view.inputs.a, at))
         << ", b = " << value_text(model.act_dtype, word_at(model.act_dtype, view.inputs.b, at));
    return text.str();
  }

  const Bench& bench_;
  const std::set<std::int32_t>& poisoned_;
  BornNaN found_;
};

/// Loaded blocks that hold a NaN from the start.
std::set<std::int32_t> poisoned_blocks(const Bench& bench) {
  std::set<std::int32_t> blocks;
  Bytes recurrent, conv;
  for (const Event& event : bench.stream.events()) {
    if (event.kind != EventKind::load) continue;
    bench.stream.load_row(event.source, recurrent, conv);
    if (first_nan(bench.stream.model().state_dtype, recurrent) >= 0 ||
        first_nan(bench.stream.model().conv_state_dtype, conv) >= 0)
      blocks.insert(event.block);
  }
  return blocks;
}

/// "heads 1, 2 of 4"
std::string heads_text(const std::set<std::int64_t>& heads, std::int64_t of) {
  if (std::cmp_equal(heads.size(), of)) return "all " + std::to_string(of) + " heads";
  std::string text = heads.size() == 1 ? "head" : "heads";
  for (std::int64_t head : heads)
    text += (text.ends_with("s") || text.ends_with("d") ? " " : ", ") + std::to_string(head);
  return text + " of " + std::to_string(of);
}

struct Spread {
  std::set<std::int64_t> heads;
  std::uint64_t differing = 0, max_ulp = 0;
  bool low_half_zero = true;  // of every recorded f32 word
};

Spread spread_of(const WrongUnit& wrong, const TapShape& shape) {
  Spread spread;
  for (std::size_t i = 0; i < wrong.want.size() / size_of(shape.type); ++i) {
    const std::uint32_t a = word_at(shape.type, wrong.got, i), b = word_at(shape.type, wrong.want, i);
    spread.low_half_zero &= shape.type == DType::f32 && (b & 0xFFFF) == 0;
    if (a == b) continue;
    ++spread.differing;
    spread.heads.insert(static_cast<std::int64_t>(i) / shape.per_head);
    if (const auto ulp = ulp_distance(shape.type, a, b)) spread.max_ulp = std::max(spread.max_ulp, *ulp);
  }
  return spread;
}

/// The recorded row equals ours of another row of the step.
std::string other_row(const Scene& scene, const WrongUnit& wrong) {
  if (wrong.unit.row < 0 || scene.at.tap == Tap::state || scene.at.tap == Tap::conv_state) return "";
  const StepOutputs outputs = scene.trials.outputs({}, scene.from, scene.at.step);
  const std::size_t bytes = shape_of(scene.at.tap, scene.model()).bytes();
  for (int row = 0; row < scene.plan(scene.at.step).rows(); ++row)
    if (row != wrong.unit.row && !outputs[scene.at.tap].empty() &&
        std::ranges::equal(row_of(outputs[scene.at.tap], bytes, row), wrong.want))
      return "; the recorded row equals ours of row " + std::to_string(row);
  return "";
}

std::string size_text(const Scene& scene) {
  const auto& wrong = scene.found.wrong;
  std::set<int> rows;
  std::uint64_t elements = 0;
  for (const WrongUnit& w : wrong) elements += w.differing, rows.insert(w.unit.row);
  std::ostringstream text;
  text << elements << " elements differ, in " << wrong.size() << " of " << scene.found.units
       << " rows and states, steps " << wrong.front().unit.step << " to " << wrong.back().unit.step;
  return text.str();
}

/// How many elements differ in the first and in the last wrong step.
std::string growth_text(const Scene& scene) {
  std::map<std::int64_t, std::uint64_t> by_step;
  for (const WrongUnit& w : scene.found.wrong)
    if (w.unit.tap == scene.at.tap) by_step[w.unit.step] += w.differing;
  if (by_step.size() < 2) return "";
  return "; " + std::string(name_of(scene.at.tap)) + ": " + std::to_string(by_step.begin()->second) +
         " elements in step " + std::to_string(by_step.begin()->first) + ", " +
         std::to_string(by_step.rbegin()->second) + " in step " + std::to_string(by_step.rbegin()->first);
}

/// Are all words of the first wrong step a rounding apart, and is the state among what differs?
bool only_rounding(const Scene& scene) {
  bool state = false;
  for (const WrongUnit& w : scene.found.wrong) {
    state |= w.unit.tap == Tap::state;
    if (!rounding_apart(w, shape_of(w.unit.tap, scene.model()).type)) return false;
  }
  return state;
}

/// Roundings go either way; nearly all the same way is a factor, not an order.
bool either_way(const Scene& scene) {
  std::uint64_t larger = 0, all = 0;
  for (const WrongUnit& w : scene.found.wrong) {
    const DType type = shape_of(w.unit.tap, scene.model()).type;
    for (std::size_t i = 0; w.unit.tap == Tap::state && i < w.want.size() / size_of(type); ++i) {
      const double a = std::fabs(value_of(type, word_at(type, w.got, i))),
                   b = std::fabs(value_of(type, word_at(type, w.want, i)));
      all += a != b, larger += b > a;
    }
  }
  return all < 32 || (larger * 10 >= all && larger * 10 <= all * 9);
}

}  // namespace

bool rounding_apart(const WrongUnit& wrong, DType type) {
  double scale = 0;
  const std::size_t n = wrong.want.size() / size_of(type);
  for (std::size_t i = 0; i < n; ++i)
    if (const double x = std::fabs(value_of(type, word_at(type, wrong.want, i))); std::isfinite(x))
      scale = std::max(scale, x);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t a = word_at(type, wrong.got, i), b = word_at(type, wrong.want, i);
    if (a == b) continue;
    const DiffClass kind = classify(type, a, b, scale);
    if (kind != DiffClass::rounding && kind != DiffClass::signed_zero) return false;
  }
  return true;
}

std::optional<Mechanism> born_nan(const Bench& bench, const std::vector<Twist>& twists) {
  if (!records_nan(bench)) return std::nullopt;
  const std::set<std::int32_t> poisoned = poisoned_blocks(bench);
  NaNWatch watch(bench, poisoned);
  Trials trials(bench);
  trials.watch(twists, {}, bench.last_step, [&](const StepView& view) {
    if (view.step >= bench.first_step && view.executed) watch.look(view);
  });
  const BornNaN& born = watch.found();
  if (born.step < 0) return std::nullopt;
  std::ostringstream says, evidence;
  says << "a NaN came out of " << name_of(born.tap);
  if (born.head >= 0) says << ", head " << born.head;
  says << ", from inputs without one";
  if (!born.inputs.empty()) says << ": " << born.inputs;
  evidence << "the replay makes it as well";
  if (born.state_step >= 0) evidence << "; first in the state after step " << born.state_step;
  if (born.out_step >= 0)
    evidence << "; first in core_out in step " << born.out_step << ", " << born.spread << " of its elements to the end";
  return Mechanism{"nan-born",
                   {born.step, born.step, bench.layer, born.row, -1, born.head},
                   says.str(),
                   evidence.str(),
                   Proof::rerun};
}

std::optional<Mechanism> lost_decay(const Bench& bench, const std::vector<Twist>& twists) {
  const Model& model = bench.stream.model();
  std::map<std::int32_t, Bytes> before;
  std::uint64_t equal = 0, decaying = 0;
  Trials trials(bench);
  const std::size_t width = size_of(model.state_dtype),
                    head_bytes = static_cast<std::size_t>(model.V) * static_cast<std::size_t>(model.K) * width;
  const auto look = [&](const StepView& view) {
    for (int row = 0; view.executed && row < view.plan.rows(); ++row) {
      const std::int32_t block = view.plan.block[static_cast<std::size_t>(row)];
      if (block < 0) continue;
      const Words after = read_words(view.pool, view.layer, block);
      const auto kept = before.find(block);
      for (std::size_t head = 0; kept != before.end() && head < static_cast<std::size_t>(model.HV); ++head) {
        const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(model.HV) + head;
        if (!(value_of(DType::f32, word_at(DType::f32, view.outputs[Tap::decay], at)) < 1)) continue;
        for (std::size_t i = head * head_bytes; i < (head + 1) * head_bytes; i += width) {
          if (value_of(model.state_dtype, word_at(model.state_dtype, after.recurrent, i / width)) == 0) continue;
          ++decaying;
          equal += std::memcmp(after.recurrent.data() + i, kept->second.data() + i, width) == 0;
        }
      }
      before[block] = after.recurrent;
    }
  };
  trials.watch(twists, {}, bench.last_step, look);
  if (decaying == 0 || equal * 2 <= decaying) return std::nullopt;
  std::ostringstream says;
  says << "the decay is lost to rounding: " << equal << " of " << decaying
       << " stored elements equal what was loaded although the decay is below 1";
  return Mechanism{"decay-lost",
                   {-1, -1, bench.layer, -1, -1, -1},
                   says.str(),
                   "counted in the re-run that gives the recorded bits",
                   Proof::fact};
}

Mechanism pattern_of(const Scene& scene, bool out_of_time) {
  const WrongUnit& first = scene.found.wrong.front();
  const TapShape shape = shape_of(first.unit.tap, scene.model());
  if (!out_of_time && widespread(scene.bench, scene.found) && only_rounding(scene) && either_way(scene))
    return {"algorithm-order",
            {-1, -1, scene.bench.layer, -1, -1, -1},
            "everything is within rounding, from step " + std::to_string(scene.at.step) +
                " on, in the state too: the same mathematics in another order, as a chunked algorithm gives",
            size_text(scene) + growth_text(scene) +
                "; no contract that can be written gives these bits, no fault does, and no element stands out",
            Proof::pattern};
  const Spread spread = spread_of(first, shape);
  std::ostringstream says;
  if (out_of_time) says << "the time ran out (--seconds) before every hypothesis was tried; so far ";
  says << "no hypothesis gives the recorded bits of " << name_of(first.unit.tap);
  if (!first.want.empty()) {
    says << ": " << first.differing << " of " << shape.elements() << " elements differ";
    if (first.unit.tap > Tap::conv_state) says << ", " << heads_text(spread.heads, shape.heads);
    says << ", up to " << spread.max_ulp << " ULP";
    if (spread.low_half_zero) says << "; the low 16 bits of every recorded word are zero";
    says << other_row(scene, first);
  }
  if (first.unit.block >= 0)
    says << last_writer_of(scene, first.unit.block, first.unit.step, first.unit.row < 0 && first.unit.event < 0);
  return {
      "unexplained",
      {first.unit.step, scene.found.wrong.back().unit.step, scene.bench.layer, first.unit.row, first.unit.block, -1},
      says.str(),
      size_text(scene) + growth_text(scene),
      Proof::pattern};
}

}  // namespace gdnsim::explaining

namespace gdnsim {

std::optional<Mechanism> not_repeatable(Stream& stream, Recording& recording, const Slice& slice, bool reproduced) {
  const RepeatCheck check = check_repeats(stream, recording, slice);
  if (!check.first || (reproduced && !check.first->same_batch)) return std::nullopt;
  const Repeat& repeat = *check.first;
  std::ostringstream says, evidence;
  says << explaining::place_text(repeat.first) << " and " << explaining::place_text(repeat.second)
       << " were given the same and came out different: " << name_of(repeat.tap);
  if (repeat.head >= 0) says << ", head " << repeat.head;
  says << ", element " << repeat.element << ", " << hex_text(repeat.type, repeat.first_word) << " and "
       << hex_text(repeat.type, repeat.second_word);
  evidence << check.repeats << " rows repeat an earlier one, " << check.differing << " of " << check.compared
           << " elements differ; "
           << (repeat.same_batch
                   ? "the launches were the same too, so this is noise: no comparison with it can blame anything"
                   : "rows, places or a prefill's tokens may differ, so the result may depend on the batch");
  return Mechanism{"not-repeatable",
                   {repeat.second.step, repeat.second.step, repeat.layer, repeat.second.row, repeat.second.block, -1},
                   says.str(),
                   evidence.str(),
                   Proof::fact};
}

}  // namespace gdnsim
