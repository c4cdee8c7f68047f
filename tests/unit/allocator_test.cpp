// Block allocators: the order in which each policy gives blocks out, and that none but modulo gives one out twice.
#include <gdnsim/error.hpp>
#include <gdnsim/lifecycle.hpp>
#include <gdnsim/recipe.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include <doctest/doctest.h>

#include "synth/allocator.hpp"
#include "synth/plan.hpp"

using namespace gdnsim;

namespace {

using Blocks = std::vector<std::int32_t>;

std::size_t first(std::size_t) { return 0; }

Blocks take(Allocator& allocator, int count) {
  Blocks blocks;
  for (int i = 0; i < count; ++i) blocks.push_back(allocator.take(i, 0, first));
  return blocks;
}

Recipe crowded(Allocation policy) {
  Recipe r;
  r.seed = 77;
  r.steps = 600;
  r.rows = 4;
  r.model.H = 1, r.model.HV = 2, r.model.K = 4, r.model.V = 4, r.model.W = 4, r.model.scale = 0.5f;
  r.model.num_blocks = 14;
  r.model.layer_ids = {0, 1};
  r.schedule.length = Range{2, 9};
  r.schedule.arrival = 0.6;
  r.schedule.preempt = 0.1;
  r.schedule.fork = 0.3;
  r.schedule.allocator = policy;
  r.schedule.speculative = {2, {}, 0.6, 0.3};
  return r;
}

std::string refusal(const Recipe& recipe) {
  try {
    (void)make_recipe_stream(recipe);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("lifo gives out what came back last") {
  Allocator a(Allocation::lifo, 1, 5, 1);
  CHECK(a.free() == Blocks{1, 2, 3, 4, 5});
  CHECK(take(a, 3) == Blocks{1, 2, 3});
  a.give(2), a.give(1);
  CHECK(a.free() == Blocks{1, 2, 4, 5});
  CHECK(take(a, 4) == Blocks{1, 2, 4, 5});
  CHECK_FALSE(a.has(1));
}

TEST_CASE("fifo gives out what has been free longest") {
  Allocator a(Allocation::fifo, 1, 5, 1);
  CHECK(take(a, 3) == Blocks{1, 2, 3});
  a.give(2), a.give(1);
  CHECK(a.free() == Blocks{4, 5, 2, 1});
  CHECK(a.has(4));
  CHECK_FALSE(a.has(5));
  CHECK(take(a, 4) == Blocks{4, 5, 2, 1});
}

TEST_CASE("fifo over many rounds keeps its order") {
  Allocator a(Allocation::fifo, 0, 7, 1);
  Blocks expected{0, 1, 2, 3, 4, 5, 6};
  for (int round = 0; round < 100; ++round) {
    const std::int32_t block = a.take(0, 0, first);
    CHECK(block == expected.front());
    std::rotate(expected.begin(), expected.begin() + 1, expected.end());
    a.give(block);
    CHECK(a.free() == expected);
  }
}

TEST_CASE("drawn takes the block that was picked") {
  Allocator a(Allocation::drawn, 1, 4, 1);
  CHECK(a.take(0, 0, [](std::size_t count) { return count - 2; }) == 3);
  CHECK(a.free() == Blocks{1, 2, 4});
}

TEST_CASE("modulo asks nobody") {
  Allocator a(Allocation::modulo, 1, 7, 3);  // two sequences of three blocks, one left over
  CHECK(a.take(4, 0, first) == 1);
  CHECK(a.take(5, 2, first) == 6);
  CHECK(a.take(6, 0, first) == 1);
  CHECK(a.has(100));
}

TEST_CASE("a crowded pool under every policy, and the one that cannot be") {
  for (auto preempt :
       {ScheduleRecipe::Preempt::swap, ScheduleRecipe::Preempt::load, ScheduleRecipe::Preempt::recompute})
    for (auto policy : {Allocation::drawn, Allocation::lifo, Allocation::fifo}) {
      CAPTURE(static_cast<int>(preempt));
      CAPTURE(static_cast<int>(policy));
      Recipe r = crowded(policy);
      r.schedule.preempt_by = preempt;
      CHECK(refusal(r) == "accepted");  // the stream was held to Lifecycle's rules on the way
      const auto stream = make_recipe_stream(r);
      CHECK(stream->version() == 2);
      std::set<EventWhy> whys;
      for (const Event& event : stream->events()) whys.insert(event.why);
      CHECK(whys.size() == (policy == Allocation::drawn ? 1 : 5));
    }
  Recipe r = crowded(Allocation::modulo);
  r.schedule.preempt = 0;
  const std::string line = refusal(r);
  CAPTURE(line);
  // "recipe: events[40]: step 9: allocate of block 4: to sequence 5, but block 4 is allocated to sequence 1 since step 0"
  CHECK(line.find("allocate of block") != std::string::npos);
  const std::size_t to = line.find("to sequence "), since = line.find("is allocated to sequence ");
  REQUIRE(to != std::string::npos);
  REQUIRE(since != std::string::npos);
  const int second = std::stoi(line.substr(to + 12)), first_one = std::stoi(line.substr(since + 25));
  CHECK(second > first_one);
  CHECK(second % 4 == first_one % 4);  // 13 blocks, three each
}

TEST_CASE("accepted candidates are the tokens of a plain run, rejected ones are others") {
  Recipe r = crowded(Allocation::lifo);
  r.schedule.preempt_by = ScheduleRecipe::Preempt::recompute;
  r.schedule.fork = 0;
  const Schedule schedule = make_schedule(r);
  std::map<std::int64_t, std::uint32_t> next;  // by sequence: its next token, and how many a launch kept
  int rejected = 0, kept = 0, again = 0;
  for (std::int64_t step = 0; step < r.steps; ++step)
    for (int row = 0; row < r.rows; ++row) {
      const auto at = static_cast<std::size_t>(step * r.rows + row);
      if (schedule.sequence[at] < 0) continue;
      const Token& token = schedule.token[at];
      std::uint32_t& position = next[schedule.sequence[at]];
      CHECK(token.sequence == schedule.sequence[at]);
      if (token.position >> 24 != 0) {
        CHECK(token.position == rejected_position(schedule.draft[static_cast<std::size_t>(step)], step));
        ++rejected;
      } else if (token.position == 0 && position > 0) {
        position = 1, ++again;  // it was away, and runs all over again
      } else {
        CHECK(token.position == position);
        ++position, ++kept;
      }
    }
  CHECK(rejected > 200);
  CHECK(kept > 500);
  CHECK(again > 20);
}
