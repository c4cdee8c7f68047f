// Launches of several drafts on the device (rule A9): where a store rounds, a draft goes on from what the one before held, not
// from what it stored. Against golden; without a device the cases are skipped.
#include <doctest/doctest.h>

#include <gdnsim/backend.hpp>
#include <gdnsim/contract.hpp>
#include <gdnsim/error.hpp>

#include <memory>
#include <string>
#include <vector>

#include "cuda/variants.hpp"
#include "kernel/sides.hpp"

using namespace gdnsim;
using namespace gdnsim::second;
using namespace gdnsim::test;

namespace {

constexpr int kRows = 5, kDrafts = 3, kLaunches = 4;
constexpr std::int32_t kStride = kDrafts + 1;  // blocks of a row: where it starts, then one a draft

second::Recipe recipe_of(DType state, int K, int V) {
  second::Recipe recipe;
  Model& m = recipe.model;
  m.H = 2, m.HV = 4, m.K = K, m.V = V, m.W = 4;
  m.scale = 0.3f, m.num_blocks = 1 + kRows * kStride, m.norm_eps = 1e-6f, m.layer_ids = {0};
  m.state_dtype = state;
  recipe.A_log = -3;  // slow: what was rounded off stays to be seen
  recipe.name = "launch";
  return recipe;
}

/// One draft; the last row has one draft less. A row goes on from the block of the draft before, or stays where it is.
StepPlan plan_of(const Model& model, std::int64_t step, int draft, bool moving) {
  std::vector<std::int32_t> index, source;
  std::vector<std::int64_t> sequence;
  for (std::int32_t row = 0; row < kRows; ++row) {
    const bool there = row + 1 < kRows || draft + 1 < kDrafts;
    const std::int32_t first = 1 + kStride * row;
    index.push_back(!there ? 0 : moving ? first + 1 + draft : first);
    source.push_back(there && moving ? first + draft : -1);
    sequence.push_back(there ? row : -1);
  }
  return make_plan(model, step, Path::mixed, index, sequence, kRows, "test", {draft, draft + 1 == kDrafts, source, {}});
}

struct Draft {
  StepPlan plan;
  StepInputs inputs;
};

std::vector<Draft> drafts_of(OneLayer& stream, bool moving) {
  std::vector<Draft> drafts;
  for (std::int64_t step = 0; step < kDrafts * kLaunches; ++step) {
    drafts.push_back({plan_of(stream.model(), step, static_cast<int>(step % kDrafts), moving), {}});
    stream.inputs(step, 0, drafts.back().inputs);
  }
  return drafts;
}

void move_rows(Pool& pool, const StepPlan& plan) {
  for (std::size_t row = 0; row < plan.block.size(); ++row)
    if (plan.start(row) != plan.block[row]) pool.copy(0, plan.source[row], plan.block[row]);
}

/// Launch after launch: from the second on, what repeats was recorded.
void compare_launches(DType state, int K, int V, const Contract& contract, Compared& total) {
  OneLayer stream(recipe_of(state, K, V), 5, kRows);
  const auto cuda = make_cuda({}), golden = make_golden({});
  Side got(*cuda, stream), want(*golden, stream);
  for (const Draft& draft : drafts_of(stream, true)) {
    CAPTURE(draft.plan.step);
    for (Side* side : {&got, &want}) {
      move_rows(*side->pool, draft.plan);
      side->backend.step({0, draft.plan, draft.inputs, contract}, *side->pool, side->outputs);
    }
    compare_sides(got, want, stream.model(), total);
  }
}

Bytes state_after(Backend& backend, OneLayer& stream, bool launches) {
  Side side(backend, stream);
  for (Draft& draft : drafts_of(stream, true)) {
    if (!launches) draft.plan.draft = 0, draft.plan.last_draft = true;
    move_rows(*side.pool, draft.plan);
    side.backend.step({0, draft.plan, draft.inputs, contract_preset("golden")}, *side.pool, side.outputs);
  }
  Block block{Bytes(stream.model().state_bytes()), Bytes(stream.model().conv_bytes())};
  side.pool->read(0, kDrafts, block.recurrent, block.conv);  // the first row's second draft
  return block.recurrent;
}

}  // namespace

TEST_CASE("cuda launch: drafts go on from what is held") {
  CUDA_OR_SKIP(first);
  Contract rounding = contract_preset("golden");
  rounding.state_store = StateStore::bf16;
  Compared total;
  for (const auto& [K, V] : {std::pair{128, 128}, std::pair{64, 32}}) {
    for (DType state : {DType::bf16, DType::f16, DType::f32})
      for (const char* preset : {"golden", "triton-sm90", "triton-sm90-mixed"}) {
        CAPTURE(preset);
        compare_launches(state, K, V, contract_preset(preset), total);
      }
    compare_launches(DType::f32, K, V, rounding, total);
    compare_launches(DType::bf16, K, V, rounding, total);
  }
  MESSAGE("elements compared: " << total.elements);
  CHECK(total.elements > 10000000);
}

TEST_CASE("cuda launch: plain steps of a bf16 state leave another one") {
  CUDA_OR_SKIP(cuda);
  OneLayer narrow(recipe_of(DType::bf16, 128, 128), 5, kRows), wide(recipe_of(DType::f32, 128, 128), 5, kRows);
  CHECK(state_after(*cuda, narrow, true) != state_after(*cuda, narrow, false));
  CHECK(state_after(*cuda, wide, true) == state_after(*cuda, wide, false));
}

TEST_CASE("cuda launch: several drafts handed over at once") {
  CUDA_OR_SKIP(cuda);
  Compared total;
  for (DType state : {DType::bf16, DType::f32}) {
    OneLayer stream(recipe_of(state, 128, 128), 5, kRows);
    const auto golden = make_golden({});
    Side got(*cuda, stream), want(*golden, stream);
    std::vector<StepPlan> plans;
    std::vector<StepInputs> inputs;
    for (Draft& draft : drafts_of(stream, false))
      plans.push_back(std::move(draft.plan)), inputs.push_back(std::move(draft.inputs));
    const std::vector<std::vector<Look>> looks(plans.size(), {{1, true}});
    const ContractSet contracts{contract_preset("golden"), contract_preset("golden")};
    std::vector<WindowStep> steps(plans.size());
    cuda->steps({0, plans, inputs, contracts, looks}, *got.pool, steps);
    Block block{Bytes(stream.model().state_bytes()), Bytes(stream.model().conv_bytes())};
    for (std::size_t t = 0; t < plans.size(); ++t) {
      CAPTURE(t);
      golden->step({0, plans[t], inputs[t], contract_preset("golden")}, *want.pool, want.outputs);
      want.pool->read(0, 1, block.recurrent, block.conv);
      compare_bytes(steps[t].outputs[Tap::core_out], want.outputs[Tap::core_out], DType::bf16, "core_out", total);
      compare_bytes(steps[t].kept[0].recurrent, block.recurrent, state, "kept", total);
    }
  }
  CHECK(total.elements > 100000);
}

TEST_CASE("cuda launch: a variant that cannot hold says so") {
  CUDA_OR_SKIP(first);
  OneLayer stream(recipe_of(DType::bf16, 128, 128), 5, kRows);
  const Draft draft = std::move(drafts_of(stream, false)[0]);
  for (const char* name : {"fused", "resident"}) {
    const auto held_to = cuda::make_variant({}, name, false);
    Side side(*held_to, stream);
    side.outputs.want = {Tap::core_out};
    CHECK_THROWS_WITH_AS(
        held_to->step({0, draft.plan, draft.inputs, contract_preset("golden")}, *side.pool, side.outputs),
        (std::string("cuda: variant ") + name + ": refused because of a launch of several drafts whose stores round")
            .c_str(),
        Error);
  }
}
