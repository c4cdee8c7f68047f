// Units that fail, acted by a runner: on a device one that fails beside others is tried again by itself, and leaves no mark on
// the result; one that fails by itself too is told once, and the others' parts are there.
#include <gdnsim/error.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "drift/parts.hpp"
#include "drift/units.hpp"
#include "support/log_files.hpp"
#include "support/temp_dir.hpp"

using namespace gdnsim;

namespace {

constexpr const char* kSweep =
    R"({"schema": "gdnsim.drift/1", "steps": 4, "seeds": [7, 5, 3, 2, 8, 9, 1, 4, 10, 12, 11, 6],
        "base": {"rows": 1, "model": {"num_k_heads": 1, "num_v_heads": 1, "head_k_dim": 4, "head_v_dim": 4, "num_blocks": 2,
                 "layer_ids": [3, 8]}},
        "axes": [],
        "pairs": [{"name": "state", "reference": {"contract": "golden"}, "other": {"contract": "golden", "state": "bf16"}}]})";
constexpr std::int64_t kUnits = 24;  // twelve seeds, two layers

std::int64_t number_of(const DriftUnit& unit) { return 2 * static_cast<std::int64_t>(unit.seed) + unit.layer; }

/// What came of a sweep in a folder of its own.
struct Outcome {
  std::string error;                    // or "no error"
  std::string result;                   // the file's bytes, empty where units are missing
  std::vector<std::int64_t> missing;    // units without a part
  std::map<std::int64_t, int> tries;    // [unit]
  std::map<std::int64_t, int> threads;  // [unit], of the last try
};

/// Runs the sweep; `fails[unit]`: how often that unit fails before it goes through.
Outcome run_with(std::map<std::int64_t, int> fails, bool device, int threads = 4) {
  const test::TempDir folder;
  const DriftSweep sweep = parse_sweep(kSweep, "s.json", ".");
  REQUIRE(sweep.units().size() == kUnits);
  DriftOptions options;
  options.backend_options.threads = threads;
  Outcome outcome;
  std::mutex one_at_a_time;
  const auto run = [&](const DriftUnit& unit, int unit_threads) {
    {
      const std::lock_guard<std::mutex> lock(one_at_a_time);
      ++outcome.tries[number_of(unit)];
      outcome.threads[number_of(unit)] = unit_threads;
      if (fails[number_of(unit)]-- > 0) throw error("out of memory");
    }
    return run_unit(sweep, unit, options, 1);
  };
  const std::string parts = folder / "parts";
  outcome.error = test::error_of([&] { run_units(sweep, parts, options, {[device] { return device; }, run}); });
  outcome.missing = missing_units(sweep, {parts});
  if (!outcome.missing.empty()) return outcome;
  write_drift(sweep, {parts}, folder / "result.h5", false);
  outcome.result = test::text_of_file(folder / "result.h5");
  return outcome;
}

/// More failures than a device is given beside others: after so many nothing more is begun beside others.
std::map<std::int64_t, int> first_nine_fail() {
  std::map<std::int64_t, int> fails;
  for (std::int64_t unit = 0; unit < 9; ++unit) fails[unit] = 1;
  return fails;
}

}  // namespace

TEST_CASE("drift: a unit that fails beside others on a device is tried again by itself") {
  const Outcome whole = run_with({}, true);
  REQUIRE(whole.error == "no error");
  REQUIRE(whole.missing.empty());
  for (const auto& fails : {std::map<std::int64_t, int>{{3, 1}}, {{0, 1}, {5, 1}, {11, 1}}, first_nine_fail()}) {
    CAPTURE(fails.size());
    const Outcome outcome = run_with(fails, true);
    CHECK(outcome.error == "no error");
    CHECK(outcome.missing.empty());
    CHECK((outcome.result == whole.result));
    for (std::int64_t unit = 0; unit < kUnits; ++unit) {
      CAPTURE(unit);
      CHECK(outcome.tries.at(unit) == 1 + static_cast<int>(fails.contains(unit)));
      if (fails.contains(unit)) CHECK(outcome.threads.at(unit) == 4);  // alone: all of them
      if (!fails.contains(unit) && fails.size() < 9) CHECK(outcome.threads.at(unit) == 1);
    }
  }
}

TEST_CASE("drift: one that fails by itself too is told with its unit, and the others are kept") {
  const Outcome outcome = run_with({{3, 2}}, true);
  CHECK(outcome.error == "s.json: cell \"state\", seed 5, layer 8: out of memory");
  CHECK(outcome.missing == std::vector<std::int64_t>{3});
  CHECK(outcome.tries.at(3) == 2);
  const Outcome two = run_with({{3, 9}, {6, 9}}, true);
  CHECK(std::ranges::count(two.error, ':') == 2);  // one of them
  CHECK(two.missing == std::vector<std::int64_t>{3, 6});
}

TEST_CASE("drift: without a device, or with nothing beside it, a unit has one try") {
  for (const auto& [device, threads] : {std::pair{false, 1}, {false, 4}, {true, 1}}) {
    CAPTURE(device);
    CAPTURE(threads);
    const Outcome outcome = run_with({{3, 1}}, device, threads);
    CHECK(outcome.error == "s.json: cell \"state\", seed 5, layer 8: out of memory");
    CHECK(outcome.tries.at(3) == 1);
    REQUIRE(!outcome.missing.empty());
    CHECK(outcome.missing.front() == 3);  // those before it were begun, and end
    if (threads == 1) CHECK(outcome.missing.size() == static_cast<std::size_t>(kUnits - 3));
  }
}
