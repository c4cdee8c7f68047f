// A trial: one layer run again with twists, and which of its recorded units come out. Private to explain.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "explain/twist.hpp"
#include "gdnsim/recording.hpp"
#include "gdnsim/replay.hpp"
#include "gdnsim/simulator.hpp"

namespace gdnsim::explaining {

struct WrongUnit {
  Unit unit;
  std::uint64_t differing = 0;
  Bytes got, want;  // the words, for units of the first wrong step; else empty
};

struct Outcome {
  std::vector<WrongUnit> wrong;  // in execution order
  std::uint64_t units = 0, elements = 0;
  bool clean() const { return wrong.empty(); }
  const WrongUnit* find(const Unit& unit) const;
};

/// The pool before a step: blocks that are not listed are zero.
struct Checkpoint {
  std::int64_t step = 0;
  std::map<std::int32_t, Words> blocks;
};

/// States of blocks after each step of a run, as many as the memory limit allows.
struct History {
  std::map<std::pair<std::int64_t, std::int32_t>, Words> after;  // (step, block) for rows of the step
};

/// Everything about one layer that does not change from trial to trial.
struct Bench {
  Stream& stream;
  Recording& recording;
  Backend& backend;
  ContractSet contracts;  // what the provider is held to
  int layer;
  std::int64_t first_step, last_step;  // compared steps
  Pick pick{};                         // and what is compared of them
};

class Trials {
 public:
  explicit Trials(const Bench& bench) : bench_(bench) {}
  const Bench& bench() const { return bench_; }

  /// Twists that every trial has from now on: what was found before.
  void accept(const std::vector<Twist>& twists);
  const std::vector<Twist>& accepted() const { return accepted_; }

  /// Runs steps from the checkpoint to `last_step` and compares. `until_wrong`: ends after the first step with a wrong unit.
  Outcome run(const std::vector<Twist>& twists, const Checkpoint& from, std::int64_t last_step, bool until_wrong);
  /// The pool before `step`, under the accepted twists.
  Checkpoint checkpoint(std::int64_t step);
  /// States after the steps [first, last).
  History history(std::int64_t first, std::int64_t last);
  /// Outputs of one step from the checkpoint before it, all taps wanted.
  StepOutputs outputs(const std::vector<Twist>& twists, const Checkpoint& from, std::int64_t step);

  /// Runs the steps from the checkpoint to `last_step` with all taps and shows each to `look`.
  void watch(const std::vector<Twist>& twists, const Checkpoint& from, std::int64_t last_step,
             const std::function<void(const StepView&)>& look);

 private:
  const Bench bench_;
  std::vector<Twist> accepted_;
};

/// Does an inactive row's output count?
bool compared_when_inactive(const Model& model, Tap tap);

}  // namespace gdnsim::explaining
