// The noise floor: which launches are the same, and which of two earlier rows is compared with.
#include <doctest/doctest.h>

#include <gdnsim/repeats.hpp>

#include "support/repeat_run.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

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
