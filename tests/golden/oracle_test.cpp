// Bounds the error of `golden`, `triton-sm90` and `triton-sm90-mixed` against the double-precision oracle: stage by
// stage with the derived bounds of support/oracle_bounds.hpp, and over a run that carries its state. A bound that
// nothing comes near would prove nothing, so each test also demands that the largest error passes a hundredth of its
// bound, and mutants must break it.
#include <doctest/doctest.h>

#include <gdnsim/backend.hpp>
#include <gdnsim/contract.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "golden/oracle_f64.hpp"
#include "support/one_layer.hpp"
#include "support/oracle_bounds.hpp"

using namespace gdnsim;
using namespace gdnsim::second;
using gdnsim::golden::OracleBlock;
using gdnsim::golden::OracleF64;

namespace {

/// What a mutant spoils before the oracle's words are compared.
struct Mutant {
  std::function<void(LayerParams&)> params;
  std::function<void(Model&)> model;
};

Recipe recipe_of(DType act, DType state, DType conv) {
  Recipe recipe;
  recipe.name = "oracle";
  Model& m = recipe.model;
  m.H = 2, m.HV = 4, m.K = 128, m.V = 64, m.W = 4;
  m.scale = 0.088388346f;
  m.num_blocks = 8;
  m.norm_eps = 1e-6f;
  m.act_dtype = act, m.state_dtype = state, m.conv_state_dtype = conv;
  recipe.bias = true;
  return recipe;
}

Doubles slice(const Doubles& all, std::size_t row, std::size_t rows) {
  const std::size_t n = all.size() / rows;
  return {all.begin() + static_cast<std::ptrdiff_t>(row * n), all.begin() + static_cast<std::ptrdiff_t>((row + 1) * n)};
}

OracleBlock widened_block(const Pool& pool, std::int32_t block, const Model& m) {
  Block raw{Bytes(m.state_bytes()), Bytes(m.conv_bytes())};
  pool.read(0, block, raw.recurrent, raw.conv);
  return {widened(raw.recurrent, m.state_dtype), widened(raw.conv, m.conv_state_dtype)};
}

/// One backend and one oracle on the same stream; the oracle may be told another model or other parameters (mutants).
struct Duel {
  OneLayer stream;
  Model model, oracle_model;
  LayerParams oracle_params;
  std::unique_ptr<Backend> backend = make_golden({.threads = 1});
  std::unique_ptr<Pool> pool;
  StepInputs raw;
  StepOutputs out;

  Duel(const Recipe& recipe, const Mutant& mutant) : stream(recipe, 11, 4), model(stream.model()), oracle_model(model) {
    oracle_params = stream.params(0);
    if (mutant.params) mutant.params(oracle_params);
    if (mutant.model) mutant.model(oracle_model);
    pool = backend->make_pool(model, {0});
    backend->prepare(stream, {0});
    for (std::int32_t b = 0; b < model.num_blocks; ++b) {
      const Block block = stream.random_block(static_cast<std::uint64_t>(b));
      pool->write(0, b, block.recurrent, block.conv);
    }
    for (Tap tap : {Tap::q, Tap::k, Tap::beta, Tap::g, Tap::decay, Tap::dot_k, Tap::u, Tap::rstd}) out.want.add(tap);
  }

  RowInputs inputs_of(std::size_t row, std::size_t rows) const {
    return {slice(widened(raw.mixed_qkv, model.act_dtype), row, rows),
            slice(widened(raw.a, model.act_dtype), row, rows), slice(widened(raw.b, model.act_dtype), row, rows),
            slice(widened(raw.z, model.act_dtype), row, rows)};
  }

  /// Runs step t; `judge(row, block)` is called for each active row afterwards.
  template <class Judge>
  void step(std::int64_t t, const Contract& contract, std::vector<OracleBlock>& before, const Judge& judge) {
    const StepPlan plan = stream.plan(t);
    stream.inputs(t, 0, raw);
    before.clear();
    for (std::int32_t b = 0; b < model.num_blocks; ++b) before.push_back(widened_block(*pool, b, model));
    backend->step({.layer = 0, .plan = plan, .inputs = raw, .contract = contract}, *pool, out);
    for (std::size_t row = 0; row < plan.block.size(); ++row)
      if (plan.block[row] >= 0) judge(row, plan.block.size(), static_cast<std::size_t>(plan.block[row]));
  }
};

/// Every stage of every row of a few steps; each stage gets the backend's own inputs, so its error is its own.
Worst local_errors(const Recipe& recipe, const Contract& contract, const Mutant& mutant = {}) {
  Duel duel(recipe, mutant);
  const OracleF64 oracle(duel.oracle_model, duel.oracle_params);
  const Model& m = duel.model;
  Worst worst;
  std::vector<OracleBlock> before;
  for (std::int64_t t = 0; t < 4; ++t) {
    duel.step(t, contract, before, [&](std::size_t row, std::size_t rows, std::size_t block) {
      const RowInputs in = duel.inputs_of(row, rows);
      const RowTaps got = [&](Tap tap) { return slice(widened(duel.out[tap], shape_of(tap, m).type), row, rows); };
      OracleBlock state = before[block];
      Doubles window = state.conv;
      window.insert(window.end(), in.x.begin(), in.x.end());
      judge_conv(m, duel.stream.params(0), window, oracle.conv(in.x, state), got(Tap::conv_out), worst);
      const Doubles conv_out = got(Tap::conv_out);
      const OracleCore core = oracle.recurrence(conv_out, in.a, in.b, state);
      const Doubles stored = widened_block(*duel.pool, static_cast<std::int32_t>(block), m).recurrent;
      judge_qk(core, got, worst);
      const GateErrors gate = judge_gates(duel.stream.params(0), in, core, got, worst);
      judge_recurrence(m, conv_out, core, got, {before[block].recurrent, state.recurrent, stored}, gate, worst);
      judge_norm(m, in, oracle.norm(got(Tap::core_out), in.z), got, worst);
    });
  }
  return worst;
}

void demand(const Worst& worst) {
  const std::pair<std::string, double> stages[] = {{"conv", worst.conv}, {"qk", worst.qk},       {"gates", worst.gates},
                                                   {"dot", worst.dot},   {"state", worst.state}, {"core", worst.core},
                                                   {"norm", worst.norm}};
  for (const auto& entry : stages) {
    const double ratio = entry.second;
    CAPTURE(entry.first);
    CHECK(ratio <= 1);
    CHECK(ratio > 0.01);
  }
}

double frobenius(const Doubles& x, const Doubles* minus = nullptr) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += std::pow(x[i] - (minus != nullptr ? (*minus)[i] : 0), 2);
  return std::sqrt(sum);
}

/// The state's relative error (Frobenius norm) after `steps` carried steps, the largest over the blocks.
double carried_error(const Recipe& recipe, const Contract& contract, int steps, const Mutant& mutant = {}) {
  Duel duel(recipe, mutant);
  const OracleF64 oracle(duel.oracle_model, duel.oracle_params);
  std::vector<OracleBlock> mine, before;
  for (std::int32_t b = 0; b < duel.model.num_blocks; ++b) mine.push_back(widened_block(*duel.pool, b, duel.model));
  for (std::int64_t t = 0; t < steps; ++t) {
    duel.step(t, contract, before, [&](std::size_t row, std::size_t rows, std::size_t block) {
      const RowInputs in = duel.inputs_of(row, rows);
      const Doubles conv_out = slice(widened(duel.out[Tap::conv_out], duel.model.act_dtype), row, rows);
      oracle.recurrence(conv_out, in.a, in.b, mine[block]);
    });
  }
  double worst = 0;
  for (std::size_t b = 0; b < mine.size(); ++b) {
    const Doubles stored = widened_block(*duel.pool, static_cast<std::int32_t>(b), duel.model).recurrent;
    worst = std::max(worst, frobenius(stored, &mine[b].recurrent) / frobenius(mine[b].recurrent));
  }
  return worst;
}

}  // namespace

TEST_CASE("oracle: golden stays within its derived bounds, all types") {
  for (DType act : {DType::f32, DType::bf16, DType::f16})
    for (DType state : {DType::f32, DType::bf16}) {
      const DType conv = act == DType::bf16 ? DType::bf16 : DType::f32;
      CAPTURE(name_of(act));
      CAPTURE(name_of(state));
      demand(local_errors(recipe_of(act, state, conv), contract_preset("golden")));
    }
}

TEST_CASE("oracle: the triton contracts stay within theirs") {
  for (const std::string name : {"triton-sm90", "triton-sm90-mixed"})
    for (DType state : {DType::f32, DType::bf16})
      for (DType conv : {DType::f32, DType::bf16}) {
        CAPTURE(name);
        CAPTURE(name_of(state));
        demand(local_errors(recipe_of(DType::bf16, state, conv), contract_preset(name)));
      }
}

TEST_CASE("oracle: an equation that is off breaks the bound of its stage") {
  const Recipe recipe = recipe_of(DType::bf16, DType::f32, DType::bf16);
  const Contract& contract = contract_preset("golden");
  const Mutant no_decay{[](LayerParams& p) { std::fill(p.A_log.begin(), p.A_log.end(), -100.0f); }, {}};
  const Mutant no_bias{[](LayerParams& p) { p.conv_bias.clear(); }, {}};
  const Mutant no_l2norm{{}, [](Model& m) { m.use_qk_l2norm = false; }};
  const Mutant other_scale{{}, [](Model& m) { m.scale = std::nextafter(m.scale, 1.0f) * (1 + 0x1p-20f); }};
  const Mutant sigmoid_gate{{}, [](Model& m) { m.norm_gate = NormGate::sigmoid; }};
  const Mutant other_eps{{}, [](Model& m) { m.norm_eps = 1e-4f; }};
  const Mutant no_silu{{}, [](Model& m) { m.activation = Activation::none; }};
  const Worst dropped = local_errors(recipe, contract, no_decay);
  CHECK(dropped.gates > 100);
  CHECK(dropped.state > 100);
  CHECK(local_errors(recipe, contract, no_bias).conv > 10);
  CHECK(local_errors(recipe, contract, no_silu).conv > 10);
  CHECK(local_errors(recipe, contract, no_l2norm).qk > 100);
  CHECK(local_errors(recipe, contract, other_scale).qk > 1);
  CHECK(local_errors(recipe, contract, sigmoid_gate).norm > 10);
  CHECK(local_errors(recipe, contract, other_eps).norm > 1);
}

TEST_CASE("oracle: the contracts' own choices stay visible") {
  // A contract that rounds beta through bf16, or stores bf16 where f32 is declared, is outside the f32 bounds.
  const Recipe recipe = recipe_of(DType::bf16, DType::f32, DType::bf16);
  Contract beta = contract_preset("golden"), store = beta, head_map = beta;
  beta.beta = Beta::bf16;
  store.state_store = StateStore::bf16;
  head_map.head_map = HeadMap::tiled;
  CHECK(local_errors(recipe, beta).gates > 10);
  CHECK(local_errors(recipe, store).state > 10);
  CHECK(local_errors(recipe, head_map).core > 10);
}

// Carried. One step adds at most about (2 kC + 10) u of the state (the local bound above), and the recurrence itself
// does not stretch an error: decay <= 1, and I - beta k k^T has norm 1 for |k| <= 1. So errors add up at most linearly:
// the hard bound. Roundings to nearest have no direction, so they add up like a random walk of a few u a step: the
// sharp bound, which a rounding with a bias (half a u a step, 128 u here) breaks. The stream forgets slowly, so that
// errors live.
TEST_CASE("oracle: carried over 256 steps, the f32 state's error stays a random walk of roundings") {
  constexpr int kSteps = 256;
  constexpr double kHard = (2 * kC + 10) * kU * kSteps;
  const double kSharp = 4 * kU * std::sqrt(kSteps);
  Recipe plain = recipe_of(DType::f32, DType::f32, DType::f32), words = recipe_of(DType::bf16, DType::f32, DType::bf16);
  plain.A_log = words.A_log = -7;
  const auto judge = [&](double error) {
    CHECK(error <= kHard);
    CHECK(error <= kSharp);
    CHECK(error > kU / 4);
  };
  judge(carried_error(plain, contract_preset("golden"), kSteps));
  for (const std::string name : {"golden", "triton-sm90", "triton-sm90-mixed"}) {
    CAPTURE(name);
    judge(carried_error(words, contract_preset(name), kSteps));
  }
  const Mutant weaker{[](LayerParams& p) {
                        for (float& x : p.A_log) x += 0.01f;
                      },
                      {}};
  CHECK(carried_error(words, contract_preset("golden"), kSteps, weaker) > kSharp);
}

TEST_CASE("oracle: a bf16 state store is far outside the f32 bound") {
  Recipe recipe = recipe_of(DType::bf16, DType::f32, DType::bf16);
  recipe.A_log = -7;
  Contract store = contract_preset("golden");
  store.state_store = StateStore::bf16;
  CHECK(carried_error(recipe, store, 64) > (2 * kC + 10) * kU * 64);
}
