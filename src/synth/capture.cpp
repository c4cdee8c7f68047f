// Capturing: a recording's steps are cut into tokens, sequence by sequence.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "gdnsim/arith.hpp"
#include "gdnsim/error.hpp"
#include "synth/captured.hpp"

namespace gdnsim {
namespace {

/// One sequence's place in the recording.
struct Found {
  std::int32_t block = -1;                       // at its first token
  std::vector<std::pair<std::int64_t, int>> at;  // step and row of each token
};

/// The sequences in order of their first token.
std::vector<Found> find_sequences(const Stream& stream, const std::string& where) {
  std::vector<Found> found;
  std::map<std::int64_t, std::size_t> known;
  for (std::int64_t step = 0; step < stream.steps(); ++step) {
    const StepPlan plan = stream.plan(step);
    if (plan.in_launch())
      throw error(where, ": step ", step, " is part of a launch of several tokens: expected one token of a row a step");
    if (plan.path == Path::opaque) continue;
    for (std::size_t row = 0; row < plan.block.size(); ++row) {
      if (plan.block[row] < 0 || plan.sequence[row] < 0) continue;
      const auto [at, fresh] = known.emplace(plan.sequence[row], found.size());
      if (fresh) found.push_back({plan.start(row), {}});
      found[at->second].at.emplace_back(step, static_cast<int>(row));
    }
  }
  return found;
}

std::vector<Found> longest(std::vector<Found> found, const Stream& stream, int rows, const std::string& where) {
  if (found.empty())
    throw error(where, ": expected at least one row with a sequence in a step that can be replayed, found none");
  const auto there = static_cast<int>(found.size());
  if (rows > there) throw error(where, ": expected ", rows, " sequences, found ", there);
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& x, const Found& y) { return x.at.size() > y.at.size(); });
  found.resize(static_cast<std::size_t>(rows > 0 ? rows : std::min(stream.rows(), there)));
  return found;
}

/// The row of the load that the sequence's block began with, or -1: it was zeroed, copied to, or nothing was said of it.
std::int32_t load_of(const Stream& stream, const Found& sequence, int layer) {
  std::int32_t source = -1;
  for (const Event& event : stream.events()) {
    if (event.step > sequence.at.front().first) break;
    if (event.block == sequence.block && (event.layer < 0 || event.layer == layer) && changes_contents(event.kind))
      source = event.kind == EventKind::load ? event.source : -1;
  }
  return source;
}

std::vector<CapturedStart> starts_of(Stream& stream, const std::vector<Found>& sequences, int layer) {
  std::vector<CapturedStart> starts;
  for (const Found& sequence : sequences) {
    CapturedStart& start = starts.emplace_back();
    if (const std::int32_t source = load_of(stream, sequence, layer); source >= 0)
      stream.load_row(source, start.recurrent, start.conv);
  }
  return starts;
}

/// Copies one row of a step's inputs behind the tokens that are there.
void append_line(const std::array<LinePiece, 4>& pieces, const StepInputs& inputs, int row, Bytes& tokens) {
  for (const LinePiece& piece : pieces) {
    const auto begin = (inputs.*piece.bytes).begin() + static_cast<std::ptrdiff_t>(piece.size) * row;
    tokens.insert(tokens.end(), begin, begin + static_cast<std::ptrdiff_t>(piece.size));
  }
}

/// The rows that are wanted of each step: sequence and row.
using Wanted = std::map<std::int64_t, std::vector<std::pair<std::size_t, int>>>;

Wanted wanted_of(const std::vector<Found>& sequences) {
  Wanted wanted;
  for (std::size_t s = 0; s < sequences.size(); ++s)
    for (const auto& [step, row] : sequences[s].at) wanted[step].emplace_back(s, row);
  return wanted;
}

/// The lines of one layer; each step is read once.
std::vector<Bytes> tokens_of(Stream& stream, const Wanted& wanted, const Captured& captured, int layer) {
  std::vector<Bytes> tokens(captured.lengths.size());
  const auto pieces = captured.pieces(layer);
  StepInputs inputs;
  for (const auto& [step, rows] : wanted) {
    stream.inputs(step, layer, inputs);
    for (const auto& [sequence, row] : rows) append_line(pieces, inputs, row, tokens[sequence]);
  }
  return tokens;
}

float widened(const std::byte* word, DType type) {
  std::uint16_t half = 0;
  float value = 0;
  if (type == DType::f32)
    std::memcpy(&value, word, 4);
  else
    std::memcpy(&half, word, 2), value = type == DType::bf16 ? f32_from_bf16(half) : f32_from_f16(half);
  return value;
}

/// Mean and deviation of every element over all tokens, sequence by sequence; what is not finite is left out.
LineStatistics statistics_of(const std::vector<Bytes>& tokens, std::size_t line, DType type) {
  const std::size_t word = size_of(type), elements = line / word;
  std::vector<double> sum(elements), count(elements), mean(elements), squares(elements);
  const auto each = [&](auto&& visit) {
    for (const Bytes& sequence : tokens)
      for (std::size_t at = 0; at < sequence.size(); at += line)
        for (std::size_t e = 0; e < elements; ++e)
          if (const double x = widened(sequence.data() + at + e * word, type); std::isfinite(x)) visit(e, x);
  };
  each([&](std::size_t e, double x) { sum[e] += x, count[e] += 1; });
  for (std::size_t e = 0; e < elements; ++e) mean[e] = count[e] > 0 ? sum[e] / count[e] : 0;
  each([&](std::size_t e, double x) { squares[e] += (x - mean[e]) * (x - mean[e]); });
  LineStatistics all;
  for (std::size_t e = 0; e < elements; ++e) {
    all.mean.push_back(static_cast<float>(mean[e]));
    all.deviation.push_back(count[e] > 0 ? static_cast<float>(std::sqrt(squares[e] / count[e])) : 0);
  }
  return all;
}

}  // namespace

std::array<LinePiece, 4> Captured::pieces(int layer) const {
  const std::size_t word = size_of(model.act_dtype), heads = static_cast<std::size_t>(model.HV) * word;
  const std::size_t x = static_cast<std::size_t>(model.dim()) * word;
  const std::size_t z = has_z[static_cast<std::size_t>(layer)] ? heads * static_cast<std::size_t>(model.V) : 0;
  return {{{&StepInputs::mixed_qkv, Tensor::captured_x, 0, x},
           {&StepInputs::a, Tensor::captured_a, x, heads},
           {&StepInputs::b, Tensor::captured_b, x + heads, heads},
           {&StepInputs::z, Tensor::captured_z, x + 2 * heads, z}}};
}

const CapturedLayer& Captured::of(int layer) const {
  const auto at = std::ranges::find(layers, layer);
  GDNSIM_CHECK(at != layers.end());
  return kept[static_cast<std::size_t>(at - layers.begin())];
}

std::shared_ptr<const Captured> capture(Stream& stream, const CaptureOptions& options, const std::string& where) {
  const std::vector<Found> sequences = longest(find_sequences(stream, where), stream, options.rows, where);
  auto captured = std::make_shared<Captured>();
  captured->model = stream.model();
  captured->source = stream.source();
  captured->layers = options.layers;
  for (int layer = 0; layer < stream.model().layers(); ++layer) {
    captured->params.push_back(stream.params(layer));
    captured->has_z.push_back(stream.has_z(layer));
    if (options.layers.empty()) captured->layers.push_back(layer);
  }
  for (const Found& sequence : sequences) captured->lengths.push_back(static_cast<std::int64_t>(sequence.at.size()));
  const Wanted wanted = wanted_of(sequences);
  for (int layer : captured->layers) {
    CapturedLayer& kept = captured->kept.emplace_back();
    kept.starts = starts_of(stream, sequences, layer);
    kept.tokens = tokens_of(stream, wanted, *captured, layer);
    kept.statistics = statistics_of(kept.tokens, captured->line_bytes(layer), captured->model.act_dtype);
  }
  return captured;
}

}  // namespace gdnsim
