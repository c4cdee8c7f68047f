// A launch of several drafts (rule A9): each draft's state lies in a block of its own, the next goes on from it, and where a
// store rounds it goes on from what the kernel held. Against plain steps, the second implementation, and every variant.
#include <doctest/doctest.h>

#include <gdnsim/backend.hpp>
#include <gdnsim/contract.hpp>

#include <cstring>
#include <string>
#include <vector>

#include "golden/levels.hpp"
#include "support/one_layer.hpp"
#include "support/second_step.hpp"

using namespace gdnsim;
using namespace gdnsim::second;

namespace {

constexpr int kRows = 3, kDrafts = 3;
constexpr std::int32_t kBlocks = 1 + kRows * (kDrafts + 1);

Recipe recipe_of(DType state, std::uint32_t hostile_in) {
  Recipe recipe;
  Model& m = recipe.model;
  m.H = 1, m.HV = 2, m.K = 32, m.V = 32, m.W = 4;  // shapes that the Triton kernels have too
  m.scale = 0.3f, m.num_blocks = kBlocks, m.norm_eps = 1e-6f, m.layer_ids = {0};
  m.state_dtype = state;
  recipe.hostile_in = hostile_in;
  recipe.A_log = -3;  // slow: what was rounded off stays to be seen
  recipe.name = "launch";
  return recipe;
}

/// Row r starts in block 1 + 4r and leaves draft j in block 2 + 4r + j. The last row has one draft less.
std::vector<StepPlan> launch_plans(const Model& model) {
  std::vector<StepPlan> plans;
  for (int draft = 0; draft < kDrafts; ++draft) {
    std::vector<std::int32_t> index, source;
    std::vector<std::int64_t> sequence;
    for (std::int32_t row = 0; row < kRows; ++row) {
      const bool there = row + 1 < kRows || draft + 1 < kDrafts;
      index.push_back(there ? 2 + 4 * row + draft : 0);
      source.push_back(there ? index.back() - 1 : -1);
      sequence.push_back(there ? row : -1);
    }
    plans.push_back(make_plan(model, draft, Path::mixed, index, sequence, kRows, "test",
                              {draft, draft + 1 == kDrafts, source, {}}));
  }
  return plans;
}

struct Run {
  std::vector<StepOutputs> outputs;  // [drafts]
  std::vector<Block> blocks;         // the pool afterwards
};

StepOutputs all_taps() {
  StepOutputs outputs;
  for (std::size_t t = 0; t < kTaps; ++t)
    if (static_cast<Tap>(t) != Tap::state && static_cast<Tap>(t) != Tap::conv_state)
      outputs.want.add(static_cast<Tap>(t));
  return outputs;
}

std::unique_ptr<Backend> backend_at(const std::string& level) {
  BackendOptions options;
  options.cpu_level = level;
  return make_golden(options);
}

std::unique_ptr<Pool> first_pool(Backend& backend, OneLayer& stream) {
  auto pool = backend.make_pool(stream.model(), {0});
  backend.prepare(stream, {0});
  for (std::int32_t b = 0; b < kBlocks; ++b) {
    const Block block = stream.random_block(static_cast<std::uint64_t>(b));
    pool->write(0, b, block.recurrent, block.conv);
  }
  return pool;
}

std::vector<Block> blocks_of(const Pool& pool) {
  std::vector<Block> blocks;
  for (std::int32_t b = 0; b < kBlocks; ++b) {
    Block block{Bytes(pool.model().state_bytes()), Bytes(pool.model().conv_bytes())};
    pool.read(0, b, block.recurrent, block.conv);
    blocks.push_back(std::move(block));
  }
  return blocks;
}

/// All drafts in one call. Each leaves the digests that the blocks then have.
Run run_at_once(OneLayer& stream, const std::vector<StepPlan>& plans, const Contract& contract,
                const std::string& level) {
  const auto backend = backend_at(level), plain = backend_at("plain");
  const auto pool = first_pool(*backend, stream), beside = first_pool(*plain, stream);
  std::vector<StepInputs> inputs(plans.size());
  std::vector<WindowStep> steps(plans.size());
  std::vector<std::vector<Look>> looks(plans.size(), {{1, false}, {5, false}});
  for (std::size_t t = 0; t < plans.size(); ++t) {
    stream.inputs(plans[t].step, 0, inputs[t]);
    steps[t].outputs = all_taps();
  }
  backend->steps({0, plans, inputs, {contract, contract}, looks}, *pool, steps);
  Run result;
  for (std::size_t t = 0; t < plans.size(); ++t) {
    StepOutputs ignored;
    plain->step({0, plans[t], inputs[t], contract}, *beside, ignored);
    for (const KeptBlock& kept : steps[t].kept) CHECK(kept.digest.block == beside->digest(0, kept.block).block);
    CHECK(steps[t].kept.size() == 2);
    result.outputs.push_back(std::move(steps[t].outputs));
  }
  result.blocks = blocks_of(*pool);
  return result;
}

Run run(OneLayer& stream, const std::vector<StepPlan>& plans, const Contract& contract, const std::string& level) {
  const auto backend = backend_at(level);
  const auto pool = first_pool(*backend, stream);
  Run result;
  StepInputs inputs;
  for (const StepPlan& plan : plans) {
    for (std::size_t row = 0; row < plan.block.size(); ++row)
      if (plan.start(row) != plan.block[row]) pool->copy(0, plan.source[row], plan.block[row]);
    stream.inputs(plan.step, 0, inputs);
    StepOutputs outputs = all_taps();
    backend->step({0, plan, inputs, contract}, *pool, outputs);
    result.outputs.push_back(std::move(outputs));
  }
  result.blocks = blocks_of(*pool);
  return result;
}

/// The same by the second implementation; `held`: what is stored rounded goes on unrounded.
Run run_second(OneLayer& stream, const std::vector<StepPlan>& plans, Rules rules, std::vector<Block> blocks,
               bool held = true) {
  Run result;
  Held between;
  StepInputs inputs;
  for (const StepPlan& plan : plans) {
    for (std::size_t row = 0; row < plan.block.size(); ++row)
      if (plan.block[row] >= 0)
        blocks[static_cast<std::size_t>(plan.block[row])] = blocks[static_cast<std::size_t>(plan.start(row))];
    stream.inputs(plan.step, 0, inputs);
    const Taps taps =
        step(stream.model(), stream.params(0), rules, plan, inputs, blocks, Mistake::none, held ? &between : nullptr);
    StepOutputs outputs;
    outputs.taps = taps.bytes;
    result.outputs.push_back(std::move(outputs));
  }
  result.blocks = std::move(blocks);
  return result;
}

std::vector<Block> first_blocks(const OneLayer& stream) {
  std::vector<Block> blocks;
  for (std::int32_t b = 0; b < kBlocks; ++b) blocks.push_back(stream.random_block(static_cast<std::uint64_t>(b)));
  return blocks;
}

void check_equal(const Run& got, const Run& want, const Model& model) {
  for (std::size_t draft = 0; draft < kDrafts; ++draft)
    for (std::size_t t = 0; t < kTaps; ++t) {
      const Tap tap = static_cast<Tap>(t);
      if (tap == Tap::state || tap == Tap::conv_state) continue;
      CAPTURE(draft);
      CAPTURE(name_of(tap));
      CHECK(first_difference(got.outputs[draft][tap], want.outputs[draft][tap], size_of(shape_of(tap, model).type)) ==
            "");
    }
  for (std::size_t b = 0; b < kBlocks; ++b) {
    CAPTURE(b);
    CHECK(first_difference(got.blocks[b].recurrent, want.blocks[b].recurrent, size_of(model.state_dtype)) == "");
    CHECK(first_difference(got.blocks[b].conv, want.blocks[b].conv, size_of(model.conv_state_dtype)) == "");
  }
}

/// The same steps as launches of one draft each.
std::vector<StepPlan> as_plain(std::vector<StepPlan> plans) {
  for (StepPlan& plan : plans) plan.draft = 0, plan.last_draft = true;
  return plans;
}

/// The same drafts, each in the block where its row was.
std::vector<StepPlan> staying(std::vector<StepPlan> plans) {
  for (StepPlan& plan : plans) {
    plan.source.clear();
    for (std::size_t row = 0; row < plan.block.size(); ++row)
      if (plan.block[row] >= 0) plan.block[row] = plan.index[row] = static_cast<std::int32_t>(1 + 4 * row);
  }
  return plans;
}

std::vector<std::string> levels() {
  std::vector<std::string> names;
  for (const golden::Variant& variant : golden::variants())
    if (variant.available) names.emplace_back(variant.name);
  return names;
}

/// Each f32 word rounded to bf16, by integer arithmetic.
Bytes rounded(const Bytes& words) {
  Bytes out(words.size() / 2);
  for (std::size_t i = 0; i < out.size() / 2; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, words.data() + 4 * i, 4);
    const auto half = static_cast<std::uint16_t>((word + 0x7FFFu + (word >> 16 & 1u)) >> 16);
    std::memcpy(out.data() + 2 * i, &half, 2);
  }
  return out;
}

Bytes widened(const Bytes& words) {
  Bytes out(words.size() * 2);
  for (std::size_t i = 0; i < words.size() / 2; ++i) std::memcpy(out.data() + 4 * i + 2, words.data() + 2 * i, 2);
  return out;
}

}  // namespace

TEST_CASE("f32 state: a launch of n drafts is n plain steps") {
  for (const char* name : {"golden", "triton-sm90-mixed"})
    for (const std::string& level : levels()) {
      CAPTURE(name);
      CAPTURE(level);
      OneLayer stream(recipe_of(DType::f32, 40), 5, kRows);
      const std::vector<StepPlan> plans = launch_plans(stream.model());
      const Contract& contract = contract_preset(name);
      check_equal(run(stream, plans, contract, level), run(stream, as_plain(plans), contract, "plain"), stream.model());
    }
}

TEST_CASE("bf16 state: a launch goes on from the f32 state and rounds at each store") {
  for (const auto& preset :
       {std::pair{"golden", Rules::golden}, std::pair{"triton-sm90-mixed", Rules::triton_sm90_mixed}})
    for (const std::string& level : levels()) {
      CAPTURE(preset.first);
      CAPTURE(level);
      OneLayer stream(recipe_of(DType::bf16, 40), 6, kRows);
      const std::vector<StepPlan> plans = launch_plans(stream.model());
      const Run got = run(stream, plans, contract_preset(preset.first), level);
      check_equal(got, run_second(stream, plans, preset.second, first_blocks(stream)), stream.model());
    }
}

TEST_CASE("bf16 state: its stores are those of an f32 run, rounded; plain steps give others") {
  OneLayer stream(recipe_of(DType::bf16, 0), 7, kRows), wide(recipe_of(DType::f32, 0), 7, kRows);
  const std::vector<StepPlan> plans = launch_plans(stream.model());
  const Run got = run(stream, plans, contract_preset("golden"), "");
  std::vector<Block> blocks = first_blocks(stream);
  for (Block& block : blocks) block.recurrent = widened(block.recurrent);
  const Run want = run_second(wide, plans, Rules::golden, std::move(blocks), false);
  for (std::size_t draft = 0; draft < kDrafts; ++draft)
    CHECK(first_difference(got.outputs[draft][Tap::core_out], want.outputs[draft][Tap::core_out], 2) == "");
  for (std::size_t b = 0; b < kBlocks; ++b)
    CHECK(first_difference(got.blocks[b].recurrent, rounded(want.blocks[b].recurrent), 2) == "");
  const Run plain = run(stream, as_plain(plans), contract_preset("golden"), "");
  CHECK(plain.blocks[2].recurrent == got.blocks[2].recurrent);  // after draft 0 nothing was rounded yet
  CHECK(plain.blocks[3].recurrent != got.blocks[3].recurrent);
}

TEST_CASE("f32 state rounded by the contract: the launch goes on from what was not rounded") {
  Contract contract = contract_preset("golden");
  contract.state_store = StateStore::bf16;
  OneLayer stream(recipe_of(DType::f32, 0), 8, kRows);
  const std::vector<StepPlan> plans = launch_plans(stream.model());
  const Run got = run(stream, plans, contract, "");
  const Run want = run_second(stream, plans, Rules::golden, first_blocks(stream), false);  // stores f32
  for (std::size_t draft = 0; draft < kDrafts; ++draft)
    CHECK(first_difference(got.outputs[draft][Tap::core_out], want.outputs[draft][Tap::core_out], 2) == "");
  for (std::int32_t draft = 0; draft < kDrafts; ++draft) {
    const std::size_t block = static_cast<std::size_t>(2 + draft);
    CHECK(first_difference(got.blocks[block].recurrent, widened(rounded(want.blocks[block].recurrent)), 4) == "");
  }
}

TEST_CASE("drafts handed over at once are those drafts one by one, whatever a store rounds") {
  const auto check = [](DType state, StateStore store, const std::string& level) {
    CAPTURE(name_of(state));
    CAPTURE(level);
    Contract contract = contract_preset("golden");
    contract.state_store = store;
    OneLayer stream(recipe_of(state, 0), 9, kRows);
    const auto plans = staying(launch_plans(stream.model()));
    check_equal(run_at_once(stream, plans, contract, level), run(stream, plans, contract, "plain"), stream.model());
  };
  for (const std::string& level : levels()) {
    check(DType::f32, StateStore::declared, level);
    check(DType::f32, StateStore::bf16, level);
    check(DType::bf16, StateStore::declared, level);
  }
}
