// A small random trace with every optional feature, held in memory, to be written and compared with what is read back. Bulk
// data is random bits, so NaN payloads, signed zeros and denormals of every type occur; a few are planted to be sure.
#pragma once

#include <gdnsim/trace.hpp>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace gdnsim::test {

/// xorshift64*: the same sequence everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 2654435761u + 88172645463325252u) {}
  std::uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Du;
  }
  std::uint64_t below(std::uint64_t n) { return (next() >> 16) % n; }
  Bytes bytes(std::size_t count) {
    Bytes out(count);
    for (std::byte& b : out) b = static_cast<std::byte>(next() >> 40);
    return out;
  }

 private:
  std::uint64_t state_;
};

struct TraceData {
  using Block = std::pair<Bytes, Bytes>;  // recurrent, conv
  TraceHeader header;
  std::vector<StepPlan> plans;                  // [T]
  std::vector<std::vector<StepInputs>> inputs;  // [T][L]
  std::vector<Block> loads, snapshots;          // [N], [S]
  std::map<std::tuple<Tap, std::int64_t, int>, Bytes> taps;
};

/// Quiet and signalling NaN payloads, -0, and the smallest denormals at the front of `bytes`.
inline void plant_special(Bytes& bytes, DType type) {
  const std::uint32_t f32[] = {0x7F800001u, 0xFFC12345u, 0x80000000u, 0x00000001u, 0x7F800000u};
  const std::uint16_t bf16[] = {0x7F81, 0xFFC5, 0x8000, 0x0001, 0x7F80},
                      f16[] = {0x7C01, 0xFE05, 0x8000, 0x0001, 0x7C00};
  const void* words = type == DType::f32 ? static_cast<const void*>(f32) : type == DType::bf16 ? bf16 : f16;
  std::memcpy(bytes.data(), words, std::min(bytes.size(), 5 * size_of(type)));
}

/// Random finite act words: the sign and mantissa are free, the exponent is not all ones.
inline Bytes finite_words(Random& random, std::size_t count, DType type) {
  Bytes out = random.bytes(count * size_of(type));
  const std::size_t last = size_of(type) - 1;
  for (std::size_t i = 0; i < count; ++i) out[i * size_of(type) + last] &= static_cast<std::byte>(0xBF);
  return out;
}

inline Model small_model(DType act, DType state, DType conv) {
  Model model;
  model.H = 2, model.HV = 4, model.K = 3, model.V = 5, model.W = 4;
  model.scale = 0.57735026f;
  model.act_dtype = act, model.state_dtype = state, model.conv_state_dtype = conv;
  model.sentinel = Sentinel::nonpositive;
  model.num_blocks = 7;
  model.norm_eps = 1e-6f;
  model.norm_gate = NormGate::sigmoid;
  model.inactive_core_out = InactiveOut::unwritten;
  model.layer_ids = {0, 2};
  return model;
}

inline LayerParams random_params(Random& random, const Model& model) {
  LayerParams params;
  for (int h = 0; h < model.HV; ++h) {
    params.A_log.push_back(static_cast<float>(random.below(1000)) * 0.003f - 1);
    params.dt_bias.push_back(-0.0f + static_cast<float>(random.below(100)) * 0.01f);
  }
  params.dt_bias[0] = -0.0f;
  params.A_log[1] = 1e-42f;  // a denormal
  params.conv_weight = finite_words(random, static_cast<std::size_t>(model.dim() * model.W), model.act_dtype);
  params.conv_bias = finite_words(random, static_cast<std::size_t>(model.dim()), model.act_dtype);
  params.norm_weight = finite_words(random, static_cast<std::size_t>(model.V), model.act_dtype);
  return params;
}

inline TraceData random_trace(std::uint64_t seed, DType act, DType state, DType conv) {
  Random random(seed);
  TraceData data;
  TraceHeader& header = data.header;
  const Model model = header.model = small_model(act, state, conv);
  header.steps = 4, header.rows = 3, header.has_z = true, header.has_path = true, header.load_rows = 2;
  header.has_launch_tokens = true;
  for (std::size_t t = 0; t < kTaps; ++t)
    if (static_cast<Tap>(t) != Tap::state && static_cast<Tap>(t) != Tap::conv_state)
      header.taps.add(static_cast<Tap>(t));
  for (int l = 0; l < model.layers(); ++l) header.params.push_back(random_params(random, model));
  header.events = {{0, -1, 1, EventKind::load, 0},
                   {0, 1, 2, EventKind::load, 1},
                   {1, 0, 3, EventKind::zero, -1},
                   {2, -1, 4, EventKind::copy, 1},
                   {3, -1, 1, EventKind::free, -1}};
  header.snapshots = {{1, 1, 2, 0}, {0, 0, 1, 1}, {1, 0, 1, 2}};  // not sorted: the reader sorts
  header.provenance = {{"engine", "a test"}, {"note", "random bits \xC3\xA9"}};
  const std::vector<std::int32_t> index[] = {{1, 2, 0}, {2, 1, -1}, {5, 6, 2}, {1, 2, 3}};
  const Path path[] = {Path::decode, Path::mixed, Path::opaque, Path::decode};
  const std::size_t act_size = size_of(act), B = 3, HV = 4, dim = static_cast<std::size_t>(model.dim());
  for (std::int64_t step = 0; step < header.steps; ++step) {
    const std::vector<std::int64_t> sequence = {step, 1LL << 40, -1};
    data.plans.push_back(make_plan(model, step, path[step], index[step], sequence, step == 2 ? 2 : 3, "test"));
    data.plans.back().launch_tokens = step == 1 ? 7 : 0;
    data.inputs.emplace_back();
    for (int l = 0; l < model.layers(); ++l) {
      StepInputs inputs{random.bytes(B * dim * act_size), random.bytes(B * HV * act_size),
                        random.bytes(B * HV * act_size), random.bytes(B * HV * 5 * act_size)};
      plant_special(inputs.mixed_qkv, act);
      data.inputs.back().push_back(inputs);
      for (std::size_t t = 0; t < kTaps; ++t) {
        const Tap tap = static_cast<Tap>(t);
        if (!header.taps.has(tap)) continue;
        Bytes rows = random.bytes(B * shape_of(tap, model).bytes());
        plant_special(rows, shape_of(tap, model).type);
        data.taps[{tap, step, l}] = rows;
      }
    }
  }
  for (int n = 0; n < 5; ++n) {
    TraceData::Block block{random.bytes(model.state_bytes()), random.bytes(model.conv_bytes())};
    plant_special(block.first, state);
    plant_special(block.second, conv);
    (n < 2 ? data.loads : data.snapshots).push_back(block);
  }
  return data;
}

/// Everything but `finish`.
inline void write_contents(TraceWriter& writer, const TraceData& data) {
  for (std::size_t n = 0; n < data.loads.size(); ++n)
    writer.write_load_row(static_cast<std::int64_t>(n), data.loads[n].first, data.loads[n].second);
  for (const StepPlan& plan : data.plans) {
    writer.write_plan(plan);
    for (int l = 0; l < data.header.model.layers(); ++l)
      writer.write_inputs(plan.step, l, data.inputs[static_cast<std::size_t>(plan.step)][static_cast<std::size_t>(l)]);
  }
  for (const auto& [key, rows] : data.taps)
    writer.write_tap(std::get<0>(key), std::get<1>(key), std::get<2>(key), rows);
  for (std::size_t s = 0; s < data.snapshots.size(); ++s)
    writer.write_snapshot(static_cast<std::int64_t>(s), data.snapshots[s].first, data.snapshots[s].second);
}

inline void write_trace_data(const std::string& path, const TraceData& data, bool force = false) {
  const std::unique_ptr<TraceWriter> writer = create_trace(path, data.header, force);
  write_contents(*writer, data);
  writer->finish();
}

inline std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// Reads everything that a trace holds.
inline void read_everything(Trace& trace) {
  StepInputs inputs;
  Bytes first, second;
  for (std::int64_t step = 0; step < trace.steps(); ++step)
    for (int layer = 0; layer < trace.model().layers(); ++layer) {
      trace.plan(step);
      trace.inputs(step, layer, inputs);
      for (std::size_t t = 0; t < kTaps; ++t)
        if (trace.taps(layer).has(static_cast<Tap>(t))) trace.read_tap(static_cast<Tap>(t), step, layer, first);
    }
  for (const Event& event : trace.events())
    if (event.kind == EventKind::load) trace.load_row(event.source, first, second);
  for (const Snapshot& snapshot : trace.snapshots()) trace.read_snapshot(snapshot, first, second);
}

}  // namespace gdnsim::test
