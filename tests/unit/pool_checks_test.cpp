// Audit and poison against backends that are wrong on purpose: each stray write and each read of what nothing wrote is named.
#include <doctest/doctest.h>

#include <gdnsim/audit.hpp>
#include <gdnsim/error.hpp>
#include <gdnsim/poison.hpp>
#include <gdnsim/words.hpp>

#include <cstring>
#include <functional>

#include "support/fake_run.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

/// A stream put together by a test: plans and events.
class Script final : public Stream {
 public:
  Script() { params_.resize(3); }
  const Model& model() const override { return shape; }
  const LayerParams& params(int layer) const override { return params_[static_cast<std::size_t>(layer)]; }
  std::int64_t steps() const override { return static_cast<std::int64_t>(plans.size()); }
  int rows() const override { return 4; }
  StepPlan plan(std::int64_t step) const override { return plans[static_cast<std::size_t>(step)]; }
  std::span<const Event> events() const override { return all; }
  bool has_z(int) const override { return true; }
  void inputs(std::int64_t step, int layer, StepInputs& out) override {
    const auto rows = static_cast<std::size_t>(this->rows()), word = size_of(shape.act_dtype);
    const auto seed = static_cast<unsigned>(step * 10 + layer);
    out.mixed_qkv = pattern(rows * static_cast<std::size_t>(shape.dim()) * word, seed);
    out.a = out.b = pattern(rows * static_cast<std::size_t>(shape.HV) * word, seed + 1);
    out.z = pattern(rows * static_cast<std::size_t>(shape.HV * shape.V) * word, seed + 2);
  }
  void load_row(std::int32_t, Bytes& recurrent, Bytes& conv) override {
    recurrent = pattern(shape.state_bytes(), 9), conv = pattern(shape.conv_bytes(), 9);
  }
  std::string source() override { return "script"; }
  Script& step(const std::vector<std::int32_t>& index, int present, std::vector<std::int32_t> source = {}) {
    std::vector<std::int64_t> sequence;
    for (std::size_t row = 0; row < 4; ++row)
      sequence.push_back(row < static_cast<std::size_t>(present) && !shape.inactive(index[row]) ? 10 + index[row] : -1);
    plans.push_back(make_plan(shape, steps(), Path::decode, index, sequence, present, "script", {0, true, source, {}}));
    return *this;
  }
  Script& event(EventKind kind, std::int32_t block, std::int32_t source = -1) {
    all.push_back({static_cast<std::int32_t>(plans.size()), -1, block, kind, source, -1, EventWhy::none});
    return *this;
  }
  Model shape = fake_model();
  std::vector<StepPlan> plans;
  std::vector<Event> all;

 private:
  std::vector<LayerParams> params_;
};

/// The inputs of one row.
std::span<const std::byte> row_of(const Bytes& tensor, std::size_t row) {
  return std::span(tensor).subspan(row * (tensor.size() / 4), tensor.size() / 4);
}

/// The fake backend, and something done after each of its steps.
class WrongBackend final : public Backend {
 public:
  using Fault = std::function<void(const StepArgs&, Pool&, StepOutputs&)>;
  explicit WrongBackend(Fault fault) : fault_(std::move(fault)) {}
  std::string name() const override { return "wrong"; }
  std::string description() const override { return "patterns, and a fault"; }
  std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) override {
    return right_.make_pool(model, std::move(layers));
  }
  void prepare(const Stream&, const std::vector<int>&) override {}
  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override {
    right_.step(args, pool, outputs);
    if (fault_) fault_(args, pool, outputs);
  }

 private:
  FakeBackend right_;
  Fault fault_;
};

/// Another content for a block of layer 0 at one step.
WrongBackend::Fault write_at(std::int64_t step, std::int32_t block) {
  return [=](const StepArgs& args, Pool& pool, StepOutputs&) {
    if (args.layer != 0 || args.plan.step != step) return;
    pool.write(0, block, pattern(pool.model().state_bytes(), 77), pattern(pool.model().conv_bytes(), 78));
  };
}

std::vector<std::string> audited(Script& script, const WrongBackend::Fault& fault, std::int64_t every = 1) {
  WrongBackend backend(fault);
  const ContractSet contracts = contract_set("golden");
  const Simulation simulation{script, backend, contracts, {0, 2}, script.steps()};
  const auto pool = backend.make_pool(script.model(), simulation.layers);
  Nobody nobody;
  AuditObserver audit(simulation, every, nobody);
  simulate(simulation, *pool, audit);
  std::vector<std::string> lines;
  for (const StrayWrite& stray : audit.found()) lines.push_back(stray.text());
  return lines;
}

using Lines = std::vector<std::string>;

Script four_rows() {
  Script script;
  script.step({1, 2, 3, 4}, 4).step({1, 2, 3, 4}, 2).step({1, 2, 0, 0}, 4).step({1, 2, -1, 0}, 4);
  return script;
}

std::string poisoned(Script& script, const WrongBackend::Fault& fault = nullptr) {
  WrongBackend backend(fault);
  const ContractSet contracts = contract_set("golden");
  const auto read = find_poison_read({script, backend, contracts, {0, 2}, script.steps()});
  return read ? read->text() : "";
}

}  // namespace

TEST_CASE("audit: nothing stray, nothing found") {
  Script script = four_rows();
  script.event(EventKind::zero, 3).step({1, 2, 0, 0}, 4).event(EventKind::copy, 5, 1).step({5, 2, 0, 0}, 4);
  for (const std::int64_t every : {1, 2, 5, 100}) CHECK(audited(script, nullptr, every).empty());
}

TEST_CASE("audit: a padded row, a stale tail, an index from the end, nobody") {
  Script script = four_rows();
  CHECK(
      audited(script, write_at(2, 0)) ==
      Lines{"block 0 of layer 0 was written in step 2, though no row and no event names it: row 2 of step 2, which is "
            "inactive, has its index (padded row); row 3 leads there too"});
  CHECK(audited(script, write_at(1, 3)) == Lines{"block 3 of layer 0 was written in step 1, though no row and no event "
                                                 "names it: row 2 of step 1, beyond the 2 "
                                                 "rows that are there, has its index, left from step 0 (stale tail)"});
  CHECK(
      audited(script, write_at(3, 5)) ==
      Lines{"block 5 of layer 0 was written in step 3, though no row and no event names it: row 2 of step 3, which is "
            "inactive, has index -1, which counted from the end is its block"});
  CHECK(audited(script, write_at(0, 5)) ==
        Lines{"block 5 of layer 0 was written in step 0, though no row and no event names it"});
}

TEST_CASE("audit: another index from the end, and the index of the step before") {
  Script script;
  script.step({1, 2, -3, 0}, 4).step({4, 2, -3, 0}, 4);
  CHECK(
      audited(script, write_at(0, 3)) ==
      Lines{"block 3 of layer 0 was written in step 0, though no row and no event names it: row 2 of step 0, which is "
            "inactive, has index -3, which counted from the end is its block"});
  CHECK(audited(script, write_at(1, 1)) == Lines{"block 1 of layer 0 was written in step 1, though no row and no event "
                                                 "names it: row 0 of step 1 had its index in step 0 (stale index)"});
}

TEST_CASE("audit: every N steps names the steps between") {
  Script script = four_rows();
  CHECK(audited(script, write_at(2, 5), 4) == Lines{"block 5 of layer 0 was written in steps 0 to 3, though no row and "
                                                    "no event names it: row 2 of step 3, which is "
                                                    "inactive, has index -1, which counted from the end is its block"});
  CHECK(audited(script, write_at(2, 5), 3).size() == 1);
  CHECK(audited(script, write_at(3, 4), 3) ==  // the last step is audited in any case
        Lines{"block 4 of layer 0 was written in step 3, though no row and no event names it"});
}

TEST_CASE("audit: an event neither hides a write nor is one") {
  Script script;
  script.event(EventKind::load, 5, 0).step({1, 2, 0, 0}, 4).step({1, 2, 0, 0}, 4).event(EventKind::zero, 4);
  script.step({1, 2, 0, 0}, 4).event(EventKind::copy, 4, 1).step({4, 2, 0, 0}, 4);
  for (const std::int64_t every : {1, 2, 3, 100}) CHECK(audited(script, nullptr, every).empty());
  const auto stray = [](const std::string& block, const std::string& steps) {
    return Lines{"block " + block + " of layer 0 was written in " + steps + ", though no row and no event names it"};
  };
  CHECK(audited(script, write_at(0, 5)) == stray("5", "step 0"));  // the event of the same step came first
  CHECK(audited(script, write_at(2, 4)) == stray("4", "step 2"));
  CHECK(audited(script, write_at(1, 4), 100) == stray("4", "steps 0 to 1"));  // the event came later
  CHECK(audited(script, write_at(0, 4), 2) == stray("4", "steps 0 to 1"));
  CHECK(audited(script, write_at(2, 4), 100) == stray("4", "steps 0 to 2"));
}

TEST_CASE("audit: an offset that was cut to 32 bits") {
  Script script;
  script.shape.block_stride = (std::int64_t{1} << 31) + 24;  // block 2 begins 48 elements into block 0, cut to 32 bits
  script.step({2, 1, 0, 0}, 2);
  CHECK(audited(script, write_at(0, 0)) ==
        Lines{"block 0 of layer 0 was written in step 0, though no row and no event "
              "names it: row 2 of step 0, beyond the 2 "
              "rows that are there, has its index (padded row); row 3 leads there too"});
  Script other;
  other.shape.block_stride = script.shape.block_stride;
  other.step({3, 2, 1, 4}, 4);
  CHECK(audited(other, write_at(0, 0)) == Lines{"block 0 of layer 0 was written in step 0, though no row and no event "
                                                "names it: the recurrent state of block 2, "
                                                "row 1 of step 0, begins there when its offset is cut to 32 bits"});
}

TEST_CASE("audit: a block whose end alone is cut to 32 bits") {
  Script script;
  script.shape.block_stride =
      (std::int64_t{1} << 30) - 6;  // block 4 begins 24 elements before 2^32, of which it has 24
  script.step({4, 1, 2, 3}, 4).step({4, 1, 2, 3}, 4);
  CHECK(audited(script, write_at(0, 0)) ==
        Lines{"block 0 of layer 0 was written in step 0, though no row and no event names it"});
  script.shape.block_stride += 1;  // and now 20 before
  CHECK(audited(script, write_at(1, 0)) ==
        Lines{"block 0 of layer 0 was written in step 1, though no row and no event "
              "names it: the recurrent state of block 4, row 0 of step 1, ends there "
              "when its offset is cut to 32 bits"});
}

TEST_CASE("offsets beyond 32 bits are warned of, with the block that is hit") {
  Model model = fake_model();
  CHECK(offset_warnings(model).empty());
  model.index_bits = 32;
  CHECK(offset_warnings(model).empty());
  model.H = 16, model.HV = 32, model.K = model.V = 128, model.W = 4, model.num_blocks = 4096;
  CHECK(offset_warnings(model).empty());  // the last block ends at 2^31
  model.num_blocks = 4097;
  CHECK(offset_warnings(model) ==
        Lines{"recurrent state: block 4096 has elements beyond 2^31 (stride 524288): a signed 32-bit offset of them is "
              "negative"});
  model.block_stride = 540672;  // #36 of the reports counts where a block begins
  CHECK(
      offset_warnings(model).front() ==
      "recurrent state: block 3971 has elements beyond 2^31 (stride 540672; block 3972 is the first to begin there): a "
      "signed 32-bit offset of them is negative");
  model.block_stride = 0, model.num_blocks = 8200;
  CHECK(offset_warnings(model) ==
        Lines{"recurrent state: block 4096 has elements beyond 2^31 (stride 524288): a signed 32-bit offset of them is "
              "negative; an unsigned one wraps from block 8192 on, which hits block 0"});
  CHECK(wrapped_block(model, 8195, false) == 3);
  CHECK(wrapped_block(model, 8191, false) == -1);
  model.index_bits = 64;
  CHECK(offset_warnings(model).empty());
}

TEST_CASE("poison: words that name a block and that no arithmetic makes") {
  for (const std::int32_t block : {0, 1, 31, 4096}) {
    CHECK(poison_of(DType::f32, poison_word(DType::f32, block)) == block);
    CHECK(poison_of(DType::bf16, poison_word(DType::bf16, block)) == block % 32);
  }
  CHECK(poison_word(DType::f32, 4) == 0x7FA00004u);
  CHECK(poison_word(DType::bf16, 4) == 0x7FA4u);
  for (const std::uint32_t word : {0x7FFFFFFFu, 0x7FC00000u, 0x7F800000u, 0x7F9FFFFFu, 0u})
    CHECK_FALSE(poison_of(DType::f32, word).has_value());
  for (const std::uint32_t word : {0x7FFFu, 0x7FC0u, 0x7F80u, 0x7F9Fu})
    CHECK_FALSE(poison_of(DType::bf16, word).has_value());
}

TEST_CASE("poison: a block that nothing filled is named when it is read") {
  Script script;
  script.event(EventKind::zero, 1).step({1, 0, 0, 0}, 4).step({1, 4, 0, 0}, 4);
  CHECK(poisoned(script) ==
        "poison of block 4 read: step 1, row 1, sequence 14, layer 0, recurrent state head 0 element 0");
  Script filled;
  filled.event(EventKind::zero, 1).event(EventKind::load, 4, 0).step({1, 4, 0, 0}, 4).event(EventKind::copy, 2, 1);
  filled.step({2, 4, 0, 0}, 4).step({3, 4, 0, 0}, 4, {2, -1, -1, -1});
  CHECK(poisoned(filled) == "");
}

TEST_CASE("poison: a copy keeps the name, and an allocated block is poison again") {
  Script copied;
  copied.event(EventKind::zero, 1).event(EventKind::copy, 2, 4).step({1, 2, 0, 0}, 4);
  CHECK(poisoned(copied) ==
        "poison of block 4 read: step 0, row 1, sequence 12, layer 0, recurrent state head 0 element 0 (the row goes "
        "on from "
        "block 2)");
  Script moved;
  moved.event(EventKind::zero, 1).step({2, 0, 0, 0}, 4, {4, -1, -1, -1});
  CHECK(poisoned(moved) ==
        "poison of block 4 read: step 0, row 0, sequence 12, layer 0, recurrent state head 0 element 0");
  Script reused;
  reused.event(EventKind::zero, 1).step({1, 0, 0, 0}, 4).event(EventKind::allocate, 1).step({1, 0, 0, 0}, 4);
  CHECK(poisoned(reused) ==
        "poison of block 1 read: step 1, row 0, sequence 11, layer 0, recurrent state head 0 element 0");
}

TEST_CASE("poison: a bf16 word names its block modulo 32, and a report names no other block than it knows") {
  const auto large = [](std::int32_t blocks) {
    Script script;
    script.shape.state_dtype = script.shape.conv_state_dtype = DType::bf16;
    script.shape.num_blocks = blocks;
    script.event(EventKind::zero, 1);
    return script;
  };
  Script own = large(40);
  own.step({1, 36, 0, 0}, 4);
  CHECK(poisoned(own) ==
        "poison of block 36 read: step 0, row 1, sequence 46, layer 0, recurrent state head 0 element 0");
  Script other = large(40);
  other.event(EventKind::copy, 2, 36).step({1, 2, 0, 0}, 4);
  CHECK(
      poisoned(other) ==
      "poison of block 4 (modulo 32) read: step 0, row 1, sequence 12, layer 0, recurrent state head 0 element 0 (the "
      "row goes on from block 2)");
  Script small = large(32);
  small.event(EventKind::copy, 2, 4).step({1, 2, 0, 0}, 4);
  CHECK(
      poisoned(small) ==
      "poison of block 4 read: step 0, row 1, sequence 12, layer 0, recurrent state head 0 element 0 (the row goes on "
      "from block 2)");
}

TEST_CASE("poison: one element of one state is enough, and an output that nobody wrote") {
  Script script;
  script.event(EventKind::zero, 1).step({1, 0, 0, 0}, 4).step({1, 0, 0, 0}, 4);
  const auto leave = [](const StepArgs& args, Pool& pool, StepOutputs&) {
    if (args.layer != 2) return;
    Bytes recurrent(pool.model().state_bytes()), conv(pool.model().conv_bytes());
    pool.read(2, 1, recurrent, conv);
    const std::uint32_t word = poison_word(pool.model().conv_state_dtype, 3);
    std::memcpy(conv.data() + 2 * static_cast<std::size_t>(pool.model().dim() + 5), &word, 2);
    pool.write(2, 1, recurrent, conv);
  };
  CHECK(poisoned(script, leave) ==
        "poison of block 3 read: step 1, row 0, sequence 11, layer 2, conv state column 1 element 5 (the row goes on "
        "from "
        "block 1)");
  const auto unwritten = [](const StepArgs& args, Pool&, StepOutputs& outputs) {
    const std::uint32_t word = poison_word(DType::bf16, 0);
    if (args.plan.step == 1) std::memcpy(outputs[Tap::core_out].data() + 2 * (2 * 3 + 4), &word, 2);  // row 1, head 1
  };
  CHECK(poisoned(script, unwritten) ==
        "output never written: step 1, row 1, sequence -1, layer 0, core_out head 1 element 1");
}

TEST_CASE("padding: words that name a row and are no block's poison") {
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const int row : {0, 1, 15, 100}) {
      CHECK_FALSE(poison_of(type, padding_word(type, row)).has_value());
      const double value = value_of(type, padding_word(type, row));
      CHECK(value != value);
    }
  CHECK(padding_word(DType::f32, 5) == 0x7F900005u);
  CHECK(padding_word(DType::bf16, 5) == 0x7F95u);
  CHECK(padding_word(DType::bf16, 21) == 0x7F95u);
}

TEST_CASE("padding: what an inactive row's inputs have a say in is found, with row and step") {
  Script script;
  script.event(EventKind::zero, 1).event(EventKind::zero, 2);
  script.step({1, 2, 0, 0}, 4).step({1, 2, 0, 0}, 4).step({1, 2, 3, 0}, 2);
  const auto at = [](std::int64_t step, int layer, const WrongBackend::Fault& fault) {
    return [=](const StepArgs& args, Pool& pool, StepOutputs& outputs) {
      if (args.plan.step == step && args.layer == layer) fault(args, pool, outputs);
    };
  };
  const auto core_out = [](std::size_t row, std::size_t from, Bytes StepInputs::*tensor) {
    return [=](const StepArgs& args, Pool&, StepOutputs& outputs) {
      const auto words = row_of(args.inputs.*tensor, from);
      std::memcpy(outputs[Tap::core_out].data() + row * shape_of(Tap::core_out, fake_model()).bytes() + 2, words.data(),
                  2);
    };
  };
  CHECK(poisoned(script) == "");
  CHECK(poisoned(script, at(1, 2, core_out(0, 3, &StepInputs::mixed_qkv))) ==
        "padding of row 3 read: step 1, row 0, sequence 11, layer 2, core_out head 0 element 1");
  CHECK(poisoned(script, at(2, 0, core_out(1, 2, &StepInputs::b))) ==
        "padding of row 2 read: step 2, row 1, sequence 12, layer 0, core_out head 0 element 1");
  CHECK(poisoned(script, at(0, 0, core_out(3, 3, &StepInputs::a))) ==  // its own output, which is to be +0
        "padding of row 3 read: step 0, row 3, sequence -1, layer 0, core_out head 0 element 1");
  CHECK(poisoned(script, at(1, 2, core_out(0, 3, &StepInputs::z))) == "");  // an inactive row's norm reads its z
  CHECK(poisoned(script, at(1, 2, core_out(0, 1, &StepInputs::a))) == "");  // no padding: another active row's
  script.shape.inactive_core_out = InactiveOut::unwritten;
  CHECK(poisoned(script, at(0, 0, core_out(3, 3, &StepInputs::a))) == "");  // may hold anything
}

TEST_CASE("padding: what it left in a state is found where that shows, and named where it was read") {
  Script script;
  script.event(EventKind::zero, 1).event(EventKind::zero, 2);
  script.step({1, 2, 0, 0}, 4).step({1, 2, 0, 0}, 4).step({1, 2, 0, 0}, 4);
  const auto wrong = [](std::int32_t block) {
    return [=](const StepArgs& args, Pool& pool, StepOutputs&) {
      if (args.plan.step != 1 || args.layer != 0) return;
      Bytes recurrent(pool.model().state_bytes()), conv(pool.model().conv_bytes());
      pool.read(0, block, recurrent, conv);
      std::memcpy(conv.data(), args.inputs.a.data() + 3 * (args.inputs.a.size() / 4), 2);
      pool.write(0, block, recurrent, conv);
    };
  };
  CHECK(poisoned(script, wrong(2)) ==
        "padding of row 3 read: step 1, row 1, sequence 12, layer 0, conv state column 0 element 0");
  CHECK(poisoned(script, wrong(5)) ==  // no row has it: the pool is looked at after the last step
        "padding of row 3 of step 1 read: step 2, layer 0, block 5, conv state column 0 element 0");
}

TEST_CASE("padding: a backend that does not repeat itself is no finding") {
  Script script;
  script.event(EventKind::zero, 1).step({1, 0, 0, 0}, 4);
  int calls = 0;
  const auto noise = [&calls](const StepArgs&, Pool&, StepOutputs& outputs) {
    outputs[Tap::core_out][0] = static_cast<std::byte>(++calls);
  };
  CHECK_THROWS_WITH_AS(poisoned(script, noise),
                       "--poison: step 0, layer 0: the backend gives other bits when it runs the same steps again "
                       "(gdnsim check --battery L0)",
                       Error);
}
