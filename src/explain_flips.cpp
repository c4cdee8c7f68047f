// Hypotheses about memory: a few words of a state, of an input or of the record that changed on their own.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "explain_kinds.hpp"
#include "gdnsim/compare.hpp"

namespace gdnsim::explaining {
namespace {

constexpr std::size_t kIsolated = 8;  // words of one unit that still count as isolated

struct WrongWord {
  std::int64_t element;  // flat within the unit
  std::uint32_t got, want;
};

std::vector<WrongWord> wrong_words(const WrongUnit& wrong, DType type) {
  std::vector<WrongWord> words;
  for (std::size_t i = 0; i < wrong.want.size() / size_of(type); ++i) {
    const std::uint32_t a = word_at(type, wrong.got, i), b = word_at(type, wrong.want, i);
    if (a != b) words.push_back({static_cast<std::int64_t>(i), a, b});
  }
  return words;
}

void put_word(DType type, Bytes& words, std::int64_t element, std::uint32_t word) {
  std::memcpy(words.data() + static_cast<std::size_t>(element) * size_of(type), &word, size_of(type));
}

void flip(DType type, Bytes& words, std::int64_t element, int bit) {
  put_word(type, words, element, word_at(type, words, static_cast<std::size_t>(element)) ^ (1u << bit));
}

int bits_in(DType type) { return static_cast<int>(8 * size_of(type)); }

/// "head 1, element 777", as a report's place has it; conv values have no head.
std::string element_text(const TapShape& shape, Tap tap, std::int64_t element) {
  if (tap <= Tap::conv_state) return "element " + std::to_string(element);
  return "head " + std::to_string(element / shape.per_head) + ", element " + std::to_string(element % shape.per_head);
}

std::string word_text(const Model& model, Tap tap, const WrongWord& word) {
  const TapShape shape = shape_of(tap, model);
  const DType type = shape.type;
  const std::uint32_t changed = word.got ^ word.want;
  std::string text = element_text(shape, tap, word.element);
  if (std::popcount(changed) > 4) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, type == DType::f32 ? ", bits 0x%08x" : ", bits 0x%04x", changed);
    return text + buffer;
  }
  text += std::popcount(changed) == 1 ? ", bit" : ", bits";
  for (int bit = 0; bit < 32; ++bit)
    if ((changed >> bit & 1) != 0) text += " " + std::to_string(bit);
  return text;
}

void add(Hypotheses& out, const Scope& scope, std::string says, Twist twist, bool whole = false) {
  Hypothesis hypothesis;
  hypothesis.mechanisms = {{"memory-corruption", scope, std::move(says), "", Proof::rerun}};
  hypothesis.twists = {std::move(twist)};
  hypothesis.whole = whole;
  out.push_back(std::move(hypothesis));
}

std::string tap_text(Tap tap) {
  return tap == Tap::state ? "recurrent state" : tap == Tap::conv_state ? "conv state" : std::string(name_of(tap));
}

/// The first of the block's steps after which the same bits may have flipped: from there on every recorded bit stays right.
std::int64_t flipped_since(const Scene& scene, Tap tap, const std::vector<WrongWord>& words,
                           const std::vector<RowStep>& rows) {
  std::int64_t since = rows.front().step;
  const DType type = shape_of(tap, scene.model()).type;
  for (const RowStep& place : rows) {
    Twist twist;
    twist.before = [=, block = scene.at.block](StepEdit& edit) {
      if (edit.plan.step != place.step) return;
      Words state = read_words(edit.pool, edit.layer, block);
      Bytes& bytes = tap == Tap::state ? state.recurrent : state.conv;
      for (const WrongWord& word : words)
        put_word(type, bytes, word.element,
                 word_at(type, bytes, static_cast<std::size_t>(word.element)) ^ word.got ^ word.want);
      write_words(edit.pool, edit.layer, block, state);
    };
    if (!scene.trials.run({twist}, scene.from, scene.at.step + 1, true).clean()) return since;
    since = std::max<std::int64_t>(place.step - 1, scene.anchor - 1);
  }
  return since;
}

/// Isolated words of a snapshot: they changed after some step, and stayed.
void changed_words(const Scene& scene, const WrongUnit& wrong, Hypotheses& out) {
  const Tap tap = wrong.unit.tap;
  const DType type = shape_of(tap, scene.model()).type;
  const auto words = wrong_words(wrong, type);
  const bool snapshot = tap == Tap::state || tap == Tap::conv_state;
  if (!snapshot || words.empty() || words.size() > kIsolated) return;
  const auto rows = rows_of_block(scene, wrong.unit.block, scene.anchor, wrong.unit.step);
  const std::int64_t since = rows.empty() ? scene.anchor - 1 : flipped_since(scene, tap, words, rows);
  const Scope scope{std::max<std::int64_t>(since, 0), wrong.unit.step, scene.bench.layer, -1, wrong.unit.block, -1};
  Twist twist;
  twist.after = [=, block = wrong.unit.block, step = wrong.unit.step](StepEdit& edit) {
    if (edit.plan.step != step) return;
    Words state = read_words(edit.pool, edit.layer, block);
    for (const WrongWord& word : words)
      put_word(type, tap == Tap::state ? state.recurrent : state.conv, word.element, word.want);
    write_words(edit.pool, edit.layer, block, state);
  };
  std::string says = tap_text(tap) + " of block " + std::to_string(wrong.unit.block) + ": ";
  for (std::size_t i = 0; i < words.size(); ++i)
    says += (i > 0 ? "; " : "") + word_text(scene.model(), wrong.unit.tap, words[i]);
  says += words.size() == 1 ? " changed" : " changed, " + std::to_string(words.size()) + " words";
  if (rows.empty())
    says += " before the snapshot after step " + std::to_string(scope.to_step) +
            "; no row wrote the block since step " + std::to_string(scene.anchor);
  else
    says += " after the write of step " + std::to_string(scope.from_step) + " and before the snapshot after step " +
            std::to_string(scope.to_step);
  add(out, scope, says, twist);
}

/// Isolated words of the record that nothing downstream shows.
void corrupt_record(const Scene& scene, const WrongUnit& wrong, Hypotheses& out) {
  const DType type = shape_of(wrong.unit.tap, scene.model()).type;
  const auto words = wrong_words(wrong, type);
  if (words.empty() || words.size() > 2) return;
  Twist twist;
  twist.forgiven = {wrong.unit};
  std::string says = "the record of " + tap_text(wrong.unit.tap) + " differs in ";
  for (std::size_t i = 0; i < words.size(); ++i)
    says += (i > 0 ? "; " : "") + word_text(scene.model(), wrong.unit.tap, words[i]);
  says += "; nothing that was computed from it does";
  add(out, scene.scope(wrong.unit.step, wrong.unit.row, wrong.unit.block), says, twist);
  out.back().mechanisms[0].proof = Proof::fact;
}

/// How a change of one state word before a step grows until the first wrong unit. The recurrence is linear in the state, so
/// this tells in double precision which of thousands of flips are worth a re-run; the re-run decides.
class Propagation {
 public:
  Propagation(const Scene& scene, const std::vector<RowStep>& rows, std::int64_t head) : scene_(scene), head_(head) {
    for (const RowStep& place : rows) {
      const Checkpoint from = scene.trials.checkpoint(place.step);
      const StepOutputs outputs = scene.trials.outputs({}, from, place.step);
      steps_.push_back(read(outputs, place.row));
    }
  }

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
  std::vector<Step> steps_;
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

/// One bit of the recurrent state, flipped before one of the block's steps.
void flipped_state(const Scene& scene, Hypotheses& out) {
  const Tap tap = scene.at.tap;
  if ((tap != Tap::core_out && tap != Tap::state) || scene.at.block < 0) return;
  const WrongUnit& wrong = scene.found.wrong.front();
  const auto words = wrong_words(wrong, shape_of(tap, scene.model()).type);
  const auto place = one_state_row(scene, words);
  auto rows = rows_of_block(scene, scene.at.block, scene.anchor, scene.at.step);
  if (!place || rows.empty() || (tap == Tap::core_out && rows.front().step != scene.at.step)) return;
  if (rows.size() > 8) rows.resize(8);
  std::ranges::reverse(rows);
  const Propagation propagation(scene, rows, place->head);
  const Model& model = scene.model();
  for (std::size_t i = rows.size(); i-- > 0;) {
    const Checkpoint before = scene.trials.checkpoint(rows[i].step + 0);
    const auto state = before.blocks.find(scene.at.block);
    const Bytes recurrent = state == before.blocks.end() ? Bytes(model.state_bytes()) : state->second.recurrent;
    for (std::int64_t k = 0; k < model.K; ++k)
      for (int bit = 0; bit < bits_in(model.state_dtype); ++bit) {
        const std::int64_t element = (place->head * model.V + place->v) * model.K + k;
        const std::uint32_t word = word_at(model.state_dtype, recurrent, static_cast<std::size_t>(element));
        std::vector<double> d(static_cast<std::size_t>(model.K));
        d[static_cast<std::size_t>(k)] =
            value_of(model.state_dtype, word ^ (1u << bit)) - value_of(model.state_dtype, word);
        const double change = propagation.run(i, d);
        if (!plausible(scene, words, d, change)) continue;
        Twist twist;
        const std::int32_t block = scene.at.block;
        const std::int64_t step = rows[i].step;
        twist.before = [=, type = model.state_dtype](StepEdit& edit) {
          if (edit.plan.step != step) return;
          Words now = read_words(edit.pool, edit.layer, block);
          flip(type, now.recurrent, element, bit);
          write_words(edit.pool, edit.layer, block, now);
        };
        const std::int64_t since = i > 0 ? rows[i - 1].step : std::max<std::int64_t>(scene.anchor, 0);
        add(out, {since, step, scene.bench.layer, -1, block, place->head},
            "recurrent state of block " + std::to_string(block) + ": " +
                element_text(shape_of(Tap::state, model), Tap::state, element) + ", bit " + std::to_string(bit) +
                " changed before step " + std::to_string(step) + " read it",
            twist);
      }
  }
}

using Target = std::function<Bytes*(StepInputs&)>;

void flipped_input(const Scene& scene, const char* name, std::int64_t element, std::int64_t shown, DType type,
                   const Target& target, Hypotheses& out) {
  const std::int64_t step = scene.at.step;
  for (int bit = 0; bit < bits_in(type); ++bit) {
    Twist twist;
    twist.before = [=](StepEdit& edit) {
      if (edit.plan.step == step) flip(type, *target(edit.inputs), element, bit);
    };
    add(out, scene.scope(step, scene.at.row, -1),
        std::string("the recorded input ") + name + ", element " + std::to_string(shown) + ", differs in bit " +
            std::to_string(bit) + " from what was read",
        twist);
  }
}

/// One bit of the conv window: an older column, or x itself.
void flipped_window(const Scene& scene, const std::vector<WrongWord>& words, Hypotheses& out) {
  const Model& model = scene.model();
  if (words.size() != 1 || scene.at.row < 0 || scene.at.tap == Tap::conv_state) return;
  const std::int64_t channel = words.front().element, step = scene.at.step;
  const std::int32_t block = scene.at.block;
  const auto rows = rows_of_block(scene, block, scene.anchor, step - 1);
  for (int column = 0; column + 1 < model.W; ++column) {
    const std::size_t back = static_cast<std::size_t>(model.W - 2 - column);  // steps since the value came in as x
    const std::int64_t since = back < rows.size() ? rows[back].step : scene.anchor;
    for (int bit = 0; bit < bits_in(model.conv_state_dtype); ++bit) {
      const std::int64_t element = column * model.dim() + channel;
      Twist twist;
      twist.before = [=, type = model.conv_state_dtype](StepEdit& edit) {
        if (edit.plan.step != step) return;
        Words now = read_words(edit.pool, edit.layer, block);
        flip(type, now.conv, element, bit);
        write_words(edit.pool, edit.layer, block, now);
      };
      add(out, {since, step, scene.bench.layer, -1, block, -1},
          "conv state of block " + std::to_string(block) + ": element " + std::to_string(element) + " (column " +
              std::to_string(column) + ", channel " + std::to_string(channel) + "), bit " + std::to_string(bit) +
              " changed before step " + std::to_string(step) + " read it",
          twist);
    }
  }
  flipped_input(
      scene, "mixed_qkv", scene.at.row * model.dim() + channel, channel, model.act_dtype,
      [](StepInputs& in) { return &in.mixed_qkv; }, out);
}

/// One bit of a parameter, which shows in every step.
template <class Word>
void flipped_param(const Scene& scene, const char* name, std::int64_t element, int bits, const Word& word,
                   Hypotheses& out) {
  for (int bit = 0; bit < bits; ++bit) {
    Twist twist;
    twist.params = [=](LayerParams& params) { word(params, element, bit); };
    add(out, {-1, -1, scene.bench.layer, -1, -1, -1},
        std::string("the recorded parameter ") + name + ", element " + std::to_string(element) + ", differs in bit " +
            std::to_string(bit) + " from what was used",
        twist, true);
  }
}

void flip_float(std::vector<float>& values, std::int64_t element, int bit) {
  float& x = values[static_cast<std::size_t>(element)];
  x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^ (1u << bit));
}

void flipped_inputs(const Scene& scene, const std::vector<WrongWord>& words, Hypotheses& out) {
  const Model& model = scene.model();
  const TapShape shape = shape_of(scene.at.tap, model);
  if (scene.at.row < 0 || words.empty()) return;
  const DType act = model.act_dtype;
  const int act_bits = bits_in(act);
  if (scene.in_conv()) {
    if (words.size() != 1 || scene.at.tap == Tap::conv_state) return;
    const std::int64_t channel = words.front().element;
    for (int j = 0; j < model.W; ++j)
      flipped_param(
          scene, "conv_weight", channel * model.W + j, act_bits,
          [act](LayerParams& p, std::int64_t e, int bit) { flip(act, p.conv_weight, e, bit); }, out);
    if (!scene.bench.stream.params(scene.bench.layer).conv_bias.empty())
      flipped_param(
          scene, "conv_bias", channel, act_bits,
          [act](LayerParams& p, std::int64_t e, int bit) { flip(act, p.conv_bias, e, bit); }, out);
    return;
  }
  const std::int64_t head = words.front().element / shape.per_head;
  const bool one_head =
      std::ranges::all_of(words, [&](const WrongWord& w) { return w.element / shape.per_head == head; });
  if (!one_head) return;
  const std::int64_t at = scene.at.row * model.HV + head;
  if (scene.at.tap == Tap::norm_out) {
    if (words.size() != 1 || !scene.bench.stream.has_z(scene.bench.layer)) return;
    flipped_input(
        scene, "z", scene.at.row * model.HV * model.V + words.front().element, words.front().element, act,
        [](StepInputs& in) { return &in.z; }, out);
    flipped_param(
        scene, "norm_weight", words.front().element % model.V, act_bits,
        [act](LayerParams& p, std::int64_t e, int bit) { flip(act, p.norm_weight, e, bit); }, out);
  } else if (scene.at.tap != Tap::q && scene.at.tap != Tap::k && scene.at.tap != Tap::rstd) {
    flipped_input(
        scene, "a", at, head, act, [](StepInputs& in) { return &in.a; }, out);
    flipped_input(
        scene, "b", at, head, act, [](StepInputs& in) { return &in.b; }, out);
    flipped_param(
        scene, "A_log", head, 32, [](LayerParams& p, std::int64_t e, int bit) { flip_float(p.A_log, e, bit); }, out);
    flipped_param(
        scene, "dt_bias", head, 32, [](LayerParams& p, std::int64_t e, int bit) { flip_float(p.dt_bias, e, bit); },
        out);
  }
}

}  // namespace

void propose_flips(const Scene& scene, Hypotheses& out) {
  const WrongUnit& wrong = scene.found.wrong.front();
  if (wrong.want.empty()) return;  // a digest
  const auto words = wrong_words(wrong, shape_of(wrong.unit.tap, scene.model()).type);
  if (words.size() == 1 && std::popcount(words[0].got ^ words[0].want) == 1) changed_words(scene, wrong, out);
  if (scene.in_conv()) flipped_window(scene, words, out);
  flipped_state(scene, out);
  flipped_inputs(scene, words, out);
}

void propose_words(const Scene& scene, Hypotheses& out) {
  if (!scene.found.wrong.front().want.empty()) changed_words(scene, scene.found.wrong.front(), out);
}

void propose_records(const Scene& scene, Hypotheses& out) {
  if (!scene.found.wrong.front().want.empty()) corrupt_record(scene, scene.found.wrong.front(), out);
}

}  // namespace gdnsim::explaining
