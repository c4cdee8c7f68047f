// A row's bits are its own (rule L1): whatever the batch size from 1 to 257 and around 512, the order, the position, the padding
// between, the block numbers, and what NaNs, infinities and denormals the other rows hold - step by step and in windows, with the
// kernels that the product picks for each batch. Without a device the cases are skipped.
#include <doctest/doctest.h>

#include <gdnsim/backend.hpp>
#include <gdnsim/contract.hpp>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernel/sides.hpp"

using namespace gdnsim;
using namespace gdnsim::second;
using namespace gdnsim::test;

namespace {

constexpr int kSequences = 257, kSteps = 3, kPadding = 40;
constexpr int kBlocks = 8;  // with contents of their own
/// Rows, half of them padding: from 512 on there is another kernel.
constexpr std::size_t kAround[] = {511, 512, 513};
constexpr Tap kOut[] = {Tap::conv_out, Tap::core_out, Tap::norm_out};

Model real_model(DType state) {
  Model m;
  m.H = 16, m.HV = 32, m.K = m.V = 128, m.W = 4;
  m.scale = 0.088388346f;
  m.norm_eps = 1e-6f;
  m.state_dtype = state;
  m.num_blocks = 1 + kSequences + 2 * kSequences;  // sequence s begins as block 1 + s; the rest is for the rows
  return m;
}

second::Recipe recipe_for(const Model& model, std::uint32_t hostile_in) {
  second::Recipe recipe;
  recipe.model = model;
  recipe.hostile_in = hostile_in;
  recipe.name = "rows";
  return recipe;
}

/// What one sequence gives after one step.
struct Given {
  Bytes out[std::size(kOut)];
  BlockDigest digest;
};

/// Every sequence's inputs, one in two with hostile values, and what each gives alone.
class Sequences {
 public:
  Sequences(Backend& backend, DType state, const Contract& contract)
      : backend_(backend),
        contract_(contract),
        model_(real_model(state)),
        tame_(recipe_for(model_, 0), 3, kSequences),
        wild_(recipe_for(model_, 3000), 3, kSequences),
        inputs_(2 * kSteps) {
    backend_.prepare(tame_, {0});
    pool_ = backend_.make_pool(model_, {0});
    for (std::int32_t kind = 0; kind < kBlocks; ++kind) {
      const Block block = (kind % 2 == 0 ? tame_ : wild_).random_block(static_cast<std::uint64_t>(kind));
      for (std::int32_t s = kind; s < kSequences; s += kBlocks) pool_->write(0, 1 + s, block.recurrent, block.conv);
    }
    for (std::int64_t t = 0; t < kSteps; ++t)
      for (std::size_t kind = 0; kind < 2; ++kind)
        (kind == 0 ? tame_ : wild_).inputs(t, 0, inputs_[static_cast<std::size_t>(t) * 2 + kind]);
  }

  const Model& model() const { return model_; }
  Stream& stream() { return tame_; }
  Pool& pool() { return *pool_; }

  /// A step with these rows: a sequence each, or -1 for padding.
  void gather(std::int64_t t, const std::vector<int>& rows, StepInputs& result) const {
    for (Bytes* each : {&result.mixed_qkv, &result.a, &result.b, &result.z}) each->clear();
    for (const int s : rows) {
      const StepInputs& from = inputs_[static_cast<std::size_t>(t) * 2 + static_cast<std::size_t>(std::max(s, 0) % 2)];
      append(result.mixed_qkv, from.mixed_qkv, s);
      append(result.a, from.a, s);
      append(result.b, from.b, s);
      append(result.z, from.z, s);
    }
  }

  /// Where each row's sequence is, padding nowhere.
  StepPlan plan(std::int64_t t, const std::vector<int>& rows, const std::vector<std::int32_t>& block_of) const {
    std::vector<std::int32_t> index;
    std::vector<std::int64_t> sequence;
    for (const int s : rows) {
      index.push_back(s < 0 ? 0 : block_of[static_cast<std::size_t>(s)]);
      sequence.push_back(s);
    }
    return make_plan(model_, t, Path::decode, index, sequence, static_cast<int>(rows.size()), "rows");
  }

  /// Every sequence alone.
  std::vector<std::vector<Given>> alone(Backend& backend, Pool& pool, int count) const {
    std::vector<std::vector<Given>> result(static_cast<std::size_t>(count), std::vector<Given>(kSteps));
    const std::int32_t where = 1 + kSequences;
    StepInputs inputs;
    StepOutputs outputs;
    for (int s = 0; s < count; ++s) {
      pool.copy(0, 1 + s, where);
      const std::vector<std::int32_t> block_of(kSequences, where);
      for (std::int64_t t = 0; t < kSteps; ++t) {
        gather(t, {s}, inputs);
        backend.step({0, plan(t, {s}, block_of), inputs, contract_}, pool, outputs);
        Given& given = result[static_cast<std::size_t>(s)][static_cast<std::size_t>(t)];
        for (std::size_t i = 0; i < std::size(kOut); ++i) given.out[i] = outputs[kOut[i]];
        given.digest = pool.digest(0, where);
      }
    }
    return result;
  }

 private:
  static void append(Bytes& to, const Bytes& from, int s) {
    const std::size_t each = from.size() / kSequences;
    if (s < 0)
      to.insert(to.end(), each, std::byte{0xFF});
    else
      to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(s) * each),
                from.begin() + static_cast<std::ptrdiff_t>((static_cast<std::size_t>(s) + 1) * each));
  }

  Backend& backend_;
  const Contract& contract_;
  const Model model_;
  OneLayer tame_, wild_;
  std::vector<StepInputs> inputs_;  // [steps][tame, wild], rows: sequences
  std::unique_ptr<Pool> pool_;
};

template <class T>
void shuffle(std::vector<T>& values, Random& random) {
  for (std::size_t i = values.size(); i > 1; --i)
    std::swap(values[i - 1], values[random.below(static_cast<std::uint32_t>(i))]);
}

/// A batch of so many sequences with padding strewn in, each step in another order.
struct Batch {
  std::vector<std::vector<int>> rows;  // [steps]
  std::vector<std::int32_t> block_of;  // [sequences]

  Batch(int size, Random& random) : Batch(size, random.below(3) == 0 ? 0 : random.below(kPadding), random) {}
  Batch(int size, std::size_t padding, Random& random) : block_of(kSequences, 0) {
    std::vector<int> chosen(kSequences);
    for (int s = 0; s < kSequences; ++s) chosen[static_cast<std::size_t>(s)] = s;
    shuffle(chosen, random);
    chosen.resize(static_cast<std::size_t>(size));
    std::vector<std::int32_t> blocks;
    for (std::int32_t b = 1 + kSequences; b < 1 + 3 * kSequences; ++b) blocks.push_back(b);
    shuffle(blocks, random);
    for (std::size_t i = 0; i < chosen.size(); ++i) block_of[static_cast<std::size_t>(chosen[i])] = blocks[i];
    for (int t = 0; t < kSteps; ++t) {
      rows.push_back(chosen);
      rows.back().insert(rows.back().end(), padding, -1);
      shuffle(rows.back(), random);
    }
  }
};

/// The rows of one step whose bits are not those that the sequence gives alone.
int count_differing(const std::vector<int>& rows, const StepOutputs& outputs, const std::vector<BlockDigest>& digests,
                    const std::vector<std::vector<Given>>& alone, std::size_t t) {
  int differing = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows[row] < 0) continue;
    const Given& want = alone[static_cast<std::size_t>(rows[row])][t];
    bool same = digests[row].heads == want.digest.heads && digests[row].conv == want.digest.conv;
    for (std::size_t i = 0; i < std::size(kOut); ++i) {
      const Bytes &all = outputs[kOut[i]], &one = want.out[i];
      same &= std::memcmp(one.data(), all.data() + row * one.size(), one.size()) == 0;
    }
    differing += !same;
  }
  return differing;
}

std::vector<BlockDigest> digests_of(const Pool& pool, const StepPlan& plan) {
  std::vector<BlockDigest> digests;
  for (const std::int32_t block : plan.block) digests.push_back(block < 0 ? BlockDigest{} : pool.digest(0, block));
  return digests;
}

struct Counted {
  std::uint64_t rows = 0;
  int differing = 0;
};

/// Kept from batch to batch.
struct Memory {
  std::vector<StepInputs> inputs = std::vector<StepInputs>(kSteps);
  std::vector<WindowStep> done = std::vector<WindowStep>(kSteps);
};

void place(Sequences& all, const Batch& batch) {
  for (std::int32_t s = 0; s < kSequences; ++s)
    if (batch.block_of[static_cast<std::size_t>(s)] > 0)
      all.pool().copy(0, 1 + s, batch.block_of[static_cast<std::size_t>(s)]);
}

void run_steps(Backend& backend, Sequences& all, const Contract& contract, const Batch& batch,
               const std::vector<std::vector<Given>>& alone, Memory& memory, Counted& counted) {
  place(all, batch);
  StepInputs& inputs = memory.inputs[0];
  StepOutputs& outputs = memory.done[0].outputs;
  for (std::size_t t = 0; t < kSteps; ++t) {
    const StepPlan plan = all.plan(static_cast<std::int64_t>(t), batch.rows[t], batch.block_of);
    all.gather(static_cast<std::int64_t>(t), batch.rows[t], inputs);
    backend.step({0, plan, inputs, contract}, all.pool(), outputs);
    counted.differing += count_differing(batch.rows[t], outputs, digests_of(all.pool(), plan), alone, t);
    counted.rows += batch.rows[t].size();
  }
}

void run_window(Backend& backend, Sequences& all, const Contract& contract, const Batch& batch,
                const std::vector<std::vector<Given>>& alone, Memory& memory, Counted& counted) {
  place(all, batch);
  std::vector<StepPlan> plans;
  std::vector<StepInputs>& inputs = memory.inputs;
  std::vector<WindowStep>& done = memory.done;
  std::vector<std::vector<Look>> looks(kSteps);
  for (std::size_t t = 0; t < kSteps; ++t) {
    plans.push_back(all.plan(static_cast<std::int64_t>(t), batch.rows[t], batch.block_of));
    all.gather(static_cast<std::int64_t>(t), batch.rows[t], inputs[t]);
    for (const std::int32_t block : plans.back().block)
      if (block >= 0) looks[t].push_back({block, false});
  }
  backend.steps({0, plans, inputs, {contract, contract}, looks}, all.pool(), done);
  for (std::size_t t = 0; t < kSteps; ++t) {
    std::vector<BlockDigest> digests;
    std::size_t next = 0;
    for (const std::int32_t block : plans[t].block)
      digests.push_back(block < 0 ? BlockDigest{} : done[t].kept[next++].digest);
    counted.differing += count_differing(batch.rows[t], done[t].outputs, digests, alone, t);
    counted.rows += batch.rows[t].size();
  }
}

}  // namespace

TEST_CASE("cuda rows: a row's bits are its own in every batch of 1 to 257 and around 512") {
  CUDA_OR_SKIP(cuda);
  Random random(11);
  Memory memory;
  for (const DType state : {DType::f32, DType::bf16})
    for (const char* preset : {"golden", "triton-sm90", "triton-sm90-mixed"}) {
      CAPTURE(std::string(preset));
      const Contract& contract = contract_preset(preset);
      Sequences all(*cuda, state, contract);
      const auto alone = all.alone(*cuda, all.pool(), kSequences);
      Counted steps, windows;
      const int each = state == DType::f32 ? 1 : 4;
      for (int size = 1; size <= kSequences; size += each) {
        const Batch batch(size, random);
        run_steps(*cuda, all, contract, batch, alone, memory, steps);
        if (size % 8 == 1) run_window(*cuda, all, contract, batch, alone, memory, windows);
      }
      for (const std::size_t size : kAround)
        run_steps(*cuda, all, contract, Batch(kSequences, size - kSequences, random), alone, memory, steps);
      MESSAGE(std::string(preset) << ", state " << name_of(state) << ": rows compared, in steps " << steps.rows
                                  << ", in windows " << windows.rows);
      CHECK(steps.differing == 0);
      CHECK(windows.differing == 0);
      CHECK((steps.rows > 90000u / static_cast<unsigned>(each) && windows.rows > 10000));
    }
}

TEST_CASE("cuda rows: what a sequence gives alone is golden's, and another sequence's is not") {
  CUDA_OR_SKIP(cuda);
  constexpr int kFew = 12;
  const Contract& contract = contract_preset("triton-sm90");
  Sequences all(*cuda, DType::f32, contract);
  const auto alone = all.alone(*cuda, all.pool(), kFew);
  const auto golden = make_golden({});
  Sequences same(*golden, DType::f32, contract);
  const auto want = same.alone(*golden, same.pool(), kFew);
  for (std::size_t s = 0; s < kFew; ++s)
    for (std::size_t t = 0; t < kSteps; ++t) {
      for (std::size_t i = 0; i < std::size(kOut); ++i) CHECK((alone[s][t].out[i] == want[s][t].out[i]));
      CHECK(alone[s][t].digest.block == want[s][t].digest.block);
      CHECK(alone[s][t].digest.block != want[(s + 1) % kFew][t].digest.block);
    }
  StepOutputs outputs;
  for (std::size_t i = 0; i < std::size(kOut); ++i) outputs[kOut[i]] = want[0][0].out[i];
  CHECK(count_differing({0}, outputs, {want[0][0].digest}, alone, 0) == 0);
  CHECK(count_differing({1}, outputs, {want[0][0].digest}, alone, 0) == 1);
}
