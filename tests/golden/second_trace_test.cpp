// The second implementation against traces recorded from the real kernels: the reference of the references. Every
// recorded output and state must come out bit for bit, from the inputs alone and by code that shares nothing with
// golden.
#include <doctest/doctest.h>

#include <gdnsim/trace.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "support/one_layer.hpp"
#include "support/second_step.hpp"
#include "support/skip.hpp"

using namespace gdnsim;
using namespace gdnsim::second;

namespace {

struct Count {
  std::uint64_t outputs = 0, states = 0;
};

/// Captures from vLLM say of each step which kernel it took. Of the others, those of the kernel that serves mixed steps
/// have "mixed" in their names, golden's own "golden"; the rest are the packed decode kernel's.
Rules rules_of(const std::string& path, Path step) {
  const std::string stem = std::filesystem::path(path).stem().string();
  if (stem.starts_with("vllm")) return step == Path::mixed ? Rules::triton_sm90_mixed_gating : Rules::triton_sm90;
  if (stem.find("golden") != std::string::npos) return Rules::golden;
  return stem.find("mixed") != std::string::npos ? Rules::triton_sm90_mixed : Rules::triton_sm90;
}

Block zero_block(const Model& model) { return {Bytes(model.state_bytes()), Bytes(model.conv_bytes())}; }

void apply_events(Trace& trace, std::int64_t step, int layer, std::vector<Block>& blocks) {
  for (const Event& event : trace.events()) {
    if (event.step != step || (event.layer >= 0 && event.layer != layer)) continue;
    Block& block = blocks.at(static_cast<std::size_t>(event.block));
    if (event.kind == EventKind::zero) block = zero_block(trace.model());
    if (event.kind == EventKind::copy) block = blocks.at(static_cast<std::size_t>(event.source));
    if (event.kind == EventKind::load) trace.load_row(event.source, block.recurrent, block.conv);
  }
}

/// A row that goes on from another block takes its states along.
void move_rows(const StepPlan& plan, std::vector<Block>& blocks) {
  for (std::size_t row = 0; row < plan.source.size(); ++row)
    if (plan.block[row] >= 0 && plan.source[row] >= 0)
      blocks.at(static_cast<std::size_t>(plan.block[row])) = blocks.at(static_cast<std::size_t>(plan.source[row]));
}

/// Rows of inactive sequences whose buffer the engine left unwritten are set to what was recorded: not compared.
void ignore_unwritten(Bytes& want, const Bytes& got, const StepPlan& plan) {
  const std::size_t width = want.size() / plan.block.size();
  for (std::size_t row = 0; row < plan.block.size(); ++row)
    if (plan.block[row] < 0)
      std::copy_n(got.begin() + static_cast<std::ptrdiff_t>(row * width), width,
                  want.begin() + static_cast<std::ptrdiff_t>(row * width));
}

void compare_taps(Trace& trace, std::int64_t step, int layer, const Taps& got, Count& count) {
  const Model& model = trace.model();
  for (Tap tap : {Tap::conv_out, Tap::core_out, Tap::norm_out}) {
    if (!trace.taps(layer).has(tap)) continue;
    Bytes want;
    trace.read_tap(tap, step, layer, want);
    const InactiveOut rule = tap == Tap::conv_out ? model.inactive_conv_out : model.inactive_core_out;
    if (rule == InactiveOut::unwritten) ignore_unwritten(want, got[tap], trace.plan(step));
    CAPTURE(step);
    CAPTURE(layer);
    CAPTURE(name_of(tap));
    CHECK(first_difference(got[tap], want, size_of(model.act_dtype)) == "");
    count.outputs += want.size() / size_of(model.act_dtype);
  }
}

void compare_snapshots(Trace& trace, std::int64_t step, int layer, const std::vector<Block>& blocks, Count& count) {
  const Model& model = trace.model();
  for (const Snapshot& snapshot : trace.snapshots()) {
    if (snapshot.step != step || snapshot.layer != layer) continue;
    const Block& got = blocks.at(static_cast<std::size_t>(snapshot.block));
    Block want;
    trace.read_snapshot(snapshot, want.recurrent, want.conv);
    CAPTURE(step);
    CAPTURE(layer);
    CAPTURE(snapshot.block);
    CHECK(first_difference(got.recurrent, want.recurrent, size_of(model.state_dtype)) == "");
    CHECK(first_difference(got.conv, want.conv, size_of(model.conv_state_dtype)) == "");
    count.states += static_cast<std::uint64_t>(model.state_elements() + model.conv_elements());
  }
}

/// Replays a whole trace.
Count replay(const std::string& path) {
  CAPTURE(path);
  const auto trace = open_trace(path);
  Count count;
  for (int layer = 0; layer < trace->model().layers(); ++layer) {
    std::vector<Block> blocks(static_cast<std::size_t>(trace->model().num_blocks), zero_block(trace->model()));
    StepInputs inputs;
    Held held;
    for (std::int64_t t = 0; t < trace->steps(); ++t) {
      const StepPlan plan = trace->plan(t);
      apply_events(*trace, t, layer, blocks);
      move_rows(plan, blocks);
      trace->inputs(t, layer, inputs);
      const Taps got = step(trace->model(), trace->params(layer), rules_of(path, plan.path), plan, inputs, blocks,
                            Mistake::none, &held);
      compare_taps(*trace, t, layer, got, count);
      compare_snapshots(*trace, t, layer, blocks, count);
    }
  }
  return count;
}

/// The recorded traces in a folder, sorted.
std::vector<std::string> traces_in(const std::filesystem::path& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".h5") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

TEST_CASE("second trace: the sample traces, every recorded bit") {
  const char* folder = std::getenv("GDNSIM_TRACES");
  REQUIRE(folder != nullptr);
  int recorded = 0;
  Count total;
  for (const std::string& path : traces_in(folder)) {
    if (!open_trace(path)->has_recording()) continue;
    const Count count = replay(path);
    CHECK(count.outputs > 0);
    total.outputs += count.outputs, total.states += count.states;
    ++recorded;
  }
  MESSAGE("traces: " << recorded << ", outputs: " << total.outputs << ", state elements: " << total.states);
  CHECK(recorded >= 8);
  CHECK(total.states > 0);
}

TEST_CASE("second trace: version 2, launches of several candidates, moves, forks and all, every recorded bit") {
  const char* folder = std::getenv("GDNSIM_TRACES");
  REQUIRE(folder != nullptr);
  Count total;
  bool launches = false, moves = false, rejected = false;
  for (const std::string& path : traces_in(std::filesystem::path(folder) / "version2")) {
    const Count count = replay(path);
    total.outputs += count.outputs, total.states += count.states;
    const auto trace = open_trace(path);
    for (std::int64_t t = 0; t < trace->steps(); ++t) {
      const StepPlan plan = trace->plan(t);
      launches |= plan.draft > 0;
      for (std::size_t row = 0; row < plan.block.size(); ++row) {
        moves |= plan.draft == 0 && plan.start(row) != plan.block[row];
        rejected |= !plan.accepted.empty() && plan.accepted[row] == 1;
      }
    }
  }
  MESSAGE("outputs: " << total.outputs << ", state elements: " << total.states);
  CHECK(launches);
  CHECK(moves);
  CHECK(rejected);
  CHECK(total.outputs > 5000);
  CHECK(total.states > 5000);
}

TEST_CASE("second trace: with a bf16 state, a launch that went on from what is stored gives other bits") {
  const char* folder = std::getenv("GDNSIM_TRACES");
  REQUIRE(folder != nullptr);
  const auto trace = open_trace((std::filesystem::path(folder) / "version2" / "golden_speculative.h5").string());
  std::vector<Block> right(static_cast<std::size_t>(trace->model().num_blocks), zero_block(trace->model())), wrong;
  wrong = right;
  Held held;
  StepInputs inputs;
  for (std::int64_t t = 0; t < trace->steps(); ++t) {
    const StepPlan plan = trace->plan(t);
    trace->inputs(t, 0, inputs);
    for (std::vector<Block>* blocks : {&right, &wrong}) {
      apply_events(*trace, t, 0, *blocks);
      move_rows(plan, *blocks);
      step(trace->model(), trace->params(0), Rules::golden, plan, inputs, *blocks, Mistake::none,
           blocks == &right ? &held : nullptr);
    }
  }
  CHECK(right != wrong);
}

TEST_CASE("second trace: rules that differ in the q and k norms alone are told apart") {
  const char* folder = std::getenv("GDNSIM_TRACES");
  REQUIRE(folder != nullptr);
  const auto trace = open_trace((std::filesystem::path(folder) / "h200_k64_mixed.h5").string());
  std::vector<Block> right(static_cast<std::size_t>(trace->model().num_blocks), zero_block(trace->model())), wrong;
  apply_events(*trace, 0, 0, right);
  wrong = right;
  StepInputs inputs;
  trace->inputs(0, 0, inputs);
  step(trace->model(), trace->params(0), Rules::triton_sm90_mixed, trace->plan(0), inputs, right);
  step(trace->model(), trace->params(0), Rules::triton_sm90, trace->plan(0), inputs, wrong);
  CHECK(right != wrong);
}

TEST_CASE("second trace: the traces in GDNSIM_EXTRA_DATA, every recorded bit") {
  const char* folder = std::getenv("GDNSIM_EXTRA_DATA");
  if (folder == nullptr) GDNSIM_SKIP("GDNSIM_EXTRA_DATA is not set");
  Count total;
  for (const std::string& path : traces_in(std::filesystem::path(folder) / "traces")) {
    const Count count = replay(path);
    total.outputs += count.outputs, total.states += count.states;
  }
  MESSAGE("outputs: " << total.outputs << ", state elements: " << total.states);
  CHECK(total.outputs > 1000000);
}
