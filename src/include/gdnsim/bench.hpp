// Measuring a backend's variants: seconds a call, and the least that the machine's own measured rates allow. Never a test.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "gdnsim/backend.hpp"

namespace gdnsim {

/// Contracts that are measured, and everything that some backend's bench has a name for.
inline constexpr std::array<const char*, 3> kBenchContracts{"golden", "triton-sm90", "triton-sm90-mixed"};
inline constexpr std::array<const char*, 6> kBenchStages{"recurrence", "step", "window", "kernels", "cold", "norm"};

/// One stage of one variant under one contract.
struct Measure {
  std::string stage;     // of kBenchStages
  std::string variant;   // its name in the backend's table
  std::string contract;  // of kBenchContracts
  std::string shape;     // "B=1 H=16 HV=32 K=V=128 f32"
  double seconds = 0;    // the median of one call; 0: not measured
  double best = 0;       // the shortest: nearer the truth where other work takes the machine away
  double floor = 0;      // seconds at the machine's measured peak; 0: none known
  std::string floor_is;  // what it counts: "all bytes at the measured copy rate"
  std::string skipped;   // why it was not measured
};

struct BenchOptions {
  BackendOptions backend;
  std::vector<int> rows{1};               // batch sizes of the stages that have one
  std::vector<DType> states{DType::f32};  // state types
  double seconds = 0.3;                   // spent on each measure, about
  // Nothing but these, by name; empty: everything.
  std::vector<std::string> stages, variants, contracts;

  bool wants_stage(std::string_view name) const;
  bool wants_variant(std::string_view name) const;
  bool wants_contract(std::string_view name) const;
};

/// TP1 shapes of Qwen3-Next, one layer: H=16, HV=32, K=V=128, W=4, bf16 activations and conv state; a block a row.
Model bench_model(int rows, DType state);
/// "B=1 H=16 HV=32 K=V=128 f32"
std::string bench_shape(const Model& model, int rows);

/// The variants of the CPU backend; the one of `options.backend.cpu_level` where it names one.
std::vector<Measure> bench_golden(const BenchOptions& options);
/// Throws Error with the reason where there is no device.
std::vector<Measure> bench_cuda(const BenchOptions& options);

}  // namespace gdnsim
