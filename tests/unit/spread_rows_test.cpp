// Rows spread over ranks: portions that hand nothing to one another, and the report of one process from however many of them.
#include <gdnsim/error.hpp>
#include <gdnsim/recipe.hpp>
#include <gdnsim/report.hpp>
#include <gdnsim/trace.hpp>

#include <cstdlib>
#include <string>

#include <omp.h>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "replay/spread_rows.hpp"
#include "support/log_files.hpp"
#include "support/rehearsed.hpp"

using namespace gdnsim;
using test::rehearse;

namespace {

std::string traces() { return std::getenv("GDNSIM_TRACES") ? std::getenv("GDNSIM_TRACES") : "traces"; }

/// Many short runs: threads would wait for each other more than they work.
const int kThreads = (omp_set_num_threads(1), 1);

/// Sequences that fork, move between rows and blocks, are taken back, leave and come again.
Recipe busy_recipe() {
  return parse_recipe(R"({"schema": "gdnsim.recipe/1", "seed": 3, "steps": 40, "rows": 5,
    "model": {"num_k_heads": 1, "num_v_heads": 2, "head_k_dim": 32, "head_v_dim": 32, "num_blocks": 160, "layer_ids": [5]},
    "schedule": {"length": [3, 12], "shuffle": 0.3, "skip": 0.1, "preempt": 0.1, "away": [1, 6], "mixed": 0.2,
                 "allocator": "fifo", "fork": 0.2, "speculative": {"drafts": 1, "rate": 0.6, "plain": 0.5}}})",
                      "busy");
}

/// A log of it. `stray`: at step 9 a block changes that nothing names.
std::string write_busy_log(const test::Folder& folder, const std::string& policy, bool stray) {
  struct Stray final : Observer {
    Observer& writer;
    bool on;
    Stray(Observer& to, bool stray) : writer(to), on(stray) {}
    void event_coming(const Event& event, int layer, Pool& pool) override { writer.event_coming(event, layer, pool); }
    void event_applied(const Event& event, int layer, Pool& pool) override { writer.event_applied(event, layer, pool); }
    void before(std::int64_t step, int layer, const StepPlan& plan, Pool& pool) override {
      if (on && step == 9) {
        const Bytes ones(pool.model().state_bytes(), std::byte{1}), conv(pool.model().conv_bytes());
        pool.write(layer, 0, ones, conv);
      }
      writer.before(step, layer, plan, pool);
    }
    void after(const StepView& view) override { writer.after(view); }
    void step_done(std::int64_t step) override { writer.step_done(step); }
  };
  const auto stream = make_recipe_stream(busy_recipe());
  const auto backend = make_golden({.threads = kThreads});
  LogHeader header;
  header.model = stream->model();
  header.layers = {0};
  header.contracts = contract_set("golden");
  header.source = stream->source();
  header.steps = stream->steps();
  header.rows = stream->rows();
  header.state = state_policy_from(policy);
  for (std::int64_t step = 0; step < header.steps; ++step) header.plans.push_back(stream->plan(step));
  header.events = events_of(*stream, 0, header.steps);
  LogOptions options;
  options.audit = stray;
  const std::string path = folder / (policy.substr(0, 4) + (stray ? "-stray.h5" : ".h5"));
  const auto log = create_log(path, header, options);
  const auto pool = backend->make_pool(header.model, header.layers);
  Stray observer(*log, stray);
  simulate({*stream, *backend, header.contracts, header.layers, header.steps, header.taps}, *pool, observer);
  log->close();
  return path;
}

struct Case {
  const char* contract;
  Mode mode;
  Slice slice{};
};

ReplayOptions options_of(const Case& one, Spread* spread) {
  ReplayOptions options;
  options.mode = one.mode;
  options.slice = one.slice;
  options.spread = spread;
  if (one.contract != nullptr) options.contracts = contract_set(one.contract);
  return options;
}

std::string report_on_log(const std::string& path, const Case& one, Spread* spread) {
  const auto stream = make_recipe_stream(busy_recipe());
  const auto log = open_log(path);
  const auto backend = make_golden({.threads = kThreads});
  return to_json(report_of(replay(*stream, *log, *backend, options_of(one, spread)))).dump();
}

std::string report_on_trace(const std::string& name, const Case& one, Spread* spread) {
  const auto trace = open_trace(traces() + "/" + name);
  const auto backend = make_golden({.threads = kThreads});
  return to_json(report_of(replay(*trace, *trace, *backend, options_of(one, spread)))).dump();
}

template <class ReportOf>
void check_ranks(const ReportOf& report_of_ranks, const char* verdict) {
  const std::string alone = report_of_ranks(nullptr);
  CHECK(nlohmann::json::parse(alone).at("verdict").get<std::string>() == verdict);
  for (int ranks : {2, 5}) {
    int heard = 0;
    rehearse(ranks, [&](Spread& spread) {
      const std::string said = report_of_ranks(&spread);
      CHECK(said == alone);
      ++heard;
    });
    CHECK(heard == ranks);
  }
}

}  // namespace

TEST_CASE("portions are closed, even, and hold each row once") {
  const auto stream = make_recipe_stream(busy_recipe());
  std::int64_t moved = 0, copied = 0;
  for (int most : {1, 2, 3, 100}) {
    const auto portions = portions_of(*stream, stream->steps(), most);
    REQUIRE(portions.size() >= 1);
    CHECK(static_cast<int>(portions.size()) <= most);
    const auto part = [&](std::int32_t block) { return portions.front()->part[static_cast<std::size_t>(block)]; };
    std::vector<std::int64_t> load(portions.size());
    for (const Event& event : stream->events()) {
      if (event.kind != EventKind::copy) continue;
      CHECK(part(event.source) == part(event.block));
      ++copied;
    }
    for (std::int64_t step = 0; step < stream->steps(); ++step) {
      const StepPlan plan = stream->plan(step);
      for (std::size_t row = 0; row < plan.block.size(); ++row) {
        std::size_t owners = 0;
        for (const auto& portion : portions) {
          Pick pick;
          pick.portion = portion;
          owners += pick.row(plan, static_cast<int>(row));
        }
        CHECK(owners == 1);
        if (plan.block[row] < 0) continue;
        CHECK(part(plan.start(row)) == part(plan.block[row]));
        moved += plan.start(row) != plan.block[row];
        ++load[static_cast<std::size_t>(part(plan.block[row]))];
      }
    }
    if (portions.size() > 1) CHECK(*std::ranges::min_element(load) > 0);
  }
  CHECK(moved > 0);
  CHECK(copied > 0);
  CHECK(portions_of(*stream, stream->steps(), 3).size() == 3);
}

TEST_CASE("rows that all hand states to one another stay together") {
  const auto stream = make_recipe_stream(parse_recipe(
      R"({"schema": "gdnsim.recipe/1", "seed": 1, "steps": 6, "rows": 1,
    "model": {"num_k_heads": 1, "num_v_heads": 2, "head_k_dim": 8, "head_v_dim": 8, "num_blocks": 2, "layer_ids": [0]}})",
      "one"));
  CHECK(portions_of(*stream, 6, 4).size() == 1);
}

TEST_CASE("a log over ranks: rows, events and the pool's digests as one process has them") {
  const test::Folder folder;
  const std::string full = write_busy_log(folder, "full", false), some = write_busy_log(folder, "every:7", false),
                    none = write_busy_log(folder, "digest", false), stray = write_busy_log(folder, "digest", true);
  for (const std::string& path : {full, some, none}) {
    CAPTURE(path);
    check_ranks([&](Spread* spread) { return report_on_log(path, {"golden", Mode::both}, spread); }, "match");
    check_ranks([&](Spread* spread) { return report_on_log(path, {"triton-sm90", Mode::both}, spread); }, "diverged");
  }
  check_ranks([&](Spread* spread) { return report_on_log(some, {"triton-sm90", Mode::local}, spread); }, "diverged");
  check_ranks([&](Spread* spread) { return report_on_log(stray, {"golden", Mode::both}, spread); }, "diverged");
  check_ranks([&](Spread* spread) { return report_on_log(stray, {nullptr, Mode::carried}, spread); }, "diverged");
  const Slice slice{{}, 13, 31, {{0, 2, 3}, {}}};
  check_ranks(
      [&](Spread* spread) {
        return report_on_log(some, {"triton-sm90", Mode::both, slice}, spread);
      },
      "diverged");
}

TEST_CASE("a trace's layer over ranks") {
  const char* name = "h200_k64_3layers.h5";
  const Slice layer{{1}}, part{{0}, 5, 14, {{}, {1, 2, 3}}};
  check_ranks([&](Spread* spread) { return report_on_trace(name, {nullptr, Mode::both, layer}, spread); }, "match");
  check_ranks([&](Spread* spread) { return report_on_trace(name, {"golden", Mode::both, layer}, spread); }, "diverged");
  check_ranks([&](Spread* spread) { return report_on_trace(name, {"golden", Mode::both, part}, spread); }, "diverged");
  check_ranks(
      [&](Spread* spread) {
        return report_on_trace("h200_k64_mixed.h5", {"golden", Mode::local}, spread);
      },
      "diverged");
}

TEST_CASE("cells that were counted apart are those of one count, however many steps") {
  for (std::int64_t steps : {3, 5000, 20000}) {
    CellRow whole(2, 9), a(2, 9), b(2, 9);
    for (CellRow* row : {&whole, &a, &b}) row->begin_at(4);
    for (std::int64_t step = 6; step < steps + 6; ++step) {
      const WordRun run{-1, 10 + static_cast<std::uint64_t>(step % 7), static_cast<std::uint64_t>(step % 3), 2,
                        DiffClass::rounding};
      whole.add(step, Tap::state, run);
      (step % 5 == 1 || step > 9000 ? a : b).add(step, Tap::state, run);
    }
    a.add(b);
    whole.trim(), a.trim();
    CHECK(a.first_step() == whole.first_step());
    CHECK(a.first_step() == (steps == 3 ? 6 : 4));
    CHECK(a.steps_per_cell() == whole.steps_per_cell());
    REQUIRE(a.cells().size() == whole.cells().size());
    for (std::size_t i = 0; i < a.cells().size(); ++i) {
      CHECK(a.cells()[i].compared == whole.cells()[i].compared);
      CHECK(a.cells()[i].differing == whole.cells()[i].differing);
      CHECK(a.cells()[i].taps == whole.cells()[i].taps);
    }
  }
}
