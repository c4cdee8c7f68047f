// What the bench of the CUDA kernels runs: the inputs of some steps of one layer, and what golden makes of the first of them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gdnsim/bench.hpp"

namespace gdnsim::cuda {

/// The steps of one batch size and state type, under one contract after another.
class BenchInputs {
 public:
  BenchInputs(const BenchOptions& options, DType state, int rows);
  void set_contract(const std::string& preset);

  const Model& model() const { return model_; }
  const ContractSet& contracts() const { return contracts_; }
  int rows() const { return rows_; }
  int steps() const { return static_cast<int>(plans.size()); }
  Stream& stream() const { return *stream_; }
  WindowArgs window(std::size_t first, std::size_t count) const;
  /// The blocks as they are before the first step.
  void fill(Pool& pool) const;

  /// Runs steps and a window of the backend from the beginning and throws Error where they are not golden's.
  void require_golden(Backend& backend, const std::string& who) const;

  std::vector<StepPlan> plans;
  std::vector<StepInputs> inputs;
  std::vector<std::vector<Look>> looks;

 private:
  /// Outputs and block digests of some steps, one after the other, then of a window.
  std::vector<WindowStep> run(Backend& backend, Pool& pool) const;

  const BenchOptions& options_;
  ContractSet contracts_;
  const Model model_;
  const int rows_;
  std::unique_ptr<Stream> stream_;
  std::vector<WindowStep> expected_;
  mutable std::map<std::int32_t, std::pair<Bytes, Bytes>> loaded_;  // rows of states that blocks begin with
};

}  // namespace gdnsim::cuda
