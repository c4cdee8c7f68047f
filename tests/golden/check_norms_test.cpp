// Norms under the batteries, reduced, on golden: lanes that depend on the batch, what share is expected of whom, rules written out a
// second time, errors.
#include <doctest/doctest.h>

#include <gdnsim/check.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>

#include "check/contents.hpp"
#include "check/norm_batteries.hpp"
#include "check/norm_share.hpp"
#include "check/norm_words.hpp"
#include "check/subject.hpp"
#include "support/reduced_check.hpp"
#include "synth/values.hpp"

using namespace gdnsim;
using gdnsim::test::gate_of;
using gdnsim::test::reduced;

TEST_CASE("check: the norm whose lanes depend on the batch is found out between 264 and 265 rows") {
  CheckOptions options = reduced("triton-sm90-tiled-norm");
  options.stages = {CheckStage::gated_norm}, options.batteries = {Battery::L1};
  const CheckReport report = run_check(options);
  CHECK(report.exit_code() == 1);
  for (const std::string name :
       {"batch sizes", "permuted rows", "parts of 1 of 2048 rows", "parts of 7 of 2048 rows"}) {
    const Gate& gate = gate_of(report, CheckStage::gated_norm, Battery::L1, name);
    CHECK(gate.verdict == Gate::Verdict::violated);
    REQUIRE(gate.first.has_value());
    CHECK(gate.first->between == "264 and 265 rows");
    CHECK(gate.first->tap == Tap::rstd);
    CHECK(gate.first->want != gate.first->got);
  }
  const Gate& in_step = gate_of(report, CheckStage::gated_norm, Battery::L1, "batch sizes, in a step");
  CHECK(in_step.verdict == Gate::Verdict::violated);
  CHECK(in_step.first.value().between == "66 and 67 rows");  // of four heads
  CHECK(gate_of(report, CheckStage::gated_norm, Battery::L1, "parts of 512 of 2048 rows").verdict ==
        Gate::Verdict::held);
}

TEST_CASE("check: the hf convention rounds 0.655 of a gated norm correctly, and does not pass for vllm's") {
  CheckOptions options = reduced("golden");
  options.contract.norm = Norm::hf;
  options.stages = {CheckStage::gated_norm}, options.batteries = {Battery::accuracy};
  const CheckReport report = run_check(options);
  const Gate& gate = gate_of(report, CheckStage::gated_norm, Battery::accuracy, "2048 rows");
  CHECK(*gate.correctly_rounded == doctest::Approx(0.655).epsilon(0.01));
  CHECK(gate.verdict == Gate::Verdict::held);
  const NormSpec spec{128, DType::bf16, true, NormGate::silu, 1e-6f, 0};
  CHECK(expected_share(spec, contract_preset("golden")).low > *gate.correctly_rounded);
}

TEST_CASE("check: a share is expected of golden's and Triton's orders of sums, and of no others") {
  const NormSpec spec{128, DType::bf16, true, NormGate::silu, 1e-6f, 0};
  for (const Contract& preset : contract_presets()) {
    CAPTURE(preset.name);
    CHECK(expected_share(spec, preset).low == doctest::Approx(0.99998).epsilon(1e-9));
  }
  Contract other = contract_preset("golden");
  other.norm_dot.lane = Lane::whole;
  CHECK(expected_share(spec, other).low == 0);
  other = contract_preset("golden"), other.norm = Norm::gate_first;
  CHECK(expected_share(spec, other).low == 0);
}

TEST_CASE("check: a gate that comes first is so in the oracle, and its root is not the plain norm's") {
  CheckOptions options = reduced("golden");
  options.contract.norm = Norm::gate_first;
  options.stages = {CheckStage::gated_norm, CheckStage::rmsnorm};
  options.batteries = {Battery::L2, Battery::accuracy};
  const CheckReport report = run_check(options);
  CHECK(report.exit_code() == 0);
  for (const Gate& gate : report.gates) {
    CAPTURE(gate.name);
    CHECK(gate.verdict != Gate::Verdict::violated);
    // f32's words are compared with the rules written out. A half type's last place is 2^13 of f32's or more: f32's error before
    // the store is added to the store's 0.5, and 0.01 of a place is 80 of f32's or more.
    if (gate.battery == Battery::accuracy && gate.shape.find("f32") == std::string::npos) CHECK(*gate.worst_ulp < 0.51);
    if (gate.name == "rstd as in the gated norm") CHECK(gate.verdict == Gate::Verdict::skipped);
  }
  CHECK(gate_of(report, CheckStage::rmsnorm, Battery::L2, "rstd as in the gated norm").note.find("rule N8") !=
        std::string::npos);
}

TEST_CASE("check: an order of sums that no preset has is right, and its share is no promise") {
  CheckOptions options = reduced("golden");
  options.contract.norm_dot.lane = Lane::whole;
  options.stages = {CheckStage::gated_norm}, options.batteries = {Battery::L2, Battery::accuracy};
  const CheckReport report = run_check(options);
  CHECK(report.exit_code() == 0);
  const Gate& gate = gate_of(report, CheckStage::gated_norm, Battery::accuracy, "2048 rows");
  CHECK(*gate.correctly_rounded > 0.9999);
  CHECK(gate.note.find("no share is expected of this order of sums; every word") == 0);
}

namespace {

/// Every gated norm's words against the rules, in few rows; as many rows as a share needs of each type, gate and offset.
std::vector<Gate> gates_of_norm(const CheckOptions& options) {
  const Subject subject(options);
  std::vector<Gate> gates;
  for (DType act : {DType::bf16, DType::f16, DType::f32})
    for (NormGate gate : {NormGate::silu, NormGate::sigmoid})
      for (float offset : {0.0f, 1.0f}) {
        const NormSpec spec{128, act, true, gate, 1e-6f, offset};
        if (!undefined_because(options.contract, spec).empty()) continue;
        NormBatteries batteries(subject, CheckStage::gated_norm, spec, gates);
        if (is_written_out(spec, options.contract)) batteries.against_rules(64);
        const bool other = act == DType::f16;
        if ((gate == NormGate::sigmoid) == other && (offset == 1) == (act != DType::bf16)) batteries.accuracy(2048);
      }
  return gates;
}

}  // namespace

TEST_CASE("check: golden's gated norm is right under every contract that differs from its own in one field") {
  const Contract golden = contract_preset("golden");
  int asked = 0;
  for (const auto& [field, usual] : contract_fields(golden)) {
    constexpr std::string_view kFunctions[] = {"exp", "div", "sqrt", "negate", "rstd"};
    if (!field.starts_with("norm") && std::ranges::find(kFunctions, field) == std::end(kFunctions)) continue;
    for (const std::string& value : contract_field_values(field)) {
      if (value == usual) continue;
      CAPTURE(field + " = " + value);
      CheckOptions options = reduced("golden");
      set_contract_field(options.contract, field, value);
      const std::vector<Gate> gates = gates_of_norm(options);
      for (const Gate& gate : gates) {
        CAPTURE(gate.name + " " + gate.shape);
        CHECK(gate.verdict != Gate::Verdict::violated);
        CHECK(gate.verdict != Gate::Verdict::empty);
      }
      asked += !gates.empty();
    }
  }
  CHECK(asked >= 20);
  CheckOptions spoiled = reduced("golden");
  spoiled.mutation = &mutation("norm-order");
  CHECK(std::ranges::any_of(gates_of_norm(spoiled),
                            [](const Gate& gate) { return gate.verdict == Gate::Verdict::violated; }));
}

TEST_CASE("check: a norm's rules written out are golden's words, whatever the order of the sum") {
  const auto golden = make_golden({.threads = 1});
  Contract usual = contract_preset("golden");
  std::vector<Contract> contracts(6, usual);
  contracts[1].norm = Norm::hf, contracts[2].norm = Norm::gate_first;
  contracts[3].norm_dot = {.lane = Lane::four, .order = LaneOrder::swapped, .tree = Tree::narrowest, .group = 0};
  contracts[4].norm_dot = {.lane = Lane::whole};
  contracts[5].norm_dot.groups = Tree::narrowest, contracts[5].norm_dot.tree = Tree::sequential;
  std::uint64_t orders = 0, nans = 0;
  for (const int width : {1, 33, 128, 300})
    for (const DType act : {DType::bf16, DType::f16, DType::f32})
      for (const bool gated : {false, true})
        for (const Contract& contract : contracts) {
          const NormSpec spec{width,           act, gated, width == 33 ? NormGate::sigmoid : NormGate::silu, 1e-6f,
                              width % 2 * 1.0f};
          CAPTURE(describe(spec));
          CHECK(is_written_out(spec, contract));
          constexpr std::int64_t rows = 8;
          Bytes x(static_cast<std::size_t>(rows * width) * size_of(act)), z(gated ? x.size() : 0),
              weight(static_cast<std::size_t>(width) * size_of(act));
          fill({Draw::Kind::normal, 0, 1}, {1, Tensor::x}, act, x);
          fill({Draw::Kind::normal, 0, 1}, {1, Tensor::z}, act, z);
          fill({Draw::Kind::normal, 1, 0.1f}, {1, Tensor::norm_weight}, act, weight);
          // NaNs with payload, infinities, zeros and denormals in half of the rows.
          const std::size_t half = x.size() / 2;
          sprinkle(wild_words(0.2), {1, Tensor::x}, act, std::span(x).first(half));
          if (gated) sprinkle(wild_words(0.2), {1, Tensor::z}, act, std::span(z).first(half));
          const NormArgs args{spec, contract, rows, x, z, weight};
          NormOutputs found;
          golden->norm(args, found);
          const NormOutputs expected = written_out(args);
          CHECK(found.out == expected.out);
          const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
            return std::memcmp(a.data(), b.data(), rows * sizeof(float)) == 0;  // NaNs too
          };
          CHECK(same(found.rstd, expected.rstd));
          nans += std::isnan(expected.rstd[0]);
          orders += !same(expected.rstd, written_out({spec, usual, rows, x, z, weight}).rstd);
        }
  CHECK(orders >= 20);  // another order is seen in the last digit
  CHECK(nans >= 20);
  for (const char* triton : {"triton-sm90", "triton-sm90-tiled-norm"})
    CHECK(!is_written_out({128, DType::bf16}, contract_preset(triton)));
}

TEST_CASE("check: an error of a norm is a violated gate, and the other gates are asked") {
  CheckOptions options = reduced("golden");
  options.mutation = &mutation("norm-beyond");
  const CheckReport report = run_check(options);
  CHECK(report.exit_code() == 1);
  for (const Gate& gate : report.gates) {
    CAPTURE(gate.name);
    const bool throws = gate.stage == CheckStage::rmsnorm;
    CHECK((gate.verdict == Gate::Verdict::violated) == throws);
    if (throws) CHECK(gate.note == "a kernel wrote beyond out, 0 bytes behind");
  }
  CHECK(gate_of(report, CheckStage::rmsnorm, Battery::L0, "50 repeats").compared == 0);
  CHECK(gate_of(report, CheckStage::gated_norm, Battery::L0, "50 repeats").compared > 0);
}
