// The noise floor: which rows repeat another, and what is said when they do not agree.
#include <doctest/doctest.h>

#include <gdnsim/digest.hpp>
#include <gdnsim/log.hpp>
#include <gdnsim/repeats.hpp>

#include "support/repeat_run.hpp"
#include "support/temp_dir.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

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

TEST_CASE("repeats: at the window's edge the same z is not taken for another") {
  // One row from the same load again and again, each in a launch of its own. Of two rows the window holds six keys: the row
  // with the first z leaves it, the second comes with a z that is remembered still, and is then forgotten with its z.
  constexpr std::size_t kSteps = 5, kFiller = 2;
  std::vector<Batch> launches(kSteps, Batch{{{1, 10}}});
  launches[kFiller].rows[0].token = 30;
  std::vector<Event> events;
  for (std::size_t step = 0; step < kSteps; ++step)
    events.push_back({static_cast<std::int64_t>(step), -1, 1, EventKind::load, 0});
  Run run(launches, events);
  for (std::size_t step = 0; step < kSteps; ++step) run.stream.plans[step].launch_tokens = 1 + static_cast<int>(step);
  run.stream.at(0, 0).z[0] ^= std::byte{1};
  RepeatCheck check = run.check({{0}, -1, -1}, 2);
  CHECK(check.repeats == 3);
  CHECK(check.other_z == 1);  // step 1
  CHECK(check.same_batch == 0);
  run.flip(Tap::norm_out, 4, 0, 0, 2);
  check = run.check({{0}, -1, -1}, 2);
  CHECK(check.differing == 1);
  REQUIRE(check.first.has_value());
  CHECK(check.first->first == RepeatPlace{3, 0, 1});
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
