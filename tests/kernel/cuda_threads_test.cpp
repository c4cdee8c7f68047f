// Host threads that share a device, each with a backend and a pool of its own: none hears of the others. And the order of what a
// pool does by itself and what steps do to it, of which nothing but waiting takes care. Without a device the cases are skipped.
#include <doctest/doctest.h>

#include <gdnsim/backend.hpp>
#include <gdnsim/contract.hpp>
#include <gdnsim/error.hpp>
#include <gdnsim/norm.hpp>

#include <algorithm>
#include <barrier>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernel/sides.hpp"

using namespace gdnsim;
using namespace gdnsim::second;
using namespace gdnsim::test;

namespace {

constexpr int kThreads = 4, kRounds = 400, kBlocks = 24;
constexpr std::size_t kWindow = 7;  // steps
constexpr std::array kOuter{Tap::conv_out, Tap::core_out, Tap::norm_out};

Model model_of(int H, int HV, int width, DType state, std::int64_t blocks) {
  Model m;
  m.H = H, m.HV = HV, m.K = m.V = width, m.W = 4;
  m.scale = 0.088388346f, m.num_blocks = blocks, m.norm_eps = 1e-6f, m.sentinel = Sentinel::zero;
  m.state_dtype = state;
  return m;
}

OneLayer stream_of(const Model& model, std::uint64_t seed, int rows) {
  second::Recipe recipe;
  recipe.model = model, recipe.name = "threads";
  return OneLayer(recipe, seed, rows);
}

/// What a thread asks of its backend and of its pool, drawn from a seed; and all that it was told.
struct Script {
  std::uint64_t seed;
  const char* preset;
  Model model;
  bool poison;
};

const Script kScripts[kThreads] = {{1, "golden", model_of(2, 4, 64, DType::f32, kBlocks), false},
                                   {2, "triton-sm90", model_of(1, 2, 128, DType::bf16, kBlocks), false},
                                   {3, "triton-sm90-mixed", model_of(2, 2, 64, DType::f32, kBlocks), false},
                                   {4, "triton-sm90", model_of(1, 3, 32, DType::f32, kBlocks), true}};

struct Told {
  std::vector<Bytes> words;
  std::vector<BlockDigest> digests;
};

class Asking {
 public:
  Asking(const Script& script, Backend& backend)
      : contracts_(contract_set(script.preset)),
        random_(script.seed),
        stream_(stream_of(script.model, script.seed, 5)),
        side_(backend, stream_) {}

  Told all_rounds() {
    for (int round = 0; round < kRounds; ++round) one_round();
    for (std::int32_t block = 0; block < kBlocks; ++block) digest(block), read(block);
    return std::move(told_);
  }

 private:
  std::int32_t some_block() { return static_cast<std::int32_t>(random_.below(kBlocks)); }

  void one_round() {
    const std::int32_t block = some_block(), to = some_block();
    switch (random_.below(9)) {
      case 0:
        return side_.pool->zero(0, block);
      case 1:
        return side_.pool->copy(0, block, to);
      case 2:
        return write(block);
      case 3:
        return read(block);
      case 4:
        return digest(block);
      case 5:
        return norm();
      case 6:
        return window();
      default:
        return step();
    }
  }

  void write(std::int32_t block) {
    const Block words = stream_.random_block(random_.bits());
    side_.pool->write(0, block, words.recurrent, words.conv);
  }
  void read(std::int32_t block) {
    Bytes recurrent(stream_.model().state_bytes()), conv(stream_.model().conv_bytes());
    side_.pool->read(0, block, recurrent, conv);
    told_.words.push_back(std::move(recurrent)), told_.words.push_back(std::move(conv));
  }
  void digest(std::int32_t block) { told_.digests.push_back(side_.pool->digest(0, block)); }

  /// Now and then nobody asks for an output.
  void step() {
    const StepPlan plan = stream_.plan(now_);
    stream_.inputs(now_++, 0, inputs_);
    StepOutputs outputs;
    if (random_.below(4) == 0) outputs.want = {};
    side_.backend.step({0, plan, inputs_, contracts_.of(plan.path)}, *side_.pool, outputs);
    for (Tap tap : kOuter) told_.words.push_back(outputs[tap]);
  }

  void window() {
    std::vector<StepPlan> plans;
    std::vector<StepInputs> inputs(kWindow);
    std::vector<std::vector<Look>> looks(kWindow);
    std::vector<WindowStep> steps(kWindow);
    const bool asks = random_.below(4) != 0;
    for (std::size_t t = 0; t < kWindow; ++t) {
      plans.push_back(stream_.plan(now_));
      stream_.inputs(now_++, 0, inputs[t]);
      if (!asks) steps[t].outputs.want = {};
      if (asks) looks[t] = {{some_block(), random_.below(2) == 0}};
    }
    side_.backend.steps({0, plans, inputs, contracts_, looks}, *side_.pool, steps);
    for (const WindowStep& step : steps) {
      for (Tap tap : kOuter) told_.words.push_back(step.outputs[tap]);
      for (const KeptBlock& kept : step.kept)
        told_.words.push_back(kept.recurrent), told_.digests.push_back(kept.digest);
    }
  }

  void norm() {
    const Model& m = stream_.model();
    stream_.inputs(now_++, 0, inputs_);
    const std::int64_t rows = static_cast<std::int64_t>(inputs_.z.size() / size_of(m.act_dtype)) / m.V;
    NormOutputs outputs;
    side_.backend.norm({{m.V, m.act_dtype, true, m.norm_gate, *m.norm_eps, 0},
                        contracts_.decode,
                        rows,
                        inputs_.z,
                        inputs_.z,
                        stream_.params(0).norm_weight},
                       outputs);
    told_.words.push_back(std::move(outputs.out));
  }

  const ContractSet contracts_;
  Random random_;
  OneLayer stream_;
  Side side_;
  StepInputs inputs_;
  std::int64_t now_ = 0;
  Told told_;
};

void compare_told(const Told& got, const Told& want, Compared& total) {
  REQUIRE(got.words.size() == want.words.size());
  REQUIRE(got.digests.size() == want.digests.size());
  for (std::size_t i = 0; i < want.words.size(); ++i)
    compare_bytes(got.words[i], want.words[i], DType::bf16, "answer " + std::to_string(i), total);
  for (std::size_t i = 0; i < want.digests.size(); ++i)
    compare_digests(got.digests[i], want.digests[i], static_cast<std::int32_t>(i));
}

/// Every script in a thread of its own, all at once, handed round so many devices. What a thread throws is thrown here.
std::vector<Told> told_side_by_side(int devices) {
  std::vector<Told> told(kThreads);
  std::vector<std::exception_ptr> thrown(kThreads);
  std::barrier together(kThreads);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < kThreads; ++i)
      threads.emplace_back([&, i] {
        together.arrive_and_wait();
        try {
          const auto cuda = make_cuda({.device = static_cast<int>(i) % devices, .poison = kScripts[i].poison});
          told[i] = Asking(kScripts[i], *cuda).all_rounds();
        } catch (...) {
          thrown[i] = std::current_exception();
        }
      });
  }
  for (const std::exception_ptr& each : thrown)
    if (each) std::rethrow_exception(each);
  return told;
}

/// What a step gives whose row begins with one of these states, golden's word.
class Begun {
 public:
  explicit Begun(std::int64_t blocks) : stream_(stream_of(model_of(16, 256, 256, DType::f32, blocks), 9, 1)) {
    stream_.inputs(0, 0, inputs_);
    for (std::uint64_t seed : {1, 2}) states_.push_back(stream_.random_block(seed));
    states_.push_back({Bytes(model().state_bytes()), Bytes(model().conv_bytes())});
    const auto golden = make_golden({});
    golden->prepare(stream_, {0});
    const auto pool = golden->make_pool(model(), {0});
    for (const Block& state : states_) {
      pool->write(0, 1, state.recurrent, state.conv);
      expected_.push_back(step(*golden, *pool, 1));
      digests_.push_back(pool->digest(0, 1));
    }
  }
  const Model& model() const { return stream_.model(); }
  OneLayer& stream() { return stream_; }
  const std::vector<Block>& states() const { return states_; }
  const Bytes& expected(std::size_t state) const { return expected_[state]; }
  const BlockDigest& digest(std::size_t state) const { return digests_[state]; }

  Bytes step(Backend& backend, Pool& pool, std::int32_t block) const {
    StepOutputs outputs;
    backend.step({0, plan(block), inputs_, contract_preset("golden")}, pool, outputs);
    return outputs[Tap::core_out];
  }
  Bytes window(Backend& backend, Pool& pool, std::int32_t block) const {
    const std::vector<StepPlan> plans{plan(block)};
    const std::vector<std::vector<Look>> nobody(1);
    const ContractSet contracts = contract_set("golden");
    std::vector<WindowStep> steps(1);
    backend.steps({0, plans, std::span(&inputs_, 1), contracts, nobody}, pool, steps);
    return steps[0].outputs[Tap::core_out];
  }

 private:
  StepPlan plan(std::int32_t block) const {
    return make_plan(model(), 0, Path::decode, std::vector{block}, std::vector<std::int64_t>{0}, 1, "test");
  }

  OneLayer stream_;
  StepInputs inputs_;
  std::vector<Block> states_;  // two of random words, one of zeros
  std::vector<Bytes> expected_;
  std::vector<BlockDigest> digests_;
};

}  // namespace

TEST_CASE("cuda threads: four with a backend each, on one device and on all, each as if alone (for sanitizers, too)") {
  CUDA_OR_SKIP(first);
  std::vector<Told> want;
  const auto golden = make_golden({});
  for (const Script& script : kScripts) want.push_back(Asking(script, *golden).all_rounds());
  Compared total;
  for (const int devices : {1, std::max(1, cuda_devices())}) {
    const std::vector<Told> got = told_side_by_side(devices);
    for (std::size_t i = 0; i < kThreads; ++i) compare_told(got[i], want[i], total);
  }
  MESSAGE("elements compared: " << total.elements);
  CHECK(total.elements > 40000000);
}

TEST_CASE("cuda threads: a step begins with what its pool was told a moment before, and is over when that is asked") {
  CUDA_OR_SKIP(cuda);
  constexpr std::int32_t kTo = 12, kStates = 3, kFirst = 1 + kStates;  // blocks 1, 2, 3 keep the states
  Begun begun(kFirst + kTo);
  cuda->prepare(begun.stream(), {0});
  const auto pool = cuda->make_pool(begun.model(), {0});
  for (std::int32_t state = 0; state < kStates; ++state)
    pool->write(0, 1 + state, begun.states()[static_cast<std::size_t>(state)].recurrent,
                begun.states()[static_cast<std::size_t>(state)].conv);
  Compared total;
  for (int round = 0; round < 100; ++round) {
    CAPTURE(round);
    const std::int32_t state = round % kStates, last = kFirst + kTo - 1;
    // 64 MiB each: the device is still at it when the step is asked for.
    for (std::int32_t to = kFirst; to <= last; ++to)
      state == 2 && to == last ? pool->zero(0, to) : pool->copy(0, 1 + state, to);
    const auto s = static_cast<std::size_t>(state);
    const Bytes out = round % 2 == 0 ? begun.step(*cuda, *pool, last) : begun.window(*cuda, *pool, last);
    compare_bytes(out, begun.expected(s), begun.model().act_dtype, "core_out", total);
    compare_digests(pool->digest(0, last), begun.digest(s), last);
  }
  MESSAGE("elements compared: " << total.elements);
  CHECK(total.elements == 100 * 256 * 256);
}
