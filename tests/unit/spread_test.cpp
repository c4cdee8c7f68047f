// Layers spread over ranks: what a rank tells the others comes back whole, and the report is that of one process.
#include <gdnsim/error.hpp>
#include <gdnsim/report.hpp>
#include <gdnsim/trace.hpp>

#include <cstdlib>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "replay/layer_outcome.hpp"
#include "support/rehearsed.hpp"
#include "support/trace_data.hpp"

using namespace gdnsim;
using test::rehearse;

namespace {

Divergence some_divergence(test::Random& random) {
  Divergence d;
  d.step = 7, d.layer = 2, d.layer_id = 9, d.tap = Tap::core_out, d.row = 3, d.sequence = 1LL << 40, d.block = 4;
  d.head = 5, d.element = 6, d.from_step = 2, d.type = DType::bf16, d.got = 0x3F80, d.want = 0x3F81, d.ulp = 1;
  d.kind = DiffClass::value, d.inputs = InputsMatched::different;
  d.near = {11, {static_cast<std::uint32_t>(random.next())}, {1, 2, 3}};
  d.event = EventPlace{12, {7, -1, 4, EventKind::copy, 1, 77, EventWhy::fork}, true};
  return d;
}

LayerOutcome some_outcome(std::uint64_t seed) {
  test::Random random(seed);
  LayerOutcome outcome;
  outcome.carried.done = true;
  outcome.carried.note = "a note";
  outcome.carried.snapshots = random.next();
  outcome.carried.counts[3].ulps[2] = random.next();
  outcome.carried.counts[13].classes[1] = random.next();
  outcome.carried.counts[13].max_abs = 0.25;
  outcome.carried.first = outcome.carried.firsts[11] = some_divergence(random);
  CellRow cells(2, 9);
  cells.add(5, Tap::norm_out, {-1, 100, random.below(50), 3, DiffClass::rounding});
  outcome.carried.cells.push_back(cells);
  outcome.reran = seed % 2 == 1;
  outcome.local.digests_compared = seed;
  return outcome;
}

std::string traces() { return std::getenv("GDNSIM_TRACES") ? std::getenv("GDNSIM_TRACES") : "traces"; }

/// The report of one rank of several, or of a process alone.
std::string report_under(const char* contract, Mode mode, Spread* spread) {
  const auto trace = open_trace(traces() + "/h200_k64_3layers.h5");
  const auto backend = make_golden({.threads = 1});
  ReplayOptions options;
  options.mode = mode;
  options.spread = spread;
  if (contract != nullptr) options.contracts = contract_set(contract);
  return to_json(report_of(replay(*trace, *trace, *backend, options))).dump();
}

}  // namespace

TEST_CASE("what a layer gave comes back whole") {
  const std::vector<LayerOutcome> outcomes{some_outcome(1), some_outcome(2), LayerOutcome{}};
  const std::string bytes = packed(outcomes);
  const std::vector<LayerOutcome> back = unpacked(bytes);
  CHECK(packed(back) == bytes);
  REQUIRE(back.size() == 3);
  const Comparison &there = back[0].carried, &was = outcomes[0].carried;
  CHECK(there.note == "a note");
  CHECK(there.snapshots == was.snapshots);
  CHECK(there.counts[3].ulps == was.counts[3].ulps);
  CHECK(there.counts[13].max_abs == 0.25);
  REQUIRE(there.first);
  CHECK(there.first->near.got == was.first->near.got);
  CHECK(there.first->event->event == was.first->event->event);
  CHECK(there.first->event->after);
  CHECK(there.first->ulp == 1);
  CHECK(!there.firsts[0]);
  CHECK(there.cells.at(0).first_step() == 5);
  CHECK(there.cells.at(0).cells().at(0).differing == was.cells.at(0).cells().at(0).differing);
  CHECK(back[0].reran);
  CHECK(!back[1].reran);
}

TEST_CASE("bytes that are not whole are refused") {
  const std::string bytes = packed({some_outcome(1)});
  for (std::size_t size = 0; size < bytes.size(); ++size) CHECK_THROWS_AS(unpacked(bytes.substr(0, size)), Error);
  CHECK_THROWS_WITH_AS(unpacked(bytes + "x"), doctest::Contains("more bytes than they take"), Error);
}

TEST_CASE("every rank hears of every piece, in its place") {
  for (int ranks : {1, 2, 3, 8}) {
    std::vector<LayerOutcome> all;
    for (std::uint64_t i = 0; i < 7; ++i) all.push_back(some_outcome(i + 1));
    const std::string wanted = packed(all);
    int heard = 0;
    rehearse(ranks, [&](Spread& spread) {
      std::vector<LayerOutcome> mine(7);
      for (std::size_t i = 0; i < 7; ++i)
        if (spread.takes(i)) mine[i] = all[i];
      share(spread, mine);
      CHECK(packed(mine) == wanted);
      ++heard;
    });
    CHECK(heard == ranks);
  }
}

TEST_CASE("replay over ranks gives each of them the report of one process") {
  const struct {
    const char* contract;
    Mode mode;
  } cases[] = {{nullptr, Mode::both}, {"golden", Mode::both}, {"golden", Mode::local}, {"golden", Mode::carried}};
  for (const auto& [contract, mode] : cases) {
    const std::string alone = report_under(contract, mode, nullptr);
    for (int ranks : {2, 4}) {
      int heard = 0;
      rehearse(ranks, [&, contract = contract, mode = mode](Spread& spread) {
        const std::string said = report_under(contract, mode, &spread);
        CHECK(said == alone);
        ++heard;
      });
      CHECK(heard == ranks);
    }
  }
}
