// Small runs of golden that repeat themselves, recorded in memory: launches by the tokens of their rows.
#pragma once

#include <cstring>
#include <vector>

#include "gdnsim/repeats.hpp"
#include "support/memory_run.hpp"
#include "support/trace_data.hpp"

namespace gdnsim::test {

/// A row of a step: its block (0: inactive) and the token, which stands for x, a, b and z.
struct Row {
  std::int32_t block = 0;
  int token = 0;
};
struct Batch {
  std::vector<Row> rows;
  Path path = Path::decode;
};

inline Model tiny_model() {
  Model m;
  m.H = 1, m.HV = 2, m.K = 4, m.V = 6, m.W = 4, m.scale = 0.5f, m.num_blocks = 7, m.norm_eps = 1e-6f;
  m.layer_ids = {0, 3};
  return m;
}

/// Finite words between -2 and 2 of the token's own.
inline Bytes token_words(int token, int layer, unsigned what, std::int64_t count) {
  Random random(static_cast<std::uint64_t>(token * 64 + layer * 8) + what);
  Bytes words = random.bytes(static_cast<std::size_t>(count) * 2);
  for (std::size_t i = 1; i < words.size(); i += 2) words[i] = (words[i] & std::byte{0x80}) | std::byte{0x3F};
  return words;
}

inline void append(Bytes& to, const Bytes& words) { to.insert(to.end(), words.begin(), words.end()); }

/// A stream of these launches; load rows 0 to 2 are three different contents, 3 is the same as 0.
inline MemoryStream make_stream(const std::vector<Batch>& launches, const std::vector<Event>& events) {
  MemoryStream stream;
  const Model m = stream.model_ = tiny_model();
  Random random(5);
  for (int layer = 0; layer < m.layers(); ++layer) {
    stream.all_params.push_back({{-1.f, -0.5f}, {0.25f, -0.5f}, {}, {}, {}});
    stream.all_params.back().conv_weight = token_words(900, layer, 0, m.dim() * m.W);
    stream.all_params.back().norm_weight = token_words(900, layer, 1, m.V);
  }
  for (std::int32_t load = 0; load < 4; ++load) {
    Bytes recurrent(m.state_bytes());
    for (std::size_t i = 0; i < recurrent.size(); i += 4) {
      const float value = static_cast<float>(static_cast<int>(i * 7 + static_cast<std::size_t>(load % 3) * 5) % 13) - 6;
      std::memcpy(recurrent.data() + i, &value, 4);
    }
    stream.load_rows[load] = {recurrent, token_words(800 + load % 3, 0, 2, m.conv_elements())};
  }
  stream.all_events = events;
  for (std::size_t step = 0; step < launches.size(); ++step) {
    std::vector<std::int32_t> index;
    std::vector<std::int64_t> sequence;
    stream.all_inputs.emplace_back(2);
    for (const Row& row : launches[step].rows) {
      index.push_back(row.block);
      sequence.push_back(row.block > 0 ? row.block : -1);
      for (int layer = 0; layer < 2; ++layer) {
        StepInputs& inputs = stream.at(static_cast<std::int64_t>(step), layer);
        append(inputs.mixed_qkv, token_words(row.token, layer, 0, m.dim()));
        append(inputs.a, token_words(row.token, layer, 1, m.HV));
        append(inputs.b, token_words(row.token, layer, 2, m.HV));
        append(inputs.z, token_words(row.token, layer, 3, m.HV * m.V));
      }
    }
    stream.plans.push_back(make_plan(m, static_cast<std::int64_t>(step), launches[step].path, index, sequence,
                                     static_cast<int>(index.size()), "made up"));
  }
  return stream;
}

/// Two sequences over three steps, and the same once more: from the same loads, the first in another block.
inline const std::vector<Batch> kTwice = {{{{1, 10}, {2, 20}, {0, 1}}}, {{{1, 11}, {2, 21}, {0, 1}}},
                                          {{{1, 12}, {2, 22}, {0, 1}}}, {{{3, 10}, {2, 20}, {0, 2}}},
                                          {{{3, 11}, {2, 21}, {0, 2}}}, {{{3, 12}, {2, 22}, {0, 2}}}};
inline const std::vector<Event> kLoads = {{0, -1, 1, EventKind::load, 0},
                                          {0, -1, 2, EventKind::load, 1},
                                          {3, -1, 3, EventKind::load, 3},
                                          {3, -1, 2, EventKind::load, 1}};
inline const TapSet kAllTaps = {Tap::conv_acc, Tap::conv_out, Tap::beta, Tap::u, Tap::core_out, Tap::norm_out};

struct Run {
  explicit Run(const std::vector<Batch>& launches, const std::vector<Event>& events = kLoads)
      : stream(make_stream(launches, events)),
        recording(record_in_memory(stream, *make_golden({.threads = 1}), contract_set("golden"), kAllTaps, {2, 5})) {
    stream.inputs_read = 0;
  }
  RepeatCheck check(const Slice& slice = {}, std::size_t window = kRepeatWindow) {
    return check_repeats(stream, recording, slice, window);
  }
  /// Flips one bit of a recorded tap.
  void flip(Tap tap, std::int64_t step, int layer, int row, std::size_t element) {
    const TapShape shape = shape_of(tap, recording.model_);
    recording.at(tap, step, layer)[static_cast<std::size_t>(row) * shape.bytes() + element * size_of(shape.type)] ^=
        std::byte{1};
  }
  MemoryStream stream;
  MemoryRecording recording;
};

/// kTwice with another launch at this step.
inline std::vector<Batch> changed(std::size_t step, const Batch& launch) {
  std::vector<Batch> launches = kTwice;
  launches[step] = launch;
  return launches;
}

/// Elements of all these taps of one row.
inline std::uint64_t elements_of(const Model& m) {
  std::uint64_t sum = 0;
  for (Tap tap : {Tap::conv_acc, Tap::conv_out, Tap::beta, Tap::u, Tap::core_out, Tap::norm_out})
    sum += static_cast<std::uint64_t>(shape_of(tap, m).elements());
  return sum;
}

}  // namespace gdnsim::test
