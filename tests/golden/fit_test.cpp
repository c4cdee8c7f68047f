// fit on recordings made under contracts that it is not told: drawn at random, far from every preset, on both paths,
// with a fault in a row. What counts is that every recorded bit comes out, not that the same words are found.
#include <doctest/doctest.h>

#include <gdnsim/fit.hpp>
#include <gdnsim/recipe.hpp>
#include <gdnsim/record.hpp>
#include <gdnsim/trace.hpp>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>

#include "support/one_layer.hpp"
#include "support/temp_dir.hpp"

using namespace gdnsim;

namespace {

using second::Random;

struct Dims {
  int H, HV, K, V;
};

gdnsim::Recipe recipe_of(const Dims& dims, std::uint64_t seed) {
  gdnsim::Recipe recipe;
  recipe.seed = seed;
  Model& m = recipe.model;
  m.H = dims.H, m.HV = dims.HV, m.K = dims.K, m.V = dims.V, m.W = 4;
  m.scale = 0.125f, m.num_blocks = 6, m.norm_eps = 1e-6f;
  m.layer_ids = {0, 1};
  recipe.steps = 8, recipe.rows = 3;
  return recipe;
}

std::string draw(Random& random, const std::vector<std::string>& words) {
  return words[random.below(static_cast<std::uint32_t>(words.size()))];
}

/// A preset with `changes` fields set to other values, any shape allowed.
Contract drawn_contract(Random& random, int changes, const std::set<std::string>& left_out = {}) {
  const auto presets = contract_presets();
  Contract contract = presets[random.below(static_cast<std::uint32_t>(presets.size()))];
  contract.name = "drawn", contract.shapes = Shapes::any;
  std::set<std::string> changed;
  while (static_cast<int>(changed.size()) < changes) {
    const auto fields = contract_fields(contract);
    const auto& [field, value] = fields[random.below(static_cast<std::uint32_t>(fields.size()))];
    if (field == "shapes" || field == "multiprocessors" || left_out.contains(field) || changed.contains(field))
      continue;
    std::vector<std::string> words = contract_field_values(field);
    if (words.empty()) words = {"0", "2", "4", "8", "16", "32", "64"};
    const std::string word = draw(random, words);
    Contract other = contract;
    set_contract_field(other, field, word);
    if (word == value || !undefined_because(other, Model{}).empty()) continue;
    contract = other;
    changed.insert(field);
  }
  return contract;
}

void record(const gdnsim::Recipe& recipe, const ContractSet& contracts, const std::string& path, std::int64_t every) {
  const auto stream = make_recipe_stream(recipe);
  RecordOptions options;
  options.snapshot_every = every;
  record_trace(*stream, *make_golden({}), contracts, path, options);
}

/// With more time than it needs on an idle machine: the tests run beside others.
FitResult fitted(const std::string& path, double seconds = 300) {
  const auto trace = open_trace(path);
  FitOptions options;
  options.seconds = seconds;
  return fit(*trace, *trace, *make_golden({.threads = 1}), options);
}

Contract altered(const char* preset, const std::vector<std::pair<const char*, const char*>>& choices) {
  Contract contract = contract_preset(preset);
  contract.name = "altered";
  for (const auto& [field, value] : choices) set_contract_field(contract, field, value);
  return contract;
}

const Undecided* undecided_of(const FitPath& path, const std::string& field) {
  for (const Undecided& undecided : path.undecided)
    if (undecided.field == field) return &undecided;
  return nullptr;
}

/// Golden, but what a step does can be changed.
class Odd final : public Backend {
 public:
  using Step = std::function<void(Backend&, const StepArgs&, Pool&, StepOutputs&)>;
  explicit Odd(Step step) : step_(std::move(step)) {}
  std::string name() const override { return "odd"; }
  std::string description() const override { return "golden with oddities"; }
  std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) override {
    return golden_->make_pool(model, std::move(layers));
  }
  void prepare(const Stream& stream, const std::vector<int>& layers) override { golden_->prepare(stream, layers); }
  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override { step_(*golden_, args, pool, outputs); }

 private:
  const std::unique_ptr<Backend> golden_ = make_golden({.threads = 1});
  const Step step_;
};

/// What was found, for a message.
std::string told(const FitResult& result) {
  std::string text;
  for (const FitPath& path : result.paths) {
    text += std::string(name_of(path.path)) + ": " + path.nearest;
    for (const std::string& change : path.changes) text += ", " + change;
    for (const FitStage& stage : path.stages)
      text += "; " + stage.name + " " + std::to_string(stage.differing) + " of " + std::to_string(stage.compared) +
              " differ (" + stage.probe + ")";
    text += "\n";
  }
  return text;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string changes_of(const Contract& contract) {
  std::string text;
  const auto golden = contract_fields(contract_presets()[0]), mine = contract_fields(contract);
  for (std::size_t i = 0; i < mine.size(); ++i)
    if (mine[i] != golden[i]) text += mine[i].first + "=" + mine[i].second + " ";
  return text;
}

}  // namespace

TEST_CASE("fit: contracts drawn at random, three to five changes from a preset") {
  constexpr Dims kDims[] = {{2, 4, 64, 64}, {1, 2, 96, 80}, {2, 4, 32, 48}};
  const char* wanted = std::getenv("GDNSIM_FIT_DRAWS");  // more of them, for a longer run
  const unsigned draws = wanted == nullptr ? 12 : static_cast<unsigned>(std::stoi(wanted));
  Random random(77);
  int found = 0, all = 0;
  double longest = 0;
  for (unsigned n = 0; n < draws; ++n) {
    const test::TempDir dir;
    const Contract contract = drawn_contract(random, 3 + static_cast<int>(n % 3));
    gdnsim::Recipe recipe = recipe_of(kDims[n % std::size(kDims)], n);
    recipe.model.state_dtype = n % 4 == 3 ? DType::bf16 : DType::f32;
    if (n % 2 == 1) recipe.params.conv_bias = Draw{};
    CAPTURE(n);
    CAPTURE(changes_of(contract));
    record(recipe, {contract, contract}, dir / "drawn.h5", 4);
    const auto start = std::chrono::steady_clock::now();
    const FitResult result = fitted(dir / "drawn.h5");
    const double took = seconds_since(start);
    longest = std::max(longest, took);
    ++all;
    found += result.proof.verdict == Verdict::match;
    MESSAGE(n << ": " << name_of(result.proof.verdict) << " " << took << " s");
    CAPTURE(told(result));
    CHECK(result.proof.verdict == Verdict::match);
  }
  MESSAGE("found " << found << " of " << all << ", the slowest in " << longest << " s");
}

TEST_CASE("fit: two paths, each under a contract of its own, whose steps alternate") {
  const ContractSet contracts{altered("triton-sm90", {{"beta", "bf16"}, {"update", "multiply-add"}}),
                              altered("triton-sm90-mixed", {{"softplus", "log1p"}, {"params", "bf16"}})};
  const test::TempDir dir;
  gdnsim::Recipe recipe = recipe_of({2, 4, 64, 64}, 5);
  recipe.steps = 12, recipe.schedule.mixed = 0.4;
  record(recipe, contracts, dir / "both.h5", 2);
  const FitResult result = fitted(dir / "both.h5");
  CAPTURE(told(result));
  CHECK(result.proof.verdict == Verdict::match);
  REQUIRE(result.paths.size() == 2);
  for (const FitPath& path : result.paths) {
    const Contract& planted = contracts.of(path.path);
    CHECK(path.contract.beta == planted.beta);
    CHECK(path.contract.params == planted.params);
    CHECK(path.contract.update == planted.update);
  }
}

TEST_CASE("fit: a path that comes late is fitted from states that the other one's contract carries") {
  const ContractSet contracts{altered("golden", {{"state_dot.lane", "4"}, {"beta", "bf16"}}),
                              altered("golden", {{"exp", "ex2"}, {"update", "fma"}})};
  const test::TempDir dir;
  gdnsim::Recipe recipe = recipe_of({2, 4, 64, 64}, 9);
  recipe.steps = 16, recipe.schedule.mixed = 0.15;
  record(recipe, contracts, dir / "late.h5", 7);  // states after steps 6, 13 and 15
  const auto trace = open_trace(dir / "late.h5");
  int mixed = 0;
  for (std::int64_t step = 0; step < trace->steps(); ++step) mixed += trace->plan(step).path == Path::mixed;
  CHECK(trace->plan(0).path == Path::decode);
  CHECK(mixed > 0);
  const FitResult result = fitted(dir / "late.h5");
  CAPTURE(told(result));
  CHECK(result.proof.verdict == Verdict::match);
}

TEST_CASE("fit: the bias's place is found where the bits show it, and said to be open where sums are exact") {
  const test::TempDir dir;
  gdnsim::Recipe recipe = recipe_of({2, 4, 64, 64}, 3);
  recipe.params.conv_bias = Draw{};
  recipe.model.conv_state_dtype = DType::f32;  // products rounded to bf16 would sum exactly
  const Contract last = altered("triton-sm90", {{"conv_bias", "last"}});
  RecordOptions options;
  options.taps.add(Tap::conv_acc);  // f32: the rounded outputs alone may not show it
  record_trace(*make_recipe_stream(recipe), *make_golden({}), {last, last}, dir / "bias.h5", options);
  const FitResult found = fitted(dir / "bias.h5");
  CHECK(found.proof.verdict == Verdict::match);
  CHECK(found.paths[0].contract.conv_bias == ConvBias::last);
  CHECK(undecided_of(found.paths[0], "conv_bias") == nullptr);

  recipe.params.conv_bias = Draw{Draw::Kind::constant, 2.0f};
  recipe.params.conv_weight = Draw{Draw::Kind::constant, 0.5f};
  recipe.inputs.x = Draw{Draw::Kind::constant, 1.0f};
  recipe.states.conv = Draw{Draw::Kind::constant, 1.0f};
  record(recipe, {last, last}, dir / "exact.h5", 4);
  const FitResult open = fitted(dir / "exact.h5");
  CHECK(open.proof.verdict == Verdict::match);
  REQUIRE(undecided_of(open.paths[0], "conv_bias") != nullptr);
  CHECK(undecided_of(open.paths[0], "conv_bias")->because == "");
}

TEST_CASE("fit: without conv_out the conv is found together with the recurrence") {
  const Contract contract = altered("triton-sm90", {{"conv_product", "f32"}, {"beta", "bf16"}});
  for (const TapSet taps : {TapSet{Tap::core_out, Tap::norm_out}, TapSet{}}) {
    const test::TempDir dir;
    const auto stream = make_recipe_stream(recipe_of({2, 4, 64, 64}, 4));
    RecordOptions options;
    options.taps = taps, options.snapshot_every = 2;
    record_trace(*stream, *make_golden({}), {contract, contract}, dir / "few.h5", options);
    const FitResult result = fitted(dir / "few.h5");
    CHECK(result.proof.verdict == Verdict::match);
    CHECK(result.paths[0].contract.beta == Beta::bf16);
    CHECK(result.paths[0].contract.conv_product == ConvProduct::f32);
  }
}

TEST_CASE("fit: the tiled norm's lanes say on which side the number of multiprocessors lies") {
  for (const int multiprocessors : {4, 132}) {
    CAPTURE(multiprocessors);
    Contract contract = contract_preset("triton-sm90-tiled-norm");
    contract.name = "tiled", contract.multiprocessors = multiprocessors;
    const test::TempDir dir;
    gdnsim::Recipe recipe = recipe_of({2, 4, 64, 128}, 6);
    recipe.steps = 40;
    const auto stream = make_recipe_stream(recipe);
    RecordOptions options;
    options.taps.add(Tap::rstd);  // f32: the outputs alone hardly ever show the lanes
    record_trace(*stream, *make_golden({}), {contract, contract}, dir / "tiled.h5", options);
    const FitResult result = fitted(dir / "tiled.h5");
    CAPTURE(told(result));
    CHECK(result.proof.verdict == Verdict::match);
    CHECK(result.paths[0].nearest == "triton-sm90-tiled-norm");
    const Undecided* range = undecided_of(result.paths[0], "multiprocessors");
    REQUIRE(range != nullptr);
    CHECK(range->others[0] == (multiprocessors == 4 ? "1 to 5" : "6 to 65536"));  // 3 x 4 rows
    CHECK((result.paths[0].contract.multiprocessors < 6) == (multiprocessors == 4));
  }
}

TEST_CASE("fit: layers that round differently are told apart") {
  const Contract first = contract_preset("triton-sm90"), second = altered("triton-sm90", {{"update", "multiply-add"}});
  Odd odd([&](Backend& golden, const StepArgs& args, Pool& pool, StepOutputs& outputs) {
    golden.step({args.layer, args.plan, args.inputs, args.layer == 1 ? second : first}, pool, outputs);
  });
  const test::TempDir dir;
  const auto stream = make_recipe_stream(recipe_of({2, 4, 64, 64}, 8));
  RecordOptions options;
  options.snapshot_every = 4;
  record_trace(*stream, odd, {first, first}, dir / "layers.h5", options);
  const FitResult result = fitted(dir / "layers.h5");
  CHECK(result.proof.verdict == Verdict::diverged);
  CHECK(result.paths[0].contract == first);
  CHECK(result.holds == std::vector<int>{0});
  REQUIRE(result.layers.size() == 1);
  CHECK(result.layers[0].found.layer == 1);
  CHECK(result.layers[0].found.changes == std::vector<std::string>{"update = multiply-add"});
  CHECK(result.layers[0].match);
}

TEST_CASE("fit: a fault in a row of the first steps does not hide the contract of the rest") {
  const Contract contract = altered("triton-sm90", {{"beta", "bf16"}, {"softplus", "log1p"}});
  const auto stream = make_recipe_stream(recipe_of({2, 4, 64, 64}, 10));
  const std::int32_t block = stream->plan(2).block[1];
  REQUIRE(block >= 0);
  Odd odd([&](Backend& golden, const StepArgs& args, Pool& pool, StepOutputs& outputs) {
    Bytes recurrent(stream->model().state_bytes()), conv(stream->model().conv_bytes()), old = recurrent;
    const bool here = args.plan.step == 2 && args.layer == 0;
    if (here) pool.read(0, block, old, conv);
    golden.step(args, pool, outputs);
    if (!here) return;
    pool.read(0, block, recurrent, conv);
    pool.write(0, block, old, conv);  // the state of that step is lost
  });
  const test::TempDir dir;
  RecordOptions options;
  options.snapshot_every = 4;
  record_trace(*stream, odd, {contract, contract}, dir / "fault.h5", options);
  const auto trace = open_trace(dir / "fault.h5");
  const FitPath found =
      fit_layer(*trace, *trace, *make_golden({.threads = 1}), 0, Path::decode, 0, trace->steps(), 100);
  CHECK(found.changes == std::vector<std::string>{"softplus = log1p", "beta = bf16"});
  CHECK_FALSE(found.exact());
  CHECK(found.exact_elsewhere());
  REQUIRE_FALSE(found.except.empty());
  for (const FitRow& row : found.except) {
    CHECK(row.stage == "recurrent");
    CHECK(row.step >= 2);
    CHECK(trace->plan(row.step).block[static_cast<std::size_t>(row.row)] == block);
  }
}
