// The noise floor: which rows repeat another, and what is said when they do not agree. Small runs of golden, recorded in memory.
#include <doctest/doctest.h>

#include <gdnsim/digest.hpp>
#include <gdnsim/log.hpp>
#include <gdnsim/repeats.hpp>

#include <numeric>

#include "support/memory_run.hpp"
#include "support/temp_dir.hpp"
#include "support/trace_data.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

/// A row of a step: its block (0: inactive) and the token, which stands for x, a, b and z.
struct Row {
  std::int32_t block = 0;
  int token = 0;
};
struct Batch {
  std::vector<Row> rows;
  Path path = Path::decode;
};

Model tiny_model() {
  Model m;
  m.H = 1, m.HV = 2, m.K = 4, m.V = 6, m.W = 4, m.scale = 0.5f, m.num_blocks = 7, m.norm_eps = 1e-6f;
  m.layer_ids = {0, 3};
  return m;
}

/// Finite words between -2 and 2 of the token's own.
Bytes token_words(int token, int layer, unsigned what, std::int64_t count) {
  Random random(static_cast<std::uint64_t>(token * 64 + layer * 8) + what);
  Bytes words = random.bytes(static_cast<std::size_t>(count) * 2);
  for (std::size_t i = 1; i < words.size(); i += 2) words[i] = (words[i] & std::byte{0x80}) | std::byte{0x3F};
  return words;
}

void append(Bytes& to, const Bytes& words) { to.insert(to.end(), words.begin(), words.end()); }

/// A stream of these launches; load rows 0 to 2 are three different contents, 3 is the same as 0.
MemoryStream make_stream(const std::vector<Batch>& launches, const std::vector<Event>& events) {
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
const std::vector<Batch> kTwice = {{{{1, 10}, {2, 20}, {0, 1}}}, {{{1, 11}, {2, 21}, {0, 1}}},
                                   {{{1, 12}, {2, 22}, {0, 1}}}, {{{3, 10}, {2, 20}, {0, 2}}},
                                   {{{3, 11}, {2, 21}, {0, 2}}}, {{{3, 12}, {2, 22}, {0, 2}}}};
const std::vector<Event> kLoads = {{0, -1, 1, EventKind::load, 0},
                                   {0, -1, 2, EventKind::load, 1},
                                   {3, -1, 3, EventKind::load, 3},
                                   {3, -1, 2, EventKind::load, 1}};
const TapSet kAllTaps = {Tap::conv_acc, Tap::conv_out, Tap::beta, Tap::u, Tap::core_out, Tap::norm_out};

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

std::vector<Batch> changed(std::size_t step, const Batch& launch) {
  std::vector<Batch> launches = kTwice;
  launches[step] = launch;
  return launches;
}

std::uint64_t elements_of(const Model& m) {
  std::uint64_t sum = 0;
  for (Tap tap : {Tap::conv_acc, Tap::conv_out, Tap::beta, Tap::u, Tap::core_out, Tap::norm_out})
    sum += static_cast<std::uint64_t>(shape_of(tap, m).elements());
  return sum;
}

}  // namespace

TEST_CASE("repeats: a clean run that repeats three steps") {
  Run run(kTwice);
  const RepeatCheck check = run.check();
  const Model& m = run.stream.model_;
  CHECK(check.repeats == 12);  // 2 layers, 3 steps, 2 rows
  CHECK(check.same_batch == 12);
  CHECK(check.snapshots == 4);
  CHECK(check.compared == 12 * elements_of(m) + 4 * static_cast<std::uint64_t>(m.state_elements() + m.conv_elements()));
  CHECK(check.differing == 0);
  CHECK(check.forgotten == 0);
  CHECK_FALSE(check.first.has_value());
  CHECK_FALSE(find_unrepeatable(run.stream, run.recording, {}).has_value());
}

TEST_CASE("repeats: one bit that differs, in each tap") {
  for (Tap tap : {Tap::conv_acc, Tap::conv_out, Tap::beta, Tap::u, Tap::core_out, Tap::norm_out}) {
    CAPTURE(name_of(tap));
    Run run(kTwice);
    const std::size_t element = tap == Tap::beta ? 1 : 7;
    const TapShape shape = shape_of(tap, run.stream.model_);
    run.flip(tap, 4, 1, 0, element);
    run.flip(Tap::norm_out, 5, 1, 0, 3);  // later
    const RepeatCheck check = run.check();
    CHECK(check.differing == 2);
    REQUIRE(check.first.has_value());
    const Repeat& first = *check.first;
    CHECK(first.first == RepeatPlace{1, 0, 1});
    CHECK(first.second == RepeatPlace{4, 0, 3});
    CHECK(first.layer == 1);
    CHECK(name_of(first.tap) == name_of(tap));
    CHECK(first.same_batch);
    const bool conv = tap == Tap::conv_acc || tap == Tap::conv_out;
    CHECK(first.head == (conv ? -1 : static_cast<std::int64_t>(element) / shape.per_head));
    CHECK(first.element == (conv ? 7 : static_cast<std::int64_t>(element) % shape.per_head));
    CHECK(first.type == shape.type);
    CHECK((first.first_word ^ first.second_word) == 1);
    CHECK(first.second_word == word_at(shape.type, run.recording.at(tap, 4, 1), element));
    CHECK(find_unrepeatable(run.stream, run.recording, {})->second == first.second);
  }
}

TEST_CASE("repeats: a state that differs") {
  Run run(kTwice);
  for (const Snapshot& snapshot : run.recording.all_snapshots)
    if (snapshot.step == 5 && snapshot.layer == 0 && (snapshot.block == 3 || snapshot.block == 4))
      run.recording.blocks[static_cast<std::size_t>(snapshot.at)].first[4 * 30 + 1] ^= std::byte{8};
  const RepeatCheck check = run.check();
  CHECK(check.differing == 1);  // nothing is said of block 4, which no row wrote
  REQUIRE(check.first.has_value());
  CHECK(check.first->tap == Tap::state);
  CHECK(check.first->first == RepeatPlace{2, 0, 1});
  CHECK(check.first->second == RepeatPlace{5, 0, 3});
  CHECK(check.first->head == 1);
  CHECK(check.first->element == 6);
  CHECK((check.first->first_word ^ check.first->second_word) == 0x800u);
}

TEST_CASE("repeats: other rows around make it another batch, and so do other places") {
  for (const Batch& other :
       {Batch{{{3, 10}, {2, 29}, {0, 1}}}, Batch{{{2, 20}, {3, 10}, {0, 1}}}, Batch{{{3, 10}, {0, 1}, {2, 20}}}}) {
    Run run(changed(3, other));
    const bool moved = other.rows[1].token != 29;
    RepeatCheck check = run.check();
    CHECK(check.repeats == (moved ? 12 : 6));
    CHECK(check.same_batch == 0);  // what comes after another batch may depend on it
    CHECK_FALSE(check.first.has_value());
    run.flip(Tap::core_out, 5, 0, 0, 2);
    check = run.check();
    REQUIRE(check.first.has_value());
    CHECK(check.first->second == RepeatPlace{5, 0, 3});
    CHECK_FALSE(check.first->same_batch);
  }
}

TEST_CASE("repeats: a launch that had fewer rows is another batch") {
  Run run(kTwice);
  run.stream.plans[5].present = 2;  // row 2, inactive in any case, was not there
  CHECK(run.check().repeats == 12);
  CHECK(run.check().same_batch == 8);
}

TEST_CASE("repeats: a launch of more tokens is another, and so is a mixed step whose tokens nobody knows") {
  const auto same_launches = [](Path path, std::int64_t tokens, std::int64_t later) {
    std::vector<Batch> launches = kTwice;
    for (Batch& launch : launches) launch.path = path;
    Run run(launches);
    for (std::size_t step = 0; step < 6; ++step) run.stream.plans[step].launch_tokens = tokens;
    run.stream.plans[4].launch_tokens = later;
    const RepeatCheck check = run.check();
    CHECK(check.repeats == 12);
    return check.same_batch;
  };
  for (const Path path : {Path::decode, Path::mixed}) {
    CHECK(same_launches(path, 3, 3) == 12);
    CHECK(same_launches(path, 3, 3000) == 4);  // and what comes after it
    CHECK(same_launches(path, 3000, 3000) == 12);
    CHECK(same_launches(path, 3, 0) == 4);
  }
  CHECK(same_launches(Path::decode, 0, 0) == 12);  // nothing but its rows
  CHECK(same_launches(Path::mixed, 0, 0) == 0);
}

TEST_CASE("repeats: noise is reported before what may depend on the batch") {
  std::vector<Batch> launches = kTwice;
  for (std::size_t step = 0; step < 3; ++step) launches.push_back(kTwice[step]);  // a third time
  launches[3].rows[1].token = 29;
  std::vector<Event> events = kLoads;
  events.push_back({6, -1, 1, EventKind::load, 0});
  events.push_back({6, -1, 2, EventKind::load, 1});
  Run run(launches, events);
  run.flip(Tap::u, 3, 0, 0, 1);         // another batch
  run.flip(Tap::norm_out, 7, 1, 1, 5);  // the same
  const RepeatCheck check = run.check();
  CHECK(check.differing == 2);
  REQUIRE(check.first.has_value());
  CHECK(check.first->same_batch);
  CHECK(check.first->first == RepeatPlace{1, 1, 2});
  CHECK(check.first->second == RepeatPlace{7, 1, 2});
}

TEST_CASE("repeats: of two earlier rows the one in the same batch is compared with") {
  std::vector<Batch> launches = kTwice;
  for (std::size_t step = 3; step < 6; ++step) launches.push_back(kTwice[step]);
  for (std::size_t step : {3u, 6u}) launches[step].rows[1].token = 29;
  std::vector<Event> events = kLoads;
  events.push_back({6, -1, 3, EventKind::load, 0});
  events.push_back({6, -1, 2, EventKind::load, 1});
  Run run(launches, events);
  run.flip(Tap::core_out, 6, 0, 0, 1);
  const RepeatCheck check = run.check();
  REQUIRE(check.first.has_value());
  CHECK(check.first->same_batch);
  CHECK(check.first->first == RepeatPlace{3, 0, 3});
}

TEST_CASE("repeats: another path, input or history is no repeat") {
  SUBCASE("path") {
    const RepeatCheck check = Run(changed(3, {kTwice[3].rows, Path::mixed})).check();
    CHECK(check.repeats == 0);
    CHECK(check.compared == 0);
  }
  SUBCASE("another token first") {
    CHECK(Run(changed(3, {{{3, 19}, {2, 20}, {0, 1}}})).check().repeats == 6);  // the other row's
  }
  SUBCASE("another token last") { CHECK(Run(changed(5, {{{3, 19}, {2, 22}, {0, 1}}})).check().repeats == 10); }
  SUBCASE("another load") {
    std::vector<Event> events = kLoads;
    events[2].source = 2;
    CHECK(Run(kTwice, events).check().repeats == 6);
  }
  SUBCASE("zeroed between") {
    std::vector<Event> events = kLoads;
    events.push_back({5, 1, 3, EventKind::zero, -1});
    CHECK(Run(kTwice, events).check().repeats == 11);
  }
  SUBCASE("an opaque step between") {
    std::vector<Batch> launches = kTwice;
    launches.insert(launches.begin() + 4, Batch{{{3, 11}, {0, 1}, {0, 1}}, Path::opaque});
    CHECK(Run(launches).check().repeats == 2 * (2 + 1 + 1));  // row 1, whose block it does not name, goes on
  }
  SUBCASE("a step missing for the other sequence") {
    // row 1 sits out step 4: its step 5 is no repeat
    CHECK(Run(changed(4, {{{3, 11}, {0, 1}, {0, 1}}})).check().repeats == 8);
  }
}

TEST_CASE("repeats: z alone differs, so the norm is no repeat but all before it and the states after are") {
  Run run(kTwice);
  StepInputs& inputs = run.stream.at(5, 0);
  inputs.z[0] ^= std::byte{1};
  RepeatCheck check = run.check();
  const std::uint64_t norm = static_cast<std::uint64_t>(shape_of(Tap::norm_out, run.stream.model_).elements());
  CHECK(check.repeats == 12);
  CHECK(check.other_z == 1);
  CHECK(check.same_batch == 10);  // the row beside it was in another launch then
  CHECK(check.snapshots == 4);
  CHECK(check.compared == Run(kTwice).check().compared - norm);
  run.flip(Tap::norm_out, 5, 0, 0, 2);
  CHECK(run.check().differing == 0);
  run.flip(Tap::core_out, 5, 0, 0, 2);
  check = run.check();
  CHECK(check.differing == 1);
  REQUIRE(check.first.has_value());
  CHECK(check.first->second == RepeatPlace{5, 0, 3});
  CHECK_FALSE(check.first->same_batch);
}

TEST_CASE("repeats: each input counts") {
  for (Bytes StepInputs::*input : {&StepInputs::mixed_qkv, &StepInputs::a, &StepInputs::b}) {
    Run run(kTwice);
    (run.stream.at(5, 0).*input)[0] ^= std::byte{1};
    CHECK(run.check().repeats == 11);
    CHECK(run.check().snapshots == 3);
  }
}

TEST_CASE("repeats: a block that no event started is not known to hold zeros") {
  const std::vector<Event> none, zeroed = {{0, -1, 1, EventKind::zero, -1},
                                           {0, -1, 2, EventKind::zero, -1},
                                           {3, -1, 3, EventKind::zero, -1},
                                           {3, -1, 2, EventKind::zero, -1}};
  std::vector<Batch> launches = kTwice;
  for (std::size_t step = 3; step < 6; ++step) launches[step].rows[1].block = 4;
  Run run(launches, none);
  CHECK(run.check().repeats == 0);
  CHECK(run.stream.inputs_read == 0);
  CHECK(Run(kTwice, zeroed).check().repeats == 12);
}

TEST_CASE("repeats: a copied block repeats its source, in the same step too") {
  const std::vector<Batch> launches = {{{{1, 10}, {0, 1}}}, {{{1, 11}, {2, 11}}}, {{{1, 12}, {2, 13}}}};
  const std::vector<Event> events = {{1, -1, 2, EventKind::copy, 1}};  // what block 1 began with does not matter
  Run run(launches, events);
  RepeatCheck check = run.check();
  CHECK(check.repeats == 2);
  CHECK(check.same_batch == 0);
  CHECK_FALSE(check.first.has_value());
  run.flip(Tap::u, 1, 1, 1, 0);
  check = run.check();
  REQUIRE(check.first.has_value());
  CHECK(check.first->first == RepeatPlace{1, 0, 1});
  CHECK(check.first->second == RepeatPlace{1, 1, 2});
}

TEST_CASE("repeats: without two equal starts nothing is read") {
  std::vector<Event> events = kLoads;
  events[2].source = 2;
  events[3] = {3, -1, 2, EventKind::zero, -1};
  Run run(kTwice, events);
  CHECK(run.check().repeats == 0);
  CHECK(run.stream.inputs_read == 0);
  CHECK(Run(kTwice).check().repeats > 0);
}

TEST_CASE("repeats: slices and the window") {
  Run run(kTwice);
  CHECK(run.check({{1}, -1, -1}).repeats == 6);
  CHECK(run.check({{}, 0, 5}).repeats == 8);
  CHECK(run.check({{}, 1, -1}).repeats == 8);  // step 3 repeats a step outside
  CHECK(run.check({{}, 3, -1}).repeats == 0);
  const RepeatCheck small = run.check({}, 1);
  CHECK(small.repeats == 0);
  CHECK(small.forgotten > 0);
  CHECK(run.check({}, 6).repeats == 12);  // 3 steps of 2 rows
}

TEST_CASE("repeats: a log's blocks start from zeros") {
  std::vector<Batch> launches = kTwice;
  for (std::size_t step = 3; step < 6; ++step) launches[step].rows[1].block = 4;
  MemoryStream stream = make_stream(launches, {});
  TempDir dir;
  LogHeader header;
  header.model = stream.model();
  header.layers = {1};
  header.contracts = contract_set("golden");
  header.source = stream.source();
  header.steps = stream.steps();
  header.rows = stream.rows();
  header.plans = stream.plans;
  const auto backend = make_golden({.threads = 1});
  {
    const auto writer = create_log(dir / "log.h5", header, {});
    const auto pool = backend->make_pool(stream.model(), header.layers);
    simulate({stream, *backend, header.contracts, header.layers, stream.steps(), header.taps}, *pool, *writer);
    writer->close();
  }
  const auto log = open_log(dir / "log.h5");
  const RepeatCheck check = check_repeats(stream, *log, {});
  CHECK(check.repeats == 6);
  CHECK(check.snapshots == 6);
  CHECK(check.same_batch == 6);
  CHECK_FALSE(check.first.has_value());
}
