// The CUDA backend's memory and devices: digests taken where the blocks lie, pools of more than 2^31 elements, steps that are
// recorded and put into the queue again, a device that is not the current one. Without a device the cases are skipped.
#include <doctest/doctest.h>

#include <gdnsim/backend.hpp>
#include <gdnsim/contract.hpp>
#include <gdnsim/devices.hpp>
#include <gdnsim/norm.hpp>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/variants.hpp"
#include "kernel/sides.hpp"

using namespace gdnsim;
using namespace gdnsim::second;
using namespace gdnsim::test;

namespace {

Model model_of(int H, int HV, int K, int V, int W, std::int64_t blocks) {
  Model m;
  m.H = H, m.HV = HV, m.K = K, m.V = V, m.W = W;
  m.scale = 0.088388346f;
  m.num_blocks = blocks;
  m.norm_eps = 1e-6f;
  m.sentinel = Sentinel::zero;
  return m;
}

second::Recipe recipe_for(const Model& model) {
  second::Recipe recipe;
  recipe.model = model;
  recipe.name = "recipe";
  return recipe;
}

/// A stream's step with its rows in these blocks, all active.
StepPlan plan_in(const Model& model, std::int64_t step, const std::vector<std::int32_t>& blocks) {
  std::vector<std::int64_t> sequence(blocks.size());
  for (std::size_t row = 0; row < blocks.size(); ++row) sequence[row] = static_cast<std::int64_t>(row);
  return make_plan(model, step, Path::decode, blocks, sequence, static_cast<int>(blocks.size()), "test");
}

void step(Backend& backend, Pool& pool, const StepPlan& plan, const StepInputs& inputs, const Contract& contract,
          StepOutputs& outputs) {
  backend.step({.layer = 0, .plan = plan, .inputs = inputs, .contract = contract}, pool, outputs);
}

/// Few blocks of a pool that is too large to be looked at as a whole.
void compare_blocks(const Pool& got, const Pool& want, const std::vector<std::int32_t>& blocks, Compared& total) {
  const Model& m = want.model();
  second::Block a{Bytes(m.state_bytes()), Bytes(m.conv_bytes())}, b = a;
  for (const std::int32_t block : blocks) {
    got.read(0, block, a.recurrent, a.conv);
    want.read(0, block, b.recurrent, b.conv);
    compare_bytes(a.recurrent, b.recurrent, m.state_dtype, "state of block " + std::to_string(block), total);
    compare_bytes(a.conv, b.conv, m.conv_state_dtype, "conv state of block " + std::to_string(block), total);
    compare_digests(got.digest(0, block), want.digest(0, block), block);
  }
}

/// Rows at the far end of a pool, where an offset of 32 bits would have wrapped to `near`: steps, a window, events.
void compare_far(Backend& cuda, const Model& model, const Contract& contract, const std::vector<std::int32_t>& far,
                 const std::vector<std::int32_t>& near, Compared& total) {
  OneLayer stream(recipe_for(model), 5, static_cast<int>(far.size()));
  const auto golden = make_golden({});
  const auto got = cuda.make_pool(stream.model(), {0}), want = golden->make_pool(stream.model(), {0});
  std::vector<std::int32_t> all = far;
  all.insert(all.end(), near.begin(), near.end());
  for (const auto& [backend, pool] : {std::pair{&cuda, got.get()}, std::pair{golden.get(), want.get()}}) {
    backend->prepare(stream, {0});
    for (const std::int32_t block : all) {
      const Block bytes = stream.random_block(static_cast<std::uint64_t>(block));
      pool->write(0, block, bytes.recurrent, bytes.conv);
    }
  }
  std::vector<StepPlan> plans;
  std::vector<StepInputs> inputs(3);
  for (std::int64_t t = 0; t < 3; ++t) {
    plans.push_back(plan_in(stream.model(), t, far));
    stream.inputs(t, 0, inputs[static_cast<std::size_t>(t)]);
  }
  const std::vector<std::vector<Look>> looks(2, {{far[0], true}, {far[1], false}});
  const ContractSet contracts{contract, contract};
  std::vector<WindowStep> windows[2];
  StepOutputs outputs[2];
  for (const auto& [side, backend, pool] : {std::tuple{0, &cuda, got.get()}, std::tuple{1, golden.get(), want.get()}}) {
    step(*backend, *pool, plans[0], inputs[0], contract, outputs[side]);
    windows[side].resize(2);
    backend->steps({0, std::span(plans).subspan(1), std::span(inputs).subspan(1), contracts, looks}, *pool,
                   windows[side]);
    pool->copy(0, far[0], far[1]);
    pool->zero(0, far[2]);
  }
  for (Tap tap : {Tap::conv_out, Tap::core_out, Tap::norm_out}) {
    compare_bytes(outputs[0][tap], outputs[1][tap], DType::bf16, std::string(name_of(tap)), total);
    for (std::size_t t = 0; t < 2; ++t)
      compare_bytes(windows[0][t].outputs[tap], windows[1][t].outputs[tap], DType::bf16, "window", total);
  }
  for (std::size_t t = 0; t < 2; ++t)
    for (std::size_t i = 0; i < 2; ++i) {
      compare_digests(windows[0][t].kept[i].digest, windows[1][t].kept[i].digest, far[i]);
      compare_bytes(windows[0][t].kept[i].recurrent, windows[1][t].kept[i].recurrent, model.state_dtype, "kept", total);
    }
  compare_blocks(*got, *want, all, total);
}

/// Every variant that the device has, and the product's own choice.
std::vector<std::unique_ptr<Backend>> all_backends() {
  std::vector<std::unique_ptr<Backend>> result;
  result.push_back(make_cuda({}));
  for (const cuda::Variant& variant : cuda::variants())
    if (auto backend = try_variant(variant.name, false)) result.push_back(std::move(backend));
  return result;
}

/// A window of known steps of every side, the first one's against the others', with a block kept after each step.
void compare_window(OneLayer& stream, std::span<Side* const> sides, Compared& total) {
  constexpr std::int64_t first = 6, steps = 5;
  std::vector<StepPlan> plans;
  std::vector<StepInputs> inputs(steps);
  for (std::int64_t t = 0; t < steps; ++t) {
    plans.push_back(stream.plan(first + t));
    stream.inputs(first + t, 0, inputs[static_cast<std::size_t>(t)]);
  }
  const std::vector<std::vector<Look>> looks(steps, {{1, true}});
  const ContractSet contracts = contract_set("triton-sm90");
  std::vector<std::vector<WindowStep>> windows(sides.size(), std::vector<WindowStep>(steps));
  for (std::size_t i = 0; i < sides.size(); ++i)
    sides[i]->backend.steps({0, plans, inputs, contracts, looks}, *sides[i]->pool, windows[i]);
  for (std::size_t i = 1; i < sides.size(); ++i) {
    for (std::size_t t = 0; t < steps; ++t) {
      const WindowStep &got = windows[i][t], &want = windows[0][t];
      for (const Tap tap : {Tap::conv_out, Tap::core_out, Tap::norm_out})
        compare_bytes(got.outputs[tap], want.outputs[tap], DType::bf16, std::string(name_of(tap)), total);
      compare_bytes(got.kept[0].recurrent, want.kept[0].recurrent, stream.model().state_dtype, "kept", total);
      compare_digests(got.kept[0].digest, want.kept[0].digest, 1);
    }
    sides[0]->outputs = sides[i]->outputs = {};  // those of the last step have been compared
    compare_sides(*sides[i], *sides[0], stream.model(), total);
  }
}

/// The norm by itself of every side, the first one's against the others'.
void compare_norm(OneLayer& stream, std::span<Side* const> sides, Compared& total) {
  const Model& m = stream.model();
  StepInputs inputs;
  stream.inputs(0, 0, inputs);
  const NormSpec spec{m.V, m.act_dtype, true, m.norm_gate, *m.norm_eps, 0};
  const std::int64_t rows = static_cast<std::int64_t>(inputs.z.size() / size_of(m.act_dtype)) / m.V;
  std::vector<NormOutputs> outputs(sides.size());
  for (std::size_t i = 0; i < sides.size(); ++i)
    sides[i]->backend.norm(
        {spec, contract_preset("triton-sm90"), rows, inputs.z, inputs.z, stream.params(0).norm_weight}, outputs[i]);
  for (std::size_t i = 1; i < sides.size(); ++i) {
    compare_bytes(outputs[i].out, outputs[0].out, m.act_dtype, "norm", total);
    CHECK(outputs[i].rstd == outputs[0].rstd);
  }
}

}  // namespace

TEST_CASE("cuda pool: a state pool of more than 2^31 elements") {
  CUDA_OR_SKIP(first);
  Model model = model_of(16, 32, 128, 128, 4, 4110);  // block 4096 begins at element 2^31: 4.3 GB of bf16
  model.state_dtype = DType::bf16;
  Compared total;
  for (const auto& backend : all_backends())
    for (const char* preset : {"golden", "triton-sm90"})
      compare_far(*backend, model, contract_preset(preset), {4096, 4095, 4109, 4100, 2048}, {0, 1, 4, 13}, total);
  MESSAGE("elements compared: " << total.elements);
  CHECK(total.elements > 10000000);
}

TEST_CASE("cuda pool: a pool of conv states of more than 2^31 elements") {
  CUDA_OR_SKIP(first);
  Model model = model_of(16, 16, 32, 32, 5, 349'540);  // block 349,526 lies beyond; 16 GB with the state
  model.state_dtype = DType::bf16;
  Compared total;
  compare_far(*first, model, contract_preset("golden"), {349'526, 349'525, 349'539, 349'530, 174'763}, {0, 1, 4, 13},
              total);
  compare_far(*cuda::make_variant({}, "plain", false), model, contract_preset("triton-sm90"),
              {349'526, 349'525, 349'539, 349'530, 174'763}, {0, 1, 4, 13}, total);
  MESSAGE("elements compared: " << total.elements);
  CHECK(total.elements > 100000);
}

TEST_CASE("cuda pool: digests after steps, events and writes are the host's, in whatever order they are asked for") {
  CUDA_OR_SKIP(cuda);
  for (const Model& model :
       {model_of(2, 4, 64, 64, 4, 200), model_of(1, 3, 7, 5, 3, 200), model_of(1, 1, 1, 3, 2, 200)}) {
    OneLayer stream(recipe_for(model), 3, 6);
    const auto golden = make_golden({});
    Side got(*cuda, stream), want(*golden, stream);
    Random random(7);
    StepInputs inputs;
    for (std::int64_t t = 0; t < 40; ++t) {
      const std::int32_t a = static_cast<std::int32_t>(random.below(200)),
                         b = static_cast<std::int32_t>(random.below(200));
      const Block bytes = stream.random_block(random.bits());
      stream.inputs(t, 0, inputs);
      const std::uint32_t what = random.below(4);
      for (Side* side : {&got, &want}) {
        if (what == 0) side->pool->zero(0, a);
        if (what == 1) side->pool->copy(0, a, b);
        if (what == 2) side->pool->write(0, a, bytes.recurrent, bytes.conv);
        if (what == 3)
          step(side->backend, *side->pool, stream.plan(t), inputs, contract_preset("golden"), side->outputs);
      }
      for (int ask = 0; ask < 5; ++ask) {
        const std::int32_t block = ask == 0 ? a : ask == 1 ? b : static_cast<std::int32_t>(random.below(200));
        compare_digests(got.pool->digest(0, block), want.pool->digest(0, block), block);
      }
    }
    for (std::int32_t block = 199; block >= 0; --block)
      compare_digests(got.pool->digest(0, block), want.pool->digest(0, block), block);
  }
}

TEST_CASE("cuda pool: steps that are put into the queue again take new inputs, rows, layers, contracts and pools") {
  CUDA_OR_SKIP(cuda);
  const auto golden = make_golden({});
  Compared total;
  const Model model = model_of(2, 4, 64, 64, 4, 30);
  OneLayer narrow(recipe_for(model), 3, 2), wide(recipe_for(model), 3, 9);
  Side got[] = {{*cuda, narrow}, {*cuda, wide}}, want[] = {{*golden, narrow}, {*golden, wide}};
  OneLayer* streams[] = {&narrow, &wide};
  const TapSet outer{Tap::conv_out, Tap::core_out, Tap::norm_out}, few{Tap::core_out};
  Random random(8);
  StepInputs inputs;
  for (std::int64_t t = 0; t < 60; ++t) {
    CAPTURE(t);
    const std::size_t which = random.below(2);
    const char* presets[] = {"golden", "triton-sm90", "triton-sm90-mixed"};
    const Contract& contract = contract_preset(presets[random.below(3)]);
    const std::uint32_t taps = random.below(3);
    streams[which]->inputs(t, 0, inputs);
    for (Side* side : {&got[which], &want[which]}) {
      side->outputs.taps.fill({});
      side->outputs.want = taps == 0 ? every_tap() : taps == 1 ? outer : few;
      step(side->backend, *side->pool, streams[which]->plan(t), inputs, contract, side->outputs);
    }
    compare_sides(got[which], want[which], narrow.model(), total);
  }
  MESSAGE("elements compared: " << total.elements);
}

TEST_CASE("cuda pool: each backend stays on its device, whichever is current") {
  CUDA_OR_SKIP(first);
  if (cuda_devices() < 2) GDNSIM_SKIP(kOneGpu);
  const auto second = make_cuda({.threads = 0, .device = 1});
  const auto golden = make_golden({});
  OneLayer stream(recipe_for(model_of(2, 4, 128, 128, 4, 12)), 3, 4);
  Side sides[] = {{*first, stream}, {*second, stream}}, want(*golden, stream);
  Compared total;
  StepInputs inputs;
  for (std::int64_t t = 0; t < 6; ++t) {
    stream.inputs(t, 0, inputs);
    step(*golden, *want.pool, stream.plan(t), inputs, contract_preset("triton-sm90"), want.outputs);
    for (Side& side : sides)
      step(side.backend, *side.pool, stream.plan(t), inputs, contract_preset("triton-sm90"), side.outputs);
    for (Side& side : sides) compare_sides(side, want, stream.model(), total);
  }
  Side* all[] = {&want, &sides[0], &sides[1]};
  compare_window(stream, all, total);
  compare_norm(stream, all, total);
  MESSAGE("elements compared: " << total.elements);
  CHECK(total.elements > 1000000);
}
