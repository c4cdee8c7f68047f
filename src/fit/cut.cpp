// Cutting probes out of a recording: a small model for each stage, in which the recorded inputs of the stage pass
// unchanged what comes before it. x passes the conv as -0 + -0 * window + 1 * x, with no activation: exact for every x,
// the sign of zero included.
#include <algorithm>
#include <cstring>
#include <sstream>

#include "fit/probe.hpp"
#include "gdnsim/arith.hpp"
#include "gdnsim/order.hpp"

namespace gdnsim::fitting {
namespace {

void put_act(DType type, Bytes& words, std::size_t i, float value) {
  if (type == DType::f32) {
    std::memcpy(words.data() + 4 * i, &value, 4);
    return;
  }
  const std::uint16_t word = type == DType::bf16 ? bf16_from_f32(value) : f16_from_f32(value);
  std::memcpy(words.data() + 2 * i, &word, 2);
}

Bytes act_words(DType type, std::int64_t count, float value) {
  Bytes words(static_cast<std::size_t>(count) * size_of(type));
  for (std::int64_t i = 0; i < count; ++i) put_act(type, words, static_cast<std::size_t>(i), value);
  return words;
}

/// Makes the conv a pipe for act words.
void pipe_conv(Probe& probe) {
  Model& model = probe.small;
  model.W = 2;
  model.activation = Activation::none;
  model.conv_state_dtype = DType::f32;
  probe.reset_window = true;
  probe.parameters.conv_bias = act_words(model.act_dtype, model.dim(), -0.0f);
  probe.parameters.conv_weight = act_words(model.act_dtype, 2 * model.dim(), -0.0f);
  for (std::int64_t channel = 0; channel < model.dim(); ++channel)
    put_act(model.act_dtype, probe.parameters.conv_weight, static_cast<std::size_t>(2 * channel + 1), 1.0f);
}

/// Rows of `per_row` words each: of every group of `from` words the first `to`... picked evenly.
struct Picker {
  std::int64_t from, to;
  std::int64_t operator()(std::int64_t i) const { return i * from / to; }
};

/// [count][from][width] -> [count][to][width], bytes.
void pick(const Bytes& source, std::size_t offset, std::int64_t count, const Picker& picker, std::size_t width,
          Bytes& out) {
  for (std::int64_t c = 0; c < count; ++c)
    for (std::int64_t i = 0; i < picker.to; ++i) {
      const std::byte* begin = source.data() + offset + static_cast<std::size_t>(c * picker.from + picker(i)) * width;
      out.insert(out.end(), begin, begin + width);
    }
}

std::int64_t active_rows(const ObservedStep& here) {
  return std::ranges::count_if(here.plan.block, [](std::int32_t block) { return block >= 0; });
}

std::string window_words(const Window& window, const std::string& what) {
  std::int64_t rows = 0, states = 0;
  for (const ObservedStep& here : window) {
    if (!here.carried) rows += active_rows(here);
    states += static_cast<std::int64_t>(here.after.size());
  }
  std::ostringstream text;
  text << "steps " << window.front().step << ":" << window.back().step + 1 << ", " << rows << " rows";
  if (states > 0) text << ", " << states << " states";
  text << what;
  return text.str();
}

Bytes tap_of(const Source& source, Tap tap, std::int64_t step) {
  Bytes words;
  source.recording.read_tap(tap, step, source.layer, words);
  return words;
}

bool any_after(const Window& window) {
  return std::ranges::any_of(window, [](const ObservedStep& here) { return !here.after.empty(); });
}

// ---- recurrent: every key channel, some value channels of each head ----

constexpr Tap kRecurrentTaps[] = {Tap::q, Tap::k, Tap::beta, Tap::g, Tap::decay, Tap::dot_k, Tap::u, Tap::core_out};

/// [count][dim][width] -> [count][small dim][width]: all of q and k, the picked elements of v.
Bytes sliced_channels(const Model& model, const Bytes& channels, std::int64_t count, const Picker& picker,
                      std::size_t width) {
  const std::size_t keys = static_cast<std::size_t>(2LL * model.H * model.K) * width;
  const std::size_t all = static_cast<std::size_t>(model.dim()) * width;
  Bytes out;
  for (std::size_t c = 0; c < static_cast<std::size_t>(count); ++c) {
    const auto begin = channels.begin() + static_cast<std::ptrdiff_t>(c * all);
    out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(keys));
    pick(channels, c * all + keys, model.HV, picker, width, out);
  }
  return out;
}

/// What a recurrent probe is cut with. Without a recorded conv_out the conv runs too, on the same channels.
struct Cutter {
  const Source& source;
  const Model& model;
  const Picker picker;
  const bool piped;

  std::vector<BlockState> states(const Probe& probe, const std::vector<BlockState>& whole) const {
    std::vector<BlockState> result;
    for (const BlockState& state : whole) {
      BlockState cut{state.block, {}, Bytes(probe.small.conv_bytes())};
      pick(state.recurrent, 0, model.HV, picker, static_cast<std::size_t>(model.K) * size_of(model.state_dtype),
           cut.recurrent);
      if (!piped) cut.conv = sliced_channels(model, state.conv, model.W - 1, picker, size_of(model.conv_state_dtype));
      result.push_back(std::move(cut));
    }
    return result;
  }

  void wants(const Probe& probe, std::int64_t step, std::int64_t heads, ProbeStep& out) const {
    for (Tap tap : kRecurrentTaps) {
      if (!probe.taps.has(tap)) continue;
      Bytes words = tap_of(source, tap, step), cut;
      const bool per_value = tap == Tap::dot_k || tap == Tap::u || tap == Tap::core_out;
      if (per_value) pick(words, 0, heads, picker, size_of(shape_of(tap, model).type), cut);
      out.want.emplace_back(tap, per_value ? cut : words);
    }
  }

  ProbeStep step(const Probe& probe, const ObservedStep& here) const {
    ProbeStep out{here.plan, {}, {}, {}, {}, {}, here.carried};
    StepInputs full;
    source.stream.inputs(here.step, source.layer, full);
    out.inputs.mixed_qkv = sliced_channels(model, piped ? tap_of(source, Tap::conv_out, here.step) : full.mixed_qkv,
                                           here.plan.rows(), picker, size_of(model.act_dtype));
    out.inputs.a = full.a, out.inputs.b = full.b;
    out.before = states(probe, here.before);
    out.after = states(probe, here.after);
    if (!here.carried) wants(probe, here.step, std::int64_t{here.plan.rows()} * model.HV, out);
    return out;
  }
};

}  // namespace

Probe conv_probe(const Source& source, const Window& window) {
  Probe probe;
  const TapSet recorded = source.recording.taps(source.layer);
  for (Tap tap : {Tap::conv_acc, Tap::conv_out})
    if (recorded.has(tap)) probe.taps.add(tap);
  if (probe.taps.empty()) return probe;
  const Model& model = source.stream.model();
  const LayerParams& params = source.stream.params(source.layer);
  Model& small = probe.small = model;
  small.H = small.K = 1;
  small.HV = model.dim() - 2 > kMaxRow ? 2 : 1;
  small.V = static_cast<int>((model.dim() - 2) / small.HV);
  if (small.dim() != model.dim() || small.V > kMaxRow) return probe;
  small.norm_eps.reset();
  small.layer_ids = {0};
  probe.parameters.A_log = probe.parameters.dt_bias = std::vector<float>(static_cast<std::size_t>(small.HV));
  probe.parameters.conv_weight = params.conv_weight;
  probe.parameters.conv_bias = params.conv_bias;
  for (const ObservedStep& here : window) {
    ProbeStep step{here.plan, {}, {}, {}, {}, {}, here.carried};
    source.stream.inputs(here.step, source.layer, step.inputs);
    step.inputs.a = step.inputs.b = act_words(model.act_dtype, std::int64_t{here.plan.rows()} * small.HV, 0);
    step.inputs.z.clear();
    for (const BlockState& state : here.before)
      step.before.push_back({state.block, Bytes(small.state_bytes()), state.conv});
    for (Tap tap : {Tap::conv_acc, Tap::conv_out})
      if (probe.taps.has(tap) && !here.carried) step.want.emplace_back(tap, tap_of(source, tap, here.step));
    probe.at.push_back(std::move(step));
  }
  if (!window.empty()) probe.words = window_words(window, ", all channels");
  return probe;
}

Probe recurrent_probe(const Source& source, const Window& window, std::int64_t state_rows) {
  Probe probe;
  const TapSet recorded = source.recording.taps(source.layer);
  for (Tap tap : kRecurrentTaps)
    if (recorded.has(tap)) probe.taps.add(tap);
  if (window.empty() || (probe.taps.empty() && !any_after(window))) return probe;
  const Model& model = source.stream.model();
  std::int64_t heads = 0;
  for (const ObservedStep& here : window) heads += model.HV * active_rows(here);
  probe.small = model;
  probe.small.V = static_cast<int>(std::clamp<std::int64_t>(state_rows / heads, 1, model.V));
  probe.small.norm_eps.reset();
  probe.small.layer_ids = {0};
  const LayerParams& params = source.stream.params(source.layer);
  const Cutter cutter{source, model, {model.V, probe.small.V}, recorded.has(Tap::conv_out)};
  probe.parameters.A_log = params.A_log;
  probe.parameters.dt_bias = params.dt_bias;
  if (cutter.piped) {
    pipe_conv(probe);
  } else {
    const std::size_t word = size_of(model.act_dtype), W = static_cast<std::size_t>(model.W);
    probe.parameters.conv_weight = sliced_channels(model, params.conv_weight, 1, cutter.picker, W * word);
    if (!params.conv_bias.empty())
      probe.parameters.conv_bias = sliced_channels(model, params.conv_bias, 1, cutter.picker, word);
  }
  for (const ObservedStep& here : window) probe.at.push_back(cutter.step(probe, here));
  if (source.other != nullptr) probe.other = *source.other;
  probe.words = window_words(
      window, ", " + std::to_string(probe.small.V) + " of " + std::to_string(model.V) + " state rows a head");
  return probe;
}

/// core_out passes as v: one key of width 1, q = k = beta = 1, state 0, so that u = v and S.q = v.
Probe norm_probe(const Source& source, const Window& window) {
  Probe probe;
  const TapSet recorded = source.recording.taps(source.layer);
  if (!recorded.has(Tap::core_out) || !has_norm(source.stream, source.layer)) return probe;
  for (Tap tap : {Tap::rstd, Tap::norm_out})
    if (recorded.has(tap)) probe.taps.add(tap);
  if (probe.taps.empty()) return probe;
  probe.taps.add(Tap::core_out);
  const Model& model = source.stream.model();
  Model& small = probe.small = model;
  small.H = small.K = 1;
  small.scale = 1;
  small.use_qk_l2norm = false;
  small.state_dtype = DType::f32;
  small.layer_ids = {0};
  probe.parameters.A_log = probe.parameters.dt_bias = std::vector<float>(static_cast<std::size_t>(model.HV));
  probe.parameters.norm_weight = source.stream.params(source.layer).norm_weight;
  pipe_conv(probe);
  const std::size_t word = size_of(model.act_dtype), values = static_cast<std::size_t>(1LL * model.HV * model.V) * word;
  constexpr float kBetaOne = 1e4f;  // 1 / (1 + e^-10000) is 1
  for (const ObservedStep& here : window) {
    if (here.carried) continue;
    ProbeStep step{here.plan, {}, {}, {}, {}, tap_of(source, Tap::core_out, here.step), false};
    source.stream.inputs(here.step, source.layer, step.inputs);
    const Bytes one = act_words(model.act_dtype, 2, 1.0f);
    step.inputs.mixed_qkv.clear();
    for (std::size_t row = 0; row < here.plan.block.size(); ++row) {
      const auto begin = step.norm_input.begin() + static_cast<std::ptrdiff_t>(row * values);
      step.inputs.mixed_qkv.insert(step.inputs.mixed_qkv.end(), one.begin(), one.end());
      step.inputs.mixed_qkv.insert(step.inputs.mixed_qkv.end(), begin, begin + static_cast<std::ptrdiff_t>(values));
      if (here.plan.block[row] >= 0)
        step.before.push_back({here.plan.block[row], Bytes(small.state_bytes()), Bytes(small.conv_bytes())});
    }
    step.inputs.a = act_words(model.act_dtype, std::int64_t{here.plan.rows()} * model.HV, 0);
    step.inputs.b = act_words(model.act_dtype, std::int64_t{here.plan.rows()} * model.HV, kBetaOne);
    for (Tap tap : {Tap::rstd, Tap::norm_out})
      if (recorded.has(tap)) step.want.emplace_back(tap, tap_of(source, tap, here.step));
    probe.at.push_back(std::move(step));
  }
  if (!window.empty()) probe.words = window_words(window, ", all heads");
  return probe;
}

}  // namespace gdnsim::fitting
