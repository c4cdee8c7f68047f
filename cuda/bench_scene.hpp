// What the bench of the CUDA kernels runs: the inputs of some steps of one layer, and what golden makes of the first of them.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gdnsim/bench.hpp"

namespace gdnsim::cuda {

/// The steps of one batch size and state type, under one contract after another. A large batch has the same few rows again and
/// again, each with blocks of its own: golden computes those few once, and every row of the device's must be one of them.
class BenchInputs {
 public:
  BenchInputs(const BenchOptions& options, DType state, int rows);
  void set_contract(const std::string& preset);

  const Model& model() const { return model_; }
  const ContractSet& contracts() const { return contracts_; }
  int rows() const { return rows_; }
  /// Blocks that the rows of a batch take, from block 1 on: every row's among them.
  int blocks() const { return static_cast<int>(model_.num_blocks) - 1; }
  int steps() const { return static_cast<int>(plans.size()); }
  Stream& stream() const { return *stream_; }
  /// The blocks as they are before the first step.
  void fill(Pool& pool) const;
  /// The first step's blocks so that no row lies beside the one before it: a pool that has been in use for long.
  std::vector<std::int32_t> scattered() const;

  /// Runs steps and a window of the backend from the beginning and throws Error where they are not golden's.
  void require_golden(Backend& backend, const std::string& who) const;

  std::vector<StepPlan> plans;
  std::vector<StepInputs> inputs;

 private:
  /// What a backend is given: steps, and the blocks that are looked at after each.
  struct Steps {
    std::span<const StepPlan> plans;
    std::span<const StepInputs> inputs;
    std::span<const std::vector<Look>> looks;
  };
  void make_few();
  void fill_few(Pool& pool) const;
  StepPlan repeated(const StepPlan& few) const;
  /// Outputs and block digests of some steps, one after the other, then of a window.
  std::vector<WindowStep> run(const Steps& steps, Backend& backend, Pool& pool) const;
  std::string difference(const WindowStep& got, const WindowStep& want) const;

  const BenchOptions& options_;
  ContractSet contracts_;
  const int rows_, few_;
  const Model model_;
  std::unique_ptr<Stream> stream_;  // of the few
  std::vector<StepPlan> few_plans_;
  std::vector<StepInputs> few_inputs_;
  std::vector<WindowStep> expected_;
  mutable std::map<std::int32_t, std::pair<Bytes, Bytes>> loaded_;  // rows of states that blocks begin with
};

}  // namespace gdnsim::cuda
