// The golden backend against the second implementation (support/second_step): every tap, every block of the pool, every
// bit. Under `golden`, `triton-sm90` and its mixed siblings; toy and real shapes; ordinary and hostile contents.
#include <doctest/doctest.h>

#include <gdnsim/backend.hpp>
#include <gdnsim/contract.hpp>

#include <memory>
#include <set>
#include <string>

#include "support/one_layer.hpp"
#include "support/second_step.hpp"

using namespace gdnsim;
using namespace gdnsim::second;

namespace {

struct Shape {
  int H, HV, K, V, W;
};

Model model_of(const Shape& shape) {
  Model m;
  m.H = shape.H, m.HV = shape.HV, m.K = shape.K, m.V = shape.V, m.W = shape.W;
  m.scale = shape.K == 128 ? 0.088388346f : 0.3f;
  m.num_blocks = 9;
  m.norm_eps = 1e-6f;
  return m;
}

/// The settings that a number stands for; every value of every one is reached as `n` counts up.
Recipe recipe_of(const Shape& shape, unsigned n, bool any_type, std::uint32_t hostile_in) {
  Recipe recipe;
  Model& m = recipe.model = model_of(shape);
  m.state_dtype = n % 2 == 0 ? DType::f32 : DType::bf16;
  m.conv_state_dtype = n / 2 % 2 == 0 ? DType::bf16 : DType::f32;
  recipe.bias = n / 4 % 2 == 1;
  m.activation = n / 8 % 2 == 0 ? Activation::silu : Activation::none;
  m.sentinel = static_cast<Sentinel>(n % 3);
  m.norm_gate = n % 5 < 3 ? NormGate::silu : NormGate::sigmoid;
  m.use_qk_l2norm = n % 7 != 3;
  m.inactive_conv_out = m.inactive_core_out = n % 4 == 3 ? InactiveOut::unwritten : InactiveOut::zero;
  recipe.norm = n % 6 != 5;
  if (any_type) m.act_dtype = static_cast<DType>(n / 3 % 3);
  recipe.hostile_in = hostile_in;
  recipe.name = "recipe " + std::to_string(n);
  return recipe;
}

struct Compared {
  std::uint64_t elements = 0, nans = 0;
};

void fill(Pool& pool, std::vector<Block>& blocks, const OneLayer& stream) {
  for (std::int32_t b = 0; b < stream.model().num_blocks; ++b) {
    blocks.push_back(stream.random_block(static_cast<std::uint64_t>(b)));
    pool.write(0, b, blocks.back().recurrent, blocks.back().conv);
  }
}

/// All taps that a step gives, against the second implementation's; `state` and `conv_state` come from the pool.
void compare_taps(const StepOutputs& got, const Taps& want, const Model& model, Compared& total) {
  for (std::size_t t = 0; t < kTaps; ++t) {
    const Tap tap = static_cast<Tap>(t);
    if (tap == Tap::state || tap == Tap::conv_state) continue;
    CAPTURE(name_of(tap));
    CHECK(first_difference(got[tap], want[tap], size_of(shape_of(tap, model).type)) == "");
    total.elements += want[tap].size() / size_of(shape_of(tap, model).type);
  }
}

void compare_pool(const Pool& pool, const std::vector<Block>& want, const Model& model, Compared& total) {
  Block got{Bytes(model.state_bytes()), Bytes(model.conv_bytes())};
  for (std::size_t b = 0; b < want.size(); ++b) {
    pool.read(0, static_cast<std::int32_t>(b), got.recurrent, got.conv);
    CAPTURE(b);
    CHECK(first_difference(got.recurrent, want[b].recurrent, size_of(model.state_dtype)) == "");
    CHECK(first_difference(got.conv, want[b].conv, size_of(model.conv_state_dtype)) == "");
    total.elements += static_cast<std::uint64_t>(model.state_elements() + model.conv_elements());
  }
}

/// A few steps of one recipe on both sides, state carried.
void compare(const Recipe& recipe, const Contract& contract, Rules rules, int steps, std::uint64_t seed,
             Compared& total, Mistake mistake = Mistake::none) {
  CAPTURE(recipe.name);
  CAPTURE(contract.name);
  OneLayer stream(recipe, seed, 4);
  const Model& model = stream.model();
  const auto backend = make_golden({.threads = 1 + static_cast<int>(seed % 2)});
  const auto pool = backend->make_pool(model, {0});
  backend->prepare(stream, {0});
  std::vector<Block> blocks;
  fill(*pool, blocks, stream);
  StepInputs inputs;
  StepOutputs outputs;
  for (std::size_t t = 0; t < kTaps; ++t)
    if (static_cast<Tap>(t) != Tap::state && static_cast<Tap>(t) != Tap::conv_state)
      outputs.want.add(static_cast<Tap>(t));
  for (std::int64_t t = 0; t < steps; ++t) {
    CAPTURE(t);
    const StepPlan plan = stream.plan(t);
    stream.inputs(t, 0, inputs);
    backend->step({.layer = 0, .plan = plan, .inputs = inputs, .contract = contract}, *pool, outputs);
    const Taps want = step(model, stream.params(0), rules, plan, inputs, blocks, mistake);
    compare_taps(outputs, want, model, total);
    compare_pool(*pool, blocks, model, total);
  }
}

/// A contract, the rules that the second implementation has for it, and a recipe on which its choices can show.
struct Base {
  std::string name;
  Rules rules;
  Recipe recipe;
};

/// Ordinary words; f32 activations (their squares are inexact, so fusing shows); heads that never decay (g is a signed
/// zero); and the triton contracts.
std::vector<Base> bases() {
  const Shape shape{2, 4, 128, 128, 4};
  std::vector<Base> all{{"golden", Rules::golden, recipe_of(shape, 0, false, 0)},
                        {"golden", Rules::golden, recipe_of({2, 16, 32, 128, 4}, 4, false, 0)},
                        {"golden", Rules::golden, recipe_of(shape, 6, false, 0)},
                        {"golden", Rules::golden, recipe_of(shape, 0, false, 0)},
                        {"triton-sm90", Rules::triton_sm90, recipe_of(shape, 6, false, 0)},
                        {"triton-sm90-mixed", Rules::triton_sm90_mixed, recipe_of(shape, 0, false, 0)},
                        {"triton-sm90-mixed-gating", Rules::triton_sm90_mixed_gating, recipe_of(shape, 0, false, 0)}};
  all[1].recipe.model.act_dtype = DType::f32;
  all[3].recipe.A_log = -200;
  return all;
}

/// Whether one step under `contract` shows a bit that the second implementation's step does not have.
bool differs(const Base& base, const Contract& contract) {
  OneLayer stream(base.recipe, 21, 3);
  const auto backend = make_golden({.threads = 1});
  const auto pool = backend->make_pool(stream.model(), {0});
  backend->prepare(stream, {0});
  std::vector<Block> blocks;
  fill(*pool, blocks, stream);
  StepInputs inputs;
  stream.inputs(0, 0, inputs);
  const StepPlan plan = stream.plan(0);
  StepOutputs outputs;
  outputs.want = TapSet{Tap::conv_acc, Tap::conv_out, Tap::q,        Tap::k,    Tap::beta,    Tap::g,
                        Tap::dot_k,    Tap::u,        Tap::core_out, Tap::rstd, Tap::norm_out};
  backend->step({.layer = 0, .plan = plan, .inputs = inputs, .contract = contract}, *pool, outputs);
  const Taps want = step(stream.model(), stream.params(0), base.rules, plan, inputs, blocks);
  for (std::size_t t = 0; t < kTaps; ++t)
    if (outputs.want.has(static_cast<Tap>(t)) && outputs.taps[t] != want.bytes[t]) return true;
  Block got{Bytes(stream.model().state_bytes()), Bytes(stream.model().conv_bytes())};
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    pool->read(0, static_cast<std::int32_t>(b), got.recurrent, got.conv);
    if (got != blocks[b]) return true;
  }
  return false;
}

/// The values to try for a field; a group is a number, so its list is ours.
std::vector<std::string> values_to_try(const std::string& field) {
  const bool group = field.size() > 6 && field.substr(field.size() - 6) == ".group";
  return group ? std::vector<std::string>{"0", "16", "64"} : contract_field_values(field);
}

std::string joined(const std::set<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += name + " ";
  return list;
}

/// Under the rule `sentinel`, told here once more: which rows take part.
bool takes_part(Sentinel sentinel, std::int32_t index) {
  if (sentinel == Sentinel::nonpositive) return index > 0;
  return sentinel == Sentinel::zero ? index != 0 : index != -1;
}

constexpr Shape kToyShapes[] = {{1, 1, 1, 1, 2},   {2, 4, 7, 5, 3},   {1, 3, 33, 40, 4},
                                {2, 4, 64, 32, 4}, {2, 2, 96, 31, 5}, {3, 6, 32, 65, 2}};
constexpr Shape kTritonShapes[] = {{2, 4, 64, 64, 4},  {1, 2, 128, 128, 4}, {2, 2, 64, 128, 4},
                                   {1, 3, 128, 64, 3}, {2, 4, 32, 32, 4},   {1, 1, 256, 256, 2}};
constexpr std::uint32_t kHostile[] = {0, 2000, 60};

}  // namespace

TEST_CASE("second: golden contract, any shape and type") {
  Compared total;
  for (unsigned n = 0; n < 144; ++n)
    compare(recipe_of(kToyShapes[n % std::size(kToyShapes)], n / 2, true, kHostile[n % 3]), contract_preset("golden"),
            Rules::golden, 3, n, total);
  MESSAGE("elements compared: " << total.elements);
  CHECK(total.elements > 1000000);
}

TEST_CASE("second: triton-sm90 and its mixed siblings, the shapes they are defined for") {
  Compared total;
  for (unsigned n = 0; n < 96; ++n) {
    const Recipe recipe = recipe_of(kTritonShapes[n % std::size(kTritonShapes)], n / 2, false, kHostile[n / 6 % 3]);
    REQUIRE(undefined_because(contract_preset("triton-sm90"), OneLayer(recipe, 1, 1).model()) == "");
    compare(recipe, contract_preset("triton-sm90"), Rules::triton_sm90, 2, n, total);
    compare(recipe, contract_preset("triton-sm90-mixed"), Rules::triton_sm90_mixed, 2, n + 1000, total);
    const Contract& gating = contract_preset("triton-sm90-mixed-gating");
    if (undefined_because(gating, recipe.model) == "")
      compare(recipe, gating, Rules::triton_sm90_mixed_gating, 2, n + 2000, total);
    else
      CHECK(recipe.model.K == 256);
  }
  MESSAGE("elements compared: " << total.elements);
  CHECK(total.elements > 10000000);
}

TEST_CASE("second: real shapes, all contracts, every state and conv type") {
  Compared total;
  for (const Shape& shape : {Shape{4, 8, 128, 128, 4}, Shape{16, 32, 128, 128, 4}}) {
    for (unsigned n = 0; n < (shape.H == 16 ? 2u : 4u); ++n) {
      const Recipe recipe = recipe_of(shape, n, false, n == 1 ? 20000 : 0);
      compare(recipe, contract_preset("golden"), Rules::golden, 1, n, total);
      compare(recipe, contract_preset("triton-sm90"), Rules::triton_sm90, 1, n, total);
      compare(recipe, contract_preset("triton-sm90-mixed"), Rules::triton_sm90_mixed, 1, n, total);
      compare(recipe, contract_preset("triton-sm90-mixed-gating"), Rules::triton_sm90_mixed_gating, 1, n, total);
    }
  }
  MESSAGE("elements compared: " << total.elements);
}

TEST_CASE("second: no q/k norm, and the decay's mistakes") {
  const std::pair<const char*, Mistake> mistakes[] = {{"qk_norm = none", Mistake::no_qk_norm},
                                                      {"decay = linear", Mistake::log_as_factor},
                                                      {"decay = twice", Mistake::factor_as_log},
                                                      {"decay = none", Mistake::no_decay}};
  const std::pair<const char*, Rules> bases[] = {
      {"golden", Rules::golden}, {"triton-sm90", Rules::triton_sm90}, {"triton-sm90-mixed", Rules::triton_sm90_mixed}};
  Compared total;
  for (const auto& [choice, mistake] : mistakes)
    for (const auto& [name, rules] : bases)
      for (unsigned n = 0; n < 8; ++n) {
        CAPTURE(choice);
        const std::string text = choice;
        Contract contract = contract_preset(name);
        set_contract_field(contract, text.substr(0, text.find(' ')), text.substr(text.find("= ") + 2));
        compare(recipe_of(kTritonShapes[n % 4], n, false, kHostile[n % 3]), contract, rules, 3, n, total, mistake);
      }
  MESSAGE("elements compared: " << total.elements);
  CHECK(total.elements > 1000000);
}

TEST_CASE("second: every contract field is caught when it is wrong") {
  // Not these: what shapes are allowed and what only a launch's size decides; and the order in a lane of the norms,
  // because squares of bf16 values are exact in f32 and golden's lanes, whose activations may be f32, hold one element.
  const std::set<std::string> silent{"multiprocessors", "norm_dot.order", "norm_dot.product",
                                     "qk_dot.order",    "qk_dot.product", "shapes"};
  std::set<std::string> missed;
  int mutants = 0, caught = 0;
  for (const auto& [field, unused] : contract_fields(contract_preset("golden"))) {
    const int before = caught;
    if (field != "shapes" && field != "multiprocessors")
      for (const Base& base : bases())
        for (const std::string& value : values_to_try(field)) {
          Contract mutant = contract_preset(base.name);
          set_contract_field(mutant, field, value);
          if (mutant == contract_preset(base.name) || undefined_because(mutant, base.recipe.model) != "") continue;
          ++mutants;
          caught += differs(base, mutant) ? 1 : 0;
        }
    if (caught == before) missed.insert(field);
  }
  MESSAGE("mutants: " << mutants << ", caught: " << caught);
  CHECK(joined(missed) == joined(silent));
  CHECK(caught > 200);
}

TEST_CASE("second: the plans name the rows that take part") {
  for (unsigned n = 0; n < 3; ++n) {
    const OneLayer stream(recipe_of(kToyShapes[1], n, false, 0), n, 4);
    int active = 0, inactive = 0;
    for (std::int64_t t = 0; t < 30; ++t) {
      const StepPlan plan = stream.plan(t);
      for (std::size_t row = 0; row < plan.block.size(); ++row) {
        const bool takes = static_cast<int>(row) < plan.present && takes_part(stream.model().sentinel, plan.index[row]);
        CHECK(plan.block[row] == (takes ? plan.index[row] : -1));
        ++(takes ? active : inactive);
      }
    }
    CHECK(active > 60);
    CHECK(inactive > 10);
  }
}

TEST_CASE("second: the wrong contract is caught in state, core_out and conv_out") {
  const Recipe recipe = recipe_of(kTritonShapes[0], 0, false, 0);
  OneLayer stream(recipe, 5, 4);
  StepInputs inputs;
  stream.inputs(0, 0, inputs);
  const auto run = [&](Rules rules) {
    std::vector<Block> blocks;
    for (std::uint64_t b = 0; b < 9; ++b) blocks.push_back(stream.random_block(b));
    return step(stream.model(), stream.params(0), rules, stream.plan(0), inputs, blocks);
  };
  const Taps golden = run(Rules::golden), triton = run(Rules::triton_sm90), mixed = run(Rules::triton_sm90_mixed),
             gating = run(Rules::triton_sm90_mixed_gating);
  for (Tap tap : {Tap::q, Tap::k, Tap::dot_k, Tap::u, Tap::state}) {
    CAPTURE(name_of(tap));
    CHECK(first_difference(golden[tap], triton[tap], 4) != "");
    CHECK(first_difference(mixed[tap], triton[tap], 4) != "");
  }
  CHECK(first_difference(mixed[Tap::beta], triton[Tap::beta], 4) == "");
  CHECK(gating[Tap::k] == mixed[Tap::k]);
  CHECK(first_difference(gating[Tap::dot_k], mixed[Tap::dot_k], 4) != "");
}
