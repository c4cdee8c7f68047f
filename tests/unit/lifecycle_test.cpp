// Whose a block is and what it stands for: every refusal with its line, each beside the same stream done right.
#include <doctest/doctest.h>

#include <gdnsim/block_history.hpp>
#include <gdnsim/error.hpp>
#include <gdnsim/lifecycle.hpp>

#include "support/fake_run.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

struct Row {
  std::int32_t index = 0;
  std::int64_t sequence = -1;
  std::int32_t source = -1, accepted = 0;
};

/// Plans and events put together by a test.
class Script final : public Stream {
 public:
  explicit Script(int version = 2) : version_(version) {}
  const Model& model() const override { return model_; }
  int version() const override { return version_; }
  const LayerParams& params(int) const override { return params_; }
  std::int64_t steps() const override { return static_cast<std::int64_t>(plans.size()); }
  int rows() const override { return 2; }
  StepPlan plan(std::int64_t step) const override { return plans[static_cast<std::size_t>(step)]; }
  std::span<const Event> events() const override { return all; }
  bool has_z(int) const override { return false; }
  void inputs(std::int64_t, int, StepInputs&) override {}
  void load_row(std::int32_t, Bytes&, Bytes&) override {}
  std::string source() override { return "script"; }

  /// Before the next step.
  Script& event(EventKind kind, std::int32_t block, std::int64_t sequence = -1, std::int32_t source = -1) {
    all.push_back({static_cast<std::int32_t>(plans.size()), -1, block, kind, source, sequence, EventWhy::none});
    return *this;
  }
  Script& allocate(std::int32_t block, std::int64_t sequence) {
    return event(EventKind::allocate, block, sequence).event(EventKind::zero, block, sequence);
  }
  Script& step(Row a, Row b = {}, int draft = 0, bool last = true) {
    const Path path = draft > 0 || !last ? Path::mixed : Path::decode;
    plans.push_back(make_plan(model_, steps(), path, std::vector{a.index, b.index}, std::vector{a.sequence, b.sequence},
                              2, "script",
                              {draft, last, sources = {a.source, b.source}, counts = {a.accepted, b.accepted}}));
    return *this;
  }
  std::vector<StepPlan> plans;
  std::vector<Event> all;

 private:
  std::vector<std::int32_t> sources, counts;
  Model model_ = fake_model();
  LayerParams params_;
  int version_;
};

std::string refusal(const Script& script) {
  try {
    require_life(script, "s");
  } catch (const Error& found) {
    return found.what();
  }
  return "";
}

/// Sequence 7 with columns 1, 2 and 3: one token on block 1, then a launch of three from it, all in their own blocks.
Script speculative() {
  Script script;
  for (std::int32_t block : {1, 2, 3, 4}) script.event(EventKind::allocate, block, 7);
  script.event(EventKind::zero, 4, 7).step({4, 7});
  script.step({1, 7, 4, 1}, {}, 0, false).step({2, 7, 1}, {}, 1, false).step({3, 7, 2}, {}, 2, true);
  return script;
}

}  // namespace

TEST_CASE("a life that is in order") {
  Script script;
  script.allocate(1, 7).step({1, 7}).allocate(2, 9).step({1, 7}, {2, 9});
  script.event(EventKind::allocate, 3, 8)
      .event(EventKind::copy, 3, 8, 2)
      .event(EventKind::free, 2, 9)
      .step({1, 7}, {3, 8});
  script.allocate(2, 10).step({2, 10}, {3, 8});
  CHECK(refusal(script) == "");
  Lifecycle life(script, "s");
  life.go_to(3);
  CHECK(life.describe(1) == "block 1: sequence 7, recurrent at position 3, conv at position 3");
  CHECK(life.describe(3) == "block 3: sequence 8, recurrent at position 2, conv at position 2");
  CHECK(life.describe(4) == "block 4: as the pool began");
  CHECK(life.last_writer(3) == "row 1 of step 2, sequence 8");
  CHECK(life.last_writer(2) == "row 1 of step 1, sequence 9 (freed at step 2)");
  CHECK(life.last_writer(4) == "nobody");
  life.copy_conv(1, 3);
  CHECK(life.describe(3) == "block 3: recurrent of sequence 8 at position 2, conv of sequence 7 at position 3");
}

TEST_CASE("a fork before its first token says whose state it holds") {
  Script script;
  script.allocate(1, 7).step({1, 7}).event(EventKind::allocate, 3, 8).event(EventKind::copy, 3, 8, 1).step({1, 7});
  Lifecycle life(script, "s");
  life.go_to(1);
  CHECK(life.last_writer(3) == "nobody");
  life.go_into(1);
  CHECK(life.last_writer(3) == "event 3 (copy of block 1) at step 1");
  life.go_to(2);
  CHECK(life.describe(3) ==
        "block 3 (allocated to sequence 8): sequence 7, recurrent at position 1, conv at position 1");
  CHECK(life.last_writer(3) == "event 3 (copy of block 1) at step 1");
}

TEST_CASE("each layer has a life of its own where events name layers") {
  Script script;
  script.step({1, 7}).event(EventKind::zero, 1, 7).event(EventKind::copy, 2, 7, 1).step({3, 9});
  script.all[0].layer = 1, script.all[1].layer = 0;
  const auto after = [&](int layer) {
    Lifecycle life(script, "s", layer);
    life.go_to(2);
    return life.last_writer(1) + "; " + life.last_writer(2) + "; " + life.describe(2);
  };
  CHECK(after(0) ==
        "row 0 of step 0, sequence 7; event 1 (copy of block 1) at step 1; "
        "block 2: sequence 7, recurrent at position 1, conv at position 1");
  CHECK(after(1) == "event 0 (zero) at step 1; nobody; block 2: as the pool began");
  CHECK(after(2) == "row 0 of step 0, sequence 7; nobody; block 2: as the pool began");
  // What cannot be is looked for in each: a reset that only layer 0 made.
  Script reset;
  reset.step({1, 7}).step({1, 7, -1, 1}).event(EventKind::zero, 2, 7).step({2, 7, -1, 1});
  CHECK(refusal(reset) == "");  // a sequence whose block was filled starts again
  reset.all[0].layer = 0;
  CHECK(refusal(reset) ==
        "s: step 2, row 0 (sequence 7): goes on from block 2: as the pool began: expected block 1, where the "
        "launch at step 1 left token 1 of 1");
}

namespace {

std::vector<std::string> history_of(const Script& script) {
  std::vector<std::string> lines;
  for (const Tenure& tenure : block_history(script)) lines.push_back(describe(tenure, script.events()));
  return lines;
}
using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("who held each block, where the stream says so") {
  Script script;
  script.allocate(1, 7).step({1, 7}).allocate(2, 9).step({1, 7}, {2, 9});
  script.event(EventKind::free, 2, 9).event(EventKind::allocate, 3, 8).event(EventKind::copy, 3, 8, 1);
  script.step({1, 7}).allocate(2, 8).step({3, 8}, {2, 8});
  script.all[4].why = EventWhy::finish, script.all[5].why = script.all[6].why = EventWhy::fork;
  CHECK(history_of(script) ==
        Lines{"block 1: sequence 7, steps 0:4: allocated by event 0, zero by event 1, 3 rows in steps 0 to 2",
              "block 2: sequence 9, steps 1:2: allocated by event 2, zero by event 3, 1 row in steps 1 to 1, freed by "
              "event "
              "4 (finish)",
              "block 2: sequence 8, steps 3:4: allocated by event 7, zero by event 8, 1 row in steps 3 to 3",
              "block 3: sequence 8, steps 2:4: allocated by event 5 (fork), copy of block 1 by event 6 (fork), 1 row "
              "in steps "
              "3 to 3"});
}

TEST_CASE("who held each block, where only the rows say so") {
  Script script(1);
  script.event(EventKind::zero, 2).step({2, 7}).step({2, 7}, {3, 8}).event(EventKind::load, 2, -1, 0).step({2, 9});
  script.event(EventKind::free, 2).event(EventKind::zero, 4).step({2, 9}).event(EventKind::zero, 5).step({3, 8});
  script.event(EventKind::free, 5).step({3, 8});
  CHECK(history_of(script) ==
        Lines{"block 2: sequence 7, steps 0:2: zero by event 0, 2 rows in steps 0 to 1",
              "block 2: sequence 9, steps 2:3: load by event 1, 1 row in steps 2 to 2, freed by event 2",
              "block 2: sequence 9, steps 3:6: 1 row in steps 3 to 3",
              "block 3: sequence 8, steps 1:6: 3 rows in steps 1 to 5",
              "block 4: nobody's sequence, steps 3:6: zero by event 3",
              "block 5: nobody's sequence, steps 4:5: zero by event 4, freed by event 5"});
}

TEST_CASE("the null block") {
  CHECK(refusal(Script().step({0, 7})) == "s: step 0: row 0 names the null block 0, but it belongs to sequence 7");
  CHECK(refusal(Script().step({1, 7}, {-1, 8})) ==
        "s: step 0: row 1 names the null block -1, but it belongs to sequence 8");
  CHECK(refusal(Script(1).step({0, 7})) == "");
  CHECK(refusal(Script().step({1, 7}, {0, -1})) == "");
}

TEST_CASE("two rows on one block name both sequences") {
  CHECK_THROWS_WITH_AS(Script().step({2, 7}, {2, 9}),
                       "script: index[0, 1]: rows 0 and 1 both name block 2 in one step: two writers, the result would "
                       "depend on their order (sequences 7 and 9)",
                       Error);
}

TEST_CASE("a sequence has one row in a step") {
  CHECK(refusal(Script().step({1, 7}, {2, 7})) ==
        "s: step 0: rows 0 and 1 both belong to sequence 7: expected one row a step (its candidates are steps of one "
        "launch)");
  // what followed was refused for a count that nobody could have given
  CHECK(refusal(Script().step({1, 7}, {2, 7}).step({1, 7, -1, 1}, {2, 7, -1, 1})).starts_with("s: step 0: rows 0 and"));
  CHECK(refusal(Script().step({1, 7}, {2, 8}).step({1, 7, -1, 1}, {2, 8, -1, 1})) == "");
  CHECK(refusal(Script().step({1}, {2})) == "");  // sequences that are not known
  CHECK(refusal(Script(1).step({1, 7}, {2, 7})) == "");
}

TEST_CASE("whose a block is") {
  CHECK(refusal(Script().allocate(2, 7).step({2, 7}).step({3, 9})) ==
        "s: step 1, row 0 (sequence 9): block 3 is free (it was never allocated)");
  CHECK(refusal(Script().allocate(2, 7).step({2, 7}).step({2, 9})) ==
        "s: step 1, row 0 (sequence 9): block 2 is allocated to sequence 7 since step 0");
  CHECK(refusal(Script().allocate(2, 7).step({2, 7}).event(EventKind::free, 2, 7).step({2, 7})) ==
        "s: step 1, row 0 (sequence 7): block 2 is free (sequence 7 had it until step 1)");
  CHECK(refusal(Script().allocate(2, 7).allocate(3, 9).step({2, 7, 3})) ==
        "s: step 0, row 0 (sequence 7): block 3 is allocated to sequence 9 since step 0, and the row would go on from "
        "it");
  CHECK(refusal(Script().event(EventKind::zero, 2).step({2, 7}).step({2, 9})) == "");  // nobody says whose blocks are
}

TEST_CASE("events that cannot be") {
  CHECK(
      refusal(Script().allocate(2, 7).allocate(2, 9).step({2, 9})) ==
      "s: events[2]: step 0: allocate of block 2: to sequence 9, but block 2 is allocated to sequence 7 since step 0");
  CHECK(refusal(Script().allocate(2, 7).event(EventKind::free, 3).step({2, 7})) ==
        "s: events[2]: step 0: free of block 3: block 3 is free (it was never allocated)");
  CHECK(refusal(Script().allocate(2, 7).event(EventKind::copy, 2, 7, 3).step({2, 7})) ==
        "s: events[2]: step 0: copy of block 2: its source, block 3 is free (it was never allocated)");
  CHECK(refusal(Script().allocate(2, 7).event(EventKind::load, 3, 7, 0).step({2, 7})) ==
        "s: events[2]: step 0: load of block 3: block 3 is free (it was never allocated)");
  CHECK(refusal(Script().allocate(2, 7).event(EventKind::zero, 2, 9).step({2, 7})) ==
        "s: events[2]: step 0: zero of block 2: it is sequence 9's event, but block 2 is allocated to sequence 7 since "
        "step 0");
  Script script;
  script.allocate(2, 7).step({2, 7});
  script.all[0].layer = 1;
  CHECK(refusal(script) ==
        "s: events[0]: step 0: allocate of block 2: expected layer -1 (a block is a sequence's in every "
        "layer), found 1");
}

TEST_CASE("launches: each draft goes on from the one before") {
  CHECK(refusal(speculative()) == "");
  Script lone = speculative();
  lone.plans[2].draft = 2;
  CHECK(refusal(lone) == "s: draft[2]: expected 1, the launch goes on, found 2");
  Script begun = speculative();
  begun.plans[1].last_draft = true;
  CHECK(refusal(begun) == "s: draft[2]: expected 0, a launch begins, found 1");
  Script first;  // nothing goes before the first step
  first.step({1, 7}, {}, 1, true).step({2, 7, 1}, {}, 2, true);
  CHECK(refusal(first) == "s: draft[0]: expected 0, a launch begins, found 1");
  Script moved = speculative();
  moved.plans[3].source[0] = 1;
  CHECK(refusal(moved) ==
        "s: step 3, row 0 (sequence 7): draft 2 goes on from block 1: expected block 2, where draft 1 lies");
  Script other = speculative();
  other.plans[2].sequence[0] = 8;
  for (Event& event : other.all) event.sequence = -1;
  CHECK(refusal(other) == "s: step 2, row 0 (sequence 8): draft 0 of this row was sequence 7's");
  Script late = speculative();
  late.plans[1].block[0] = -1, late.plans[1].sequence[0] = -1, late.plans[1].accepted[0] = 0;
  CHECK(refusal(late) == "s: step 2, row 0 (sequence 7): draft 1 of a row that had no draft 0");
  Script within = speculative();
  within.all.push_back({2, -1, 4, EventKind::zero, -1, 7, EventWhy::none});
  CHECK(refusal(within) ==
        "s: events[5]: step 2 is within the launch that began at step 1: nothing can happen to a block there");
}

TEST_CASE("launches: the next goes on from the accepted draft") {
  for (std::int32_t accepted = 1; accepted <= 3; ++accepted)
    CHECK(refusal(speculative().step({4, 7, accepted, accepted})) == "");
  CHECK(refusal(speculative().step({4, 7, 1, 4})) ==
        "s: step 4, row 0 (sequence 7): accepted 4: expected 1..3, the tokens of its launch at step 1");
  CHECK(refusal(speculative().step({4, 7, 1, 0})) ==
        "s: step 4, row 0 (sequence 7): accepted 0: expected 1..3, the tokens of its launch at step 1");
  // Accepted 2, but it goes on from the state after 1: what #40738 did.
  CHECK(refusal(speculative().step({4, 7, 1, 2})) ==
        "s: step 4, row 0 (sequence 7): goes on from block 1: sequence 7, recurrent at position 2, conv at position 2: "
        "expected block 2, where the launch at step 1 left token 2 of 3");
  // The accepted state was copied to the first column: the same content, whatever the block.
  CHECK(refusal(speculative().event(EventKind::copy, 1, 7, 2).step({1, 7, -1, 2})) == "");
  CHECK(refusal(speculative().event(EventKind::copy, 1, 7, 3).step({1, 7, -1, 2})) != "");
  // A sequence that was reset starts again.
  CHECK(refusal(speculative().event(EventKind::zero, 1, 7).step({1, 7, -1, 0})) == "");
}

TEST_CASE("launches: a fork starts again, however old its state is") {
  // Sequence 8 has one token before 7's launch of two: what is copied from it is older than what the launch left.
  const auto forked = [](std::int32_t source, bool since) {
    Script script;
    script.event(EventKind::load, 5, 8, 0).event(EventKind::load, 4, 7, 1).step({5, 8}).step({4, 7});
    if (!since) script.event(EventKind::copy, 1, 7, source);
    script.step({1, 7, 4, 1}, {}, 0, false).step({2, 7, 1}, {}, 1, true);
    if (since) script.event(EventKind::copy, 1, 7, source);
    return script.step({1, 7, -1, 2});
  };
  CHECK(refusal(forked(5, true)) == "");
  // Its own state from before the launch is what a rollback to the wrong place leaves, and block 3 is nobody's.
  CHECK(refusal(forked(4, true)) ==
        "s: step 4, row 0 (sequence 7): goes on from block 1: sequence 7, recurrent at an unknown position, conv at an "
        "unknown position: expected block 2, where the launch at step 2 left token 2 of 2");
  CHECK(refusal(forked(3, true)) ==
        "s: step 4, row 0 (sequence 7): goes on from block 1: as the pool began: expected block 2, where the launch at "
        "step 2 left token 2 of 2");
  // A fork into the block before the launch is no restart after it.
  CHECK(refusal(forked(5, false)) != "");
}
