// Mutants that a replay must catch: every choice of a contract changed alone, and faults of a provider - a store skipped, a
// stale block read, a write nobody named - planted at a known place.
#include <doctest/doctest.h>

#include <gdnsim/recipe.hpp>
#include <gdnsim/record.hpp>
#include <gdnsim/replay.hpp>
#include <gdnsim/trace.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>

#include "support/temp_dir.hpp"

using namespace gdnsim;

namespace {

std::string sample(const std::string& name) {
  const char* folder = std::getenv("GDNSIM_TRACES");
  REQUIRE(folder != nullptr);
  return (std::filesystem::path(folder) / name).string();
}

// ---- contract mutants ----

/// True when the first steps of the sample diverge under a contract.
bool caught_on(const std::string& path, const Contract& contract) {
  const auto trace = open_trace(path);
  if (!undefined_because(contract, trace->model()).empty()) return false;
  ReplayOptions options;
  options.mode = Mode::carried;
  options.slice.last_step = std::min<std::int64_t>(trace->steps(), 6);
  options.contracts = ContractSet{contract, contract};
  return replay(*trace, *trace, *make_golden({}), options).verdict == Verdict::diverged;
}

/// Choices that recorded outputs and states of a few steps must tell apart. Others show only in values that were not recorded
/// (second_test tries them all on every tap), or not at all: bf16 outputs hide most orders of the norm's own sum.
const std::set<std::string> kMustBeCaught = {
    "beta = bf16",
    "conv_product = f32",
    "conv_product = fma",
    "conv_taps = newest-first",
    "decay = linear",
    "decay = none",
    "decay = twice",
    "div = ieee",
    "exp = exact",
    "head_map = tiled",
    "norm = gate-first",
    "norm = hf",
    "params = bf16",
    "qk_eps = mean",
    "qk_eps = sum-k",
    "qk_norm = multiply",
    "qk_norm = none",
    "scale = before",
    "softplus = log1p",
    "sqrt = ieee",
    "state_dot.group = 2",
    "state_dot.lane = 1",
    "state_dot.lane = 2",
    "state_dot.lane = 8",
    "state_dot.lane = whole",
    "state_dot.order = sequential",
    "state_dot.product = rounded",
    "state_dot.tree = narrowest",
    "state_dot.tree = sequential",
    "state_store = bf16",
    "update = multiply-add",
};

}  // namespace

TEST_CASE("mutants: choices of triton-sm90, changed one at a time, are caught on the recorded samples") {
  const std::vector<std::string> samples = {sample("h200_k64_3layers.h5"), sample("h200_tp4_f32_convf32.h5"),
                                            sample("h200_tp4_bf16state.h5")};
  const Contract& right = contract_preset("triton-sm90");
  for (const std::string& path : samples) CHECK_FALSE(caught_on(path, right));
  for (const std::string& choice : kMustBeCaught) {
    CAPTURE(choice);
    const auto equals = choice.find(" = ");
    Contract mutant = right;
    set_contract_field(mutant, choice.substr(0, equals), choice.substr(equals + 3));
    CHECK(
        std::any_of(samples.begin(), samples.end(), [&](const std::string& path) { return caught_on(path, mutant); }));
  }
}

// ---- provider faults ----

namespace {

/// Where a fault is planted.
struct Place {
  std::int64_t step;
  int layer;
  int row;
};

/// Golden, but at one place something is done to the pool before and after the step.
class Faulty final : public Backend {
 public:
  using Hook = std::function<void(Pool&, std::int32_t block)>;
  Faulty(const Place& place, Hook before, Hook after)
      : place_(place), before_(std::move(before)), after_(std::move(after)) {}
  std::string name() const override { return "faulty"; }
  std::string description() const override { return "golden with a planted fault"; }
  std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) override {
    return golden_->make_pool(model, std::move(layers));
  }
  void prepare(const Stream& stream, const std::vector<int>& layers) override { golden_->prepare(stream, layers); }
  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override {
    const bool here = args.plan.step == place_.step && args.layer == place_.layer;
    const std::int32_t block = args.plan.block[static_cast<std::size_t>(place_.row)];
    if (here) before_(pool, block);
    golden_->step(args, pool, outputs);
    if (here) after_(pool, block);
  }

 private:
  const std::unique_ptr<Backend> golden_ = make_golden({});
  const Place place_;
  const Hook before_, after_;
};

struct Block {
  explicit Block(const Model& model) : recurrent(model.state_bytes()), conv(model.conv_bytes()) {}
  Bytes recurrent, conv;
  void load(Pool& pool, int layer, std::int32_t block) { pool.read(layer, block, recurrent, conv); }
};

constexpr Place kPlace{5, 1, 1};

/// A recorded run of a small recipe with every block's state after each step.
class Recorded {
 public:
  Recorded() : path_(dir_ / "recorded.h5"), stream_(make_recipe_stream(recipe())) {
    RecordOptions options;
    options.snapshot_every = 1;
    record_trace(*stream_, *make_golden({}), contract_set("golden"), path_, options);
  }
  static Recipe recipe() {
    Recipe recipe;
    recipe.seed = 11;
    Model& m = recipe.model;
    m.H = 2, m.HV = 4, m.K = 8, m.V = 8, m.W = 4, m.scale = 0.35355339f, m.num_blocks = 6, m.norm_eps = 1e-6f;
    m.layer_ids = {0, 1, 4};
    recipe.steps = 8, recipe.rows = 3;
    return recipe;
  }
  const Model& model() const { return stream_->model(); }

  /// Replays with a fault; the report's first divergence.
  Divergence first_with(const Faulty::Hook& before, const Faulty::Hook& after) {
    const auto trace = open_trace(path_);
    Faulty faulty(kPlace, before, after);
    ReplayOptions options;
    options.contracts = contract_set("golden");
    const ReplayResult result = replay(*trace, *trace, faulty, options);
    CHECK(result.verdict == Verdict::diverged);
    REQUIRE(result.first().has_value());
    return *result.first();
  }
  /// A block that no row of the step names.
  std::int32_t spare_block() {
    const auto plan = stream_->plan(kPlace.step);
    for (std::int32_t block = 1;; ++block)
      if (std::find(plan.block.begin(), plan.block.end(), block) == plan.block.end()) return block;
  }
  std::int32_t block_at_place() { return stream_->plan(kPlace.step).block[static_cast<std::size_t>(kPlace.row)]; }

 private:
  test::TempDir dir_;
  std::string path_;
  std::unique_ptr<Stream> stream_;
};

void nothing(Pool&, std::int32_t) {}

void check_place(const Divergence& first, Tap tap) {
  CHECK(first.step == kPlace.step);
  CHECK(first.layer == kPlace.layer);
  CHECK(first.row == kPlace.row);
  CHECK(name_of(first.tap) == name_of(tap));
}

}  // namespace

TEST_CASE("mutants: without a fault the recorded run matches") {
  Recorded recorded;
  const auto backend = make_golden({});
  test::TempDir dir;
  const auto stream = make_recipe_stream(Recorded::recipe());
  record_trace(*stream, *backend, contract_set("golden"), dir / "again.h5", {});
  const auto trace = open_trace(dir / "again.h5");
  ReplayOptions options;
  options.contracts = contract_set("golden");
  CHECK(replay(*trace, *trace, *backend, options).verdict == Verdict::match);
}

TEST_CASE("mutants: a recurrent store that is skipped") {
  Recorded recorded;
  Block saved(recorded.model()), now(recorded.model());
  const Divergence first =
      recorded.first_with([&](Pool& pool, std::int32_t block) { saved.load(pool, kPlace.layer, block); },
                          [&](Pool& pool, std::int32_t block) {
                            now.load(pool, kPlace.layer, block);
                            pool.write(kPlace.layer, block, saved.recurrent, now.conv);
                          });
  check_place(first, Tap::state);
  CHECK(first.block == recorded.block_at_place());
  CHECK(first.inputs == InputsMatched::equal);
}

TEST_CASE("mutants: a conv store that is skipped") {
  Recorded recorded;
  Block saved(recorded.model()), now(recorded.model());
  const Divergence first =
      recorded.first_with([&](Pool& pool, std::int32_t block) { saved.load(pool, kPlace.layer, block); },
                          [&](Pool& pool, std::int32_t block) {
                            now.load(pool, kPlace.layer, block);
                            pool.write(kPlace.layer, block, now.recurrent, saved.conv);
                          });
  check_place(first, Tap::conv_state);
}

TEST_CASE("mutants: another block's state is read") {
  Recorded recorded;
  Block own(recorded.model()), other(recorded.model());
  const auto read_wrong = [&](Pool& pool, std::int32_t block) {
    own.load(pool, kPlace.layer, block);
    other.load(pool, kPlace.layer, block == 1 ? 2 : 1);
    pool.write(kPlace.layer, block, other.recurrent, own.conv);
  };
  check_place(recorded.first_with(read_wrong, nothing), Tap::state);
}

TEST_CASE("mutants: a block that no row names is written") {
  Recorded recorded;
  Block block(recorded.model());
  const std::int32_t spare = recorded.spare_block();
  REQUIRE(spare < recorded.model().num_blocks);
  const auto write_stray = [&](Pool& pool, std::int32_t) {
    block.load(pool, kPlace.layer, spare);
    block.recurrent[9] ^= std::byte{4};
    pool.write(kPlace.layer, spare, block.recurrent, block.conv);
  };
  const Divergence first = recorded.first_with(nothing, write_stray);
  CHECK(first.step == kPlace.step);
  CHECK(first.layer == kPlace.layer);
  CHECK(first.row == -1);
  CHECK(first.block == spare);
  CHECK(first.element == 2);
}

TEST_CASE("mutants: one bit of a state flips between two steps") {
  Recorded recorded;
  Block block(recorded.model());
  const auto flip = [&](Pool& pool, std::int32_t named) {
    block.load(pool, kPlace.layer, named);
    block.recurrent[4 * (64 + 13) + 2] ^= std::byte{32};  // head 1, element 13
    pool.write(kPlace.layer, named, block.recurrent, block.conv);
  };
  const Divergence first = recorded.first_with(nothing, flip);
  check_place(first, Tap::state);
  CHECK(first.head == 1);
  CHECK(first.element == 13);
}
