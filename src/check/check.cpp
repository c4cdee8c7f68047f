// One examination: the backend is made, the batteries are run.
#include "gdnsim/check.hpp"

#include <algorithm>

#include "check/subject.hpp"
#include "gdnsim/bench.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

constexpr int kTimedRows = 64;

void add_measure(const Measure& m, std::vector<Gate>& gates) {
  Gate gate;
  gate.stage = m.stage == "norm" ? CheckStage::gated_norm : CheckStage::recurrent, gate.battery = Battery::time;
  gate.name = m.stage + " of " + m.variant, gate.shape = m.shape;
  if (!m.skipped.empty()) {
    gate.verdict = Gate::Verdict::skipped, gate.note = m.skipped;
  } else {
    gate.verdict = Gate::Verdict::measured, gate.seconds = m.seconds;
    if (m.floor > 0) gate.of_memory = m.floor / m.seconds, gate.note = "share of: " + m.floor_is;
  }
  gates.push_back(gate);
}

std::vector<std::string> kernels_of(const std::string& backend) {
  return backend == "cuda" ? cuda_kernels() : golden_kernels();
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += ", " + name;
  return text;
}

ChosenBackend choose(const CheckOptions& options, bool poison) {
  BackendOptions on = options.on;
  on.poison = poison;
  if (!options.is_held()) return choose_backend(options.backend, on);
  const std::string name = choose_backend(options.backend, on).backend->name();
  const std::vector<std::string> kernels = kernels_of(name);
  if (std::ranges::find(kernels, options.kernel) == kernels.end())
    throw error("--kernel: expected all, own", list_of(kernels), ", found '", options.kernel, "'");
  const std::string held = name + ", held to " + options.kernel;
  if (name == "cuda") return {make_cuda_kernel(on, options.kernel), held};
  on.cpu_level = options.kernel;
  return {make_golden(on), held};
}

}  // namespace

Subject::Subject(const CheckOptions& options_)
    : options(options_), reference(make_golden({.threads = options_.on.threads, .cpu_level = "plain"})) {
  ChosenBackend chosen = choose(options, false);
  reason = chosen.reason;
  owned.push_back(std::move(chosen.backend));
  owned.push_back(choose(options, true).backend);
  if (const std::string why = owned[0]->refuses(options.contract); !why.empty()) throw Error(why);
  for (std::size_t i = 0; i < 2 && options.mutation != nullptr; ++i)
    owned.push_back(make_mutant(*owned[i], *options.mutation));
  backend = owned[owned.size() - 2].get(), poisoned = owned.back().get();
}

bool Subject::has(CheckStage stage) const { return std::ranges::find(options.stages, stage) != options.stages.end(); }
bool Subject::has(Battery battery) const {
  return std::ranges::find(options.batteries, battery) != options.batteries.end();
}

/// What `gdnsim bench` measures of the step, of this contract alone.
void check_times(const Subject& subject, std::vector<Gate>& gates) {
  if (!subject.has(Battery::time) || !(subject.has(CheckStage::conv) || subject.has(CheckStage::recurrent))) return;
  const std::string shape = bench_shape(bench_model(kTimedRows, subject.options.state), kTimedRows);
  if (!subject.has(CheckStage::recurrent))
    return gates.push_back(skipped_gate(CheckStage::conv, Battery::time, "conv update", shape,
                                        "in one launch with the recurrence, and measured with it"));
  subject.begin("times of a step");
  BenchOptions bench;
  bench.backend = subject.options.on, bench.states = {subject.options.state};
  bench.rows = {subject.options.reduced ? 1 : kTimedRows}, bench.seconds = subject.options.reduced ? 0.01 : 0.1;
  const std::size_t before = gates.size();
  CheckOptions step = subject.options;
  step.stages = {CheckStage::recurrent};
  // cuda's measures nothing when a row of the table gives other bits, and says which.
  attempt(step, Battery::time, "step", bench_model(kTimedRows, step.state), gates, [&] {
    for (const Measure& m : subject.backend->name() == "cuda" ? bench_cuda(bench) : bench_golden(bench))
      if (m.contract == step.contract.name && (m.stage != "norm" || subject.has(CheckStage::gated_norm)) &&
          (!step.is_held() || m.variant == step.kernel))
        add_measure(m, gates);
  });
  if (gates.size() == before)
    gates.push_back(skipped_gate(CheckStage::recurrent, Battery::time, "step", shape,
                                 "only golden, triton-sm90 and triton-sm90-mixed are measured"));
}

namespace {

/// The step of one row of the table, in smaller batches: what the backend would not take by itself is examined too.
void check_kernel(const CheckOptions& options, const std::string& kernel, std::vector<Gate>& gates) {
  CheckOptions held = options;
  held.kernel = kernel, held.reduced = true;
  std::erase_if(held.batteries, [](Battery battery) { return battery > Battery::L2; });
  if (held.batteries.empty()) return;
  std::vector<Gate> found;
  attempt(held, held.batteries.front(), "every battery", check_model(held), found, [&] {  // some need a newer device
    const Subject subject(held);
    check_steps(subject, found);
    check_carried(subject, found);
  });
  for (Gate& gate : found) {
    gate.kernel = kernel;
    gates.push_back(std::move(gate));
  }
}

}  // namespace

CheckReport run_check(const CheckOptions& options) {
  const Subject subject(options);
  CheckReport report;
  report.backend = subject.reason, report.description = subject.backend->description();
  report.contract = options.contract, report.shape = options.shape, report.reduced = options.reduced;
  check_steps(subject, report.gates);
  check_carried(subject, report.gates);
  check_norms(subject, report.gates);
  check_times(subject, report.gates);
  if (options.is_held())
    for (Gate& gate : report.gates) gate.kernel = options.kernel;
  else if (options.kernel == "all" && options.mutation == nullptr && options.on.cpu_level.empty())
    for (const std::string& kernel : kernels_of(subject.backend->name())) check_kernel(options, kernel, report.gates);
  std::ranges::stable_sort(report.gates, {}, [](const Gate& gate) { return gate.stage; });
  return report;
}

std::uint64_t CheckReport::compared() const {
  std::uint64_t all = 0;
  for (const Gate& gate : gates) all += gate.compared;
  return all;
}

std::uint64_t CheckReport::count(Gate::Verdict verdict) const {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(gates, [verdict](const Gate& gate) { return gate.verdict == verdict; }));
}

int CheckReport::exit_code() const {
  if (count(Gate::Verdict::violated) + count(Gate::Verdict::empty) > 0) return 1;
  if (count(Gate::Verdict::held) > 0) return 0;
  // A time is skipped where this machine has not the device for it: the others are an answer.
  const bool answered = std::ranges::none_of(
      gates, [](const Gate& gate) { return gate.verdict == Gate::Verdict::skipped && gate.battery != Battery::time; });
  return count(Gate::Verdict::measured) > 0 && answered ? 0 : 2;
}

TraceCheck check_trace(Stream& stream, Recording& recording, const Slice& slice) {
  return {check_repeats(stream, recording, slice)};
}

}  // namespace gdnsim
