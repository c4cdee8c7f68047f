// Schedules, checked by a second bookkeeper that knows only the stream interface: it carries through the pool, block by block,
// whose state lies there and how many tokens it has seen.
#include <gdnsim/recipe.hpp>

#include <map>
#include <set>
#include <string>

#include <doctest/doctest.h>

#include "synth/plan.hpp"

using namespace gdnsim;

namespace {

Recipe busy_recipe() {
  Recipe r;
  r.seed = 2024;
  r.steps = 2000;
  r.rows = 6;
  r.model.H = 1, r.model.HV = 2, r.model.K = 4, r.model.V = 4, r.model.W = 4, r.model.scale = 0.5f;
  r.model.num_blocks = 11;
  r.model.layer_ids = {0, 1, 5};
  r.schedule.running = 5;
  r.schedule.length = Range{1, 40};
  r.schedule.arrival = 0.5;
  r.schedule.shuffle = 0.3;
  r.schedule.skip = 0.1;
  r.schedule.preempt = 0.05;
  r.schedule.away = {1, 9};
  r.schedule.mixed = 0.25;
  return r;
}

/// What a block holds: nothing usable, a fresh start (of load row / layers, or zeros), or a sequence after `tokens` tokens.
struct Content {
  enum class Kind { junk, fresh, sequence } kind = Kind::junk;
  std::int64_t sequence = -1;  // fresh: the load, or -1 for zeros
  std::int64_t tokens = 0;
  bool operator==(const Content&) const = default;
};

struct Totals {
  std::int64_t active = 0, inactive = 0, copies = 0, loads = 0, zeros = 0, frees = 0, mixed = 0, stale = 0, moved = 0,
               holes = 0;
  std::set<std::int64_t> sequences;
  std::set<std::int32_t> blocks, sentinels;
};

class Bookkeeper {
 public:
  explicit Bookkeeper(const Recipe& recipe)
      : recipe_(recipe),
        schedule_(make_schedule(recipe)),
        stream_(make_recipe_stream(recipe)),
        pool_(static_cast<std::size_t>(recipe.model.num_blocks)) {}

  Totals run() {
    const auto events = stream_->events();
    std::size_t next = 0;
    for (std::int64_t step = 0; step < stream_->steps(); ++step) {
      while (next < events.size() && events[next].step == step) next += apply(events, next);
      play(stream_->plan(step));
    }
    REQUIRE(next == events.size());
    REQUIRE(totals_.loads == static_cast<std::int64_t>(schedule_.loads.size()));
    return totals_;
  }

 private:
  /// Applies one event, or the loads of all layers of one block, which must stand together. Gives how many it took.
  std::size_t apply(std::span<const Event> events, std::size_t at) {
    const Event& event = events[at];
    Content& block = pool_[static_cast<std::size_t>(event.block)];
    const bool taken = taken_.contains(event.block);
    if (event.kind == EventKind::free) {
      REQUIRE(taken);
      taken_.erase(event.block);
      block = {};
      ++totals_.frees;
      return 1;
    }
    REQUIRE_FALSE(taken);
    taken_.insert(event.block);
    if (event.kind == EventKind::zero) {
      REQUIRE(event.layer == -1);
      block = {Content::Kind::fresh, -1, 0};
      ++totals_.zeros;
      return 1;
    }
    if (event.kind == EventKind::copy) {
      REQUIRE(event.layer == -1);
      REQUIRE(taken_.contains(event.source));
      block = pool_[static_cast<std::size_t>(event.source)];
      REQUIRE(block.kind == Content::Kind::sequence);
      ++totals_.copies;
      return 1;
    }
    return load(events, at);
  }

  std::size_t load(std::span<const Event> events, std::size_t at) {
    const auto layers = static_cast<std::size_t>(recipe_.model.layers());
    REQUIRE(at + layers <= events.size());
    const std::int32_t first = events[at].source;
    REQUIRE(first == static_cast<std::int32_t>(totals_.loads * recipe_.model.layers()));
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const Event& event = events[at + layer];
      const Event expected{events[at].step, static_cast<std::int32_t>(layer), events[at].block, EventKind::load,
                           first + static_cast<std::int32_t>(layer)};
      REQUIRE(event == expected);
    }
    pool_[static_cast<std::size_t>(events[at].block)] = {Content::Kind::fresh, totals_.loads++, 0};
    return layers;
  }

  void play(const StepPlan& plan) {
    std::set<std::int32_t> used;
    std::set<std::int64_t> running;
    bool ended = false;
    for (int row = 0; row < plan.rows(); ++row) {
      const auto at = static_cast<std::size_t>(row);
      const std::int32_t block = plan.block[at];
      if (block < 0) {
        ended = true;
        play_inactive(plan, row);
        continue;
      }
      totals_.holes += ended;
      REQUIRE(row < plan.present);
      REQUIRE(block == plan.index[at]);
      REQUIRE(block >= (recipe_.model.sentinel == Sentinel::minus_one ? 0 : 1));
      REQUIRE(block < recipe_.model.num_blocks);
      REQUIRE(used.insert(block).second);
      REQUIRE(running.insert(plan.sequence[at]).second);
      play_active(block, plan.sequence[at]);
      const auto [last, fresh] = last_row_.try_emplace(plan.sequence[at], row);
      totals_.moved += !fresh && last->second != row;
      last->second = row;
    }
    totals_.mixed += plan.path == Path::mixed;
    REQUIRE(static_cast<int>(running.size()) <= recipe_.schedule.running);
  }

  void play_active(std::int32_t block, std::int64_t sequence) {
    Content& content = pool_[static_cast<std::size_t>(block)];
    REQUIRE(taken_.contains(block));
    if (content.kind == Content::Kind::fresh) {
      const bool first = totals_.sequences.insert(sequence).second;
      if (content.sequence >= 0) {
        const Load& load = schedule_.loads.at(static_cast<std::size_t>(content.sequence));
        REQUIRE(load.sequence == sequence);
        REQUIRE((load.resumed == 0) == first);
      }
      REQUIRE((first || recipe_.schedule.preempt_by == ScheduleRecipe::Preempt::load));
      content = {Content::Kind::sequence, sequence, tokens_[sequence]};
    }
    const Content expected{Content::Kind::sequence, sequence, tokens_[sequence]};
    REQUIRE(content == expected);
    content.tokens = ++tokens_[sequence];
    if (recipe_.schedule.length) REQUIRE(tokens_[sequence] <= recipe_.schedule.length->highest);
    totals_.blocks.insert(block);
    ++totals_.active;
  }

  void play_inactive(const StepPlan& plan, int row) {
    const auto at = static_cast<std::size_t>(row);
    REQUIRE(plan.sequence[at] == -1);
    if (row < plan.present) {
      REQUIRE(recipe_.model.inactive(plan.index[at]));
      totals_.sentinels.insert(plan.index[at]);
    } else {
      totals_.stale += !recipe_.model.inactive(plan.index[at]);
    }
    ++totals_.inactive;
  }

  const Recipe& recipe_;
  const Schedule schedule_;
  const std::unique_ptr<Stream> stream_;
  std::vector<Content> pool_;
  std::set<std::int32_t> taken_;
  std::map<std::int64_t, std::int64_t> tokens_;
  std::map<std::int64_t, int> last_row_;
  Totals totals_;
};

}  // namespace

TEST_CASE("2,000 busy steps keep every block's state with its sequence") {
  Recipe r = busy_recipe();
  const auto all_sentinels = {Sentinel::nonpositive, Sentinel::zero, Sentinel::minus_one};
  for (Sentinel sentinel : all_sentinels)
    for (auto placement : {ScheduleRecipe::Placement::packed, ScheduleRecipe::Placement::sticky})
      for (auto preempt : {ScheduleRecipe::Preempt::swap, ScheduleRecipe::Preempt::load})
        for (auto start : {StateRecipe::Start::load, StateRecipe::Start::zero}) {
          CAPTURE(static_cast<int>(sentinel));
          CAPTURE(static_cast<int>(placement));
          CAPTURE(static_cast<int>(preempt));
          CAPTURE(static_cast<int>(start));
          r.model.sentinel = sentinel;
          r.schedule.placement = placement;
          r.schedule.preempt_by = preempt;
          r.states.start = start;
          ++r.seed;
          const Totals t = Bookkeeper(r).run();
          CHECK(t.active > 5000);
          CHECK(t.inactive > 2000);
          CHECK(t.sequences.size() > 200);
          CHECK(t.frees > 400);
          CHECK(t.moved > 1000);
          CHECK(t.mixed > 400);  // 500 expected, deviation 19
          CHECK(t.mixed < 600);
          CHECK((t.copies > 200) == (preempt == ScheduleRecipe::Preempt::swap));
          CHECK((t.loads > 200) == (start == StateRecipe::Start::load));
          CHECK((t.zeros > 200) == (start == StateRecipe::Start::zero));
          CHECK((t.holes > 0) == (placement == ScheduleRecipe::Placement::sticky));
          CHECK(t.blocks.size() == (sentinel == Sentinel::minus_one ? 11 : 10));
          CHECK(t.sentinels.size() == (sentinel == Sentinel::nonpositive ? 2 : 1));
          CHECK(t.stale == 0);
        }
}

TEST_CASE("a scarce pool only delays") {
  Recipe r = busy_recipe();
  r.model.num_blocks = 6;  // five usable for five running: nothing to swap to
  const Totals t = Bookkeeper(r).run();
  CHECK(t.active > 2000);
  CHECK(t.blocks.size() == 5);
}

TEST_CASE("a stale tail keeps old indices beyond the rows present") {
  Recipe r = busy_recipe();
  r.schedule.stale_tail = true;
  const Totals t = Bookkeeper(r).run();
  CHECK(t.stale > 500);
  CHECK(t.holes == 0);
  CHECK(t.sentinels.empty());
  r.schedule.stale_tail = false;
  CHECK(Bookkeeper(r).run().active == t.active);
}

TEST_CASE("without churn each row keeps its sequence") {
  Recipe r = busy_recipe();
  r.schedule = {};
  r.schedule.running = 6;
  r.steps = 50;
  const Totals t = Bookkeeper(r).run();
  CHECK(t.active == 300);
  CHECK(t.inactive == 0);
  CHECK(t.moved == 0);
  CHECK(t.loads == 6);
  CHECK(t.frees == 0);
}

TEST_CASE("lengths are a sequence's own and exact") {
  Recipe r = busy_recipe();
  std::map<std::int64_t, int> lengths[2];
  for (int batch = 0; batch < 2; ++batch) {
    r.schedule.preempt = batch == 0 ? 0.0 : 0.2;
    r.rows = batch == 0 ? 6 : 3;
    r.schedule.running = batch == 0 ? 5 : 2;
    const Schedule schedule = make_schedule(r);
    for (std::int64_t sequence : schedule.sequence)
      if (sequence >= 0) ++lengths[batch][sequence];
  }
  int same = 0;
  const std::int64_t whole = static_cast<std::int64_t>(lengths[1].size()) - 20;  // the last ones may be under way
  for (std::int64_t sequence = 0; sequence < whole; ++sequence)
    same += lengths[0].at(sequence) == lengths[1].at(sequence);
  CHECK(whole > 40);
  CHECK(same == whole);
}

TEST_CASE("rates hold") {
  Recipe r = busy_recipe();
  r.schedule = {};
  r.schedule.running = 6;
  r.schedule.skip = 0.3;
  const Totals t = Bookkeeper(r).run();
  const double skipped = static_cast<double>(t.inactive) / 12000;
  CHECK(skipped > 0.3 - 5 * 0.0042);  // deviation sqrt(0.3 * 0.7 / 12000)
  CHECK(skipped < 0.3 + 5 * 0.0042);
}

TEST_CASE("the seed decides, and nothing else") {
  Recipe r = busy_recipe();
  const Schedule a = make_schedule(r), b = make_schedule(r);
  CHECK(a.index == b.index);
  CHECK(a.events == b.events);
  ++r.seed;
  const Schedule c = make_schedule(r);
  CHECK(a.index != c.index);
  // A longer run starts the same.
  r = busy_recipe();
  r.steps = 2100;
  const Schedule longer = make_schedule(r);
  CHECK(std::equal(a.index.begin(), a.index.end(), longer.index.begin()));
  CHECK(std::equal(a.events.begin(), a.events.end(), longer.events.begin()));
}
