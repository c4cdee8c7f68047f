// The batteries, reduced, on golden: they hold; every planted fault is found by the gate named for it; a change of bits between two
// batch sizes is narrowed to the pair; a gate that compared nothing does not hold.
#include <doctest/doctest.h>

#include <gdnsim/check.hpp>
#include <gdnsim/refused.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <string>

#include "check/gate.hpp"
#include "check/stages.hpp"
#include "check/subject.hpp"
#include "gdnsim/arith.hpp"
#include "support/reduced_check.hpp"

using namespace gdnsim;
using gdnsim::test::gate_of;
using gdnsim::test::reduced;

TEST_CASE("check: golden and triton-sm90 hold on golden, at max_abs 0") {
  for (const std::string name : {"golden", "triton-sm90"}) {
    CAPTURE(name);
    const CheckReport report = run_check(reduced(name));
    CHECK(report.exit_code() == 0);
    std::set<std::pair<CheckStage, Battery>> asked;
    for (const Gate& gate : report.gates) {
      CAPTURE(gate.name);
      CHECK(gate.verdict != Gate::Verdict::violated);
      CHECK(gate.verdict != Gate::Verdict::empty);
      CHECK((gate.verdict == Gate::Verdict::skipped || gate.compared > 0));
      if (gate.battery == Battery::L0 || gate.battery == Battery::L1) CHECK((gate.differing == 0 && gate.max_abs == 0));
      if (gate.verdict != Gate::Verdict::skipped) asked.insert({gate.stage, gate.battery});
    }
    CHECK(asked.size() == (name == "golden" ? 16 : 12));  // triton-sm90 has no plain norm
    CHECK(gate_of(report, CheckStage::gated_norm, Battery::accuracy, "2048 rows").correctly_rounded >= 0.99998);
  }
}

TEST_CASE("check: every row of the table is examined, and one that is asked for") {
  CheckOptions options = reduced("golden");
  options.kernel = "all", options.batteries = {Battery::L2};
  std::set<std::string> kernels;
  const CheckReport all = run_check(options);
  CHECK(all.exit_code() == 0);
  for (const Gate& gate : all.gates)
    if (gate.stage == CheckStage::recurrent && gate.name == "against golden" && gate.verdict == Gate::Verdict::held)
      kernels.insert(gate.kernel);
  CHECK(kernels.size() == golden_kernels().size());  // all but plain, and the backend's own choice
  CHECK(kernels.contains(""));
  for (const Gate& gate : all.gates) CHECK((gate.kernel.empty() || gate.name != "blocks written, copied, zeroed"));
  CHECK(check_text(all).find("kernel plain: no step of it was examined\n") != std::string::npos);
  options.kernel = golden_kernels().back();
  for (const Gate& gate : run_check(options).gates) CHECK(gate.kernel == golden_kernels().back());
  options.kernel = "banana";
  CHECK_THROWS_WITH_AS(run_check(options), doctest::Contains("found 'banana'"), Error);
}

TEST_CASE("check: every planted fault is found by the gate named for it, and by nothing without it") {
  for (const MutationResult& result : run_mutations(reduced("golden"), "all")) {
    CAPTURE(std::string(result.mutation->name));
    CHECK(!result.gates.empty());
    CHECK(result.caught());
  }
  CHECK(mutations().size() >= 31);
  CHECK_THROWS_WITH_AS(mutation("banana"), doctest::Contains("found 'banana'"), Error);
}

TEST_CASE("check: where nothing is spoiled no gate is violated") {
  CheckOptions options = reduced("golden");
  options.mutation = &no_mutation();
  const CheckReport report = run_check(options);
  CHECK(report.exit_code() == 0);
  for (const Mutation& each : mutations())
    CHECK(std::ranges::any_of(report.gates, [&](const Gate& gate) {
      return gate.stage == each.stage && gate.battery == each.battery && gate.verdict != Gate::Verdict::skipped &&
             gate.name.find(each.gate) != std::string::npos;
    }));
}

TEST_CASE("check: a fault is not caught by a gate that is violated without it, nor missed by gates that are skipped") {
  const auto tiled = run_mutations(reduced("triton-sm90-tiled-norm"), "by-batch");
  CHECK((tiled.front().asked() && !tiled.front().caught()));
  CHECK(exit_code(tiled) == 1);
  CHECK(check_text(tiled).find("without the fault too: violated: gated-norm, L1") != std::string::npos);
  const auto plain_norm = run_mutations(reduced("triton-sm90"), "squares-plain");
  CHECK((!plain_norm.front().asked() && !plain_norm.front().caught()));
  CHECK(exit_code(plain_norm) == 2);
  CHECK(check_text(plain_norm).find("planted 1, caught 0, not asked 1\n") != std::string::npos);
}

TEST_CASE("check: what a kernel refuses is skipped, what is found out about it is violated") {
  for (const std::string& kernel : {std::string("own"), golden_kernels().back()}) {
    CAPTURE(kernel);
    CheckOptions options = reduced("golden");
    options.kernel = kernel, options.stages = {CheckStage::conv, CheckStage::recurrent};
    std::vector<Gate> gates;
    const auto ask = [&](const Error& thrown, bool refused) {
      attempt(options, Battery::L2, "a name", check_model(options), gates, [&] {
        if (refused) throw Refused(thrown.what());
        throw Error(thrown);
      });
    };
    if (kernel == "own") CHECK_THROWS_AS(ask(Error("not for it"), true), Refused);
    if (kernel == "own") gates.assign(2, skipped_gate(CheckStage::conv, Battery::L2, "", "", "not for it"));
    if (kernel != "own") ask(Error("not for it"), true);
    ask(Error("wrote beyond u"), false);
    REQUIRE(gates.size() == 4);
    CHECK((gates[1].verdict == Gate::Verdict::skipped && gates[1].note == "not for it"));
    CHECK((gates[3].verdict == Gate::Verdict::violated && gates[3].stage == CheckStage::recurrent));
    CheckReport report;
    report.gates = gates;
    CHECK(check_text(report).find("): wrote beyond u\n") != std::string::npos);
    if (kernel != "own" && kernel != "plain")
      CHECK(run_mutations(options, "beyond").front().caught());  // held, it throws as well
  }
}

TEST_CASE("check: words of a block that were asked for and not given differ") {
  CheckOptions options = reduced("golden");
  const Subject subject(options);
  const Model model = check_model(options);
  KeptBlock want;
  want.make_room(true, model);
  want.digest = digest_block(model, want.recurrent, want.conv);
  KeptBlock got = want;
  for (const bool given : {true, false}) {
    StageTallies tallies(subject, Battery::L2, "kept", model, kStateStages);
    if (!given) got.recurrent.clear(), got.conv.clear();
    tallies.compare_kept(want, got, 0, "");
    for (const Tally& tally : tallies.tallies()) CHECK(tally.differs() == !given);
  }
}

TEST_CASE("check: a window is repeatable, and its rows are their own") {
  CheckOptions options = reduced("golden");
  options.stages = {CheckStage::recurrent}, options.batteries = {Battery::L0, Battery::L1};
  for (const std::string name : {"nothing", "step-noise", "step-by-batch"}) {
    CAPTURE(name);
    options.mutation = name == "nothing" ? &no_mutation() : &mutation(name);
    const CheckReport report = run_check(options);
    const auto violated = [&](Battery battery, const std::string& gate) {
      return gate_of(report, CheckStage::recurrent, battery, gate).verdict == Gate::Verdict::violated;
    };
    CHECK(violated(Battery::L0, "50 repeats of a window") == (name == "step-noise"));
    if (name != "step-noise") CHECK(violated(Battery::L1, "windows of other row counts") == (name == "step-by-batch"));
  }
}

TEST_CASE("check: a kernel that runs windows alone is not examined by single steps") {
  CheckOptions options = reduced("golden");
  options.stages = {CheckStage::recurrent};
  const Subject subject(options);
  options.kernel = "resident";  // the subject's options are these
  std::vector<Gate> gates;
  check_steps(subject, gates), check_carried(subject, gates);
  for (const Gate& gate : gates)
    CHECK((gate.verdict == Gate::Verdict::skipped) == (gate.name == "every battery of single steps"));
  CHECK(gates.size() == 7);  // and windows: repeated, of other row counts, a long one, against golden in three shapes
}

TEST_CASE("check: measured figures alone are an answer where nothing was skipped") {
  Gate measured, held;
  measured.verdict = Gate::Verdict::measured, held.verdict = Gate::Verdict::held;
  const Gate skipped = skipped_gate(CheckStage::conv, Battery::accuracy, "step", "", "why");
  const Gate no_device = skipped_gate(CheckStage::conv, Battery::time, "step of avx512", "", "this CPU has no AVX-512");
  const auto code = [](std::vector<Gate> gates) {
    CheckReport report;
    report.gates = std::move(gates);
    return report.exit_code();
  };
  CHECK(code({measured}) == 0);
  CHECK(code({measured, skipped}) == 2);
  CHECK(code({measured, no_device}) == 0);
  CHECK(code({no_device}) == 2);
  CHECK(code({measured, skipped, held}) == 0);
}

TEST_CASE("check: what compared nothing does not hold") {
  const Gate empty = Tally(CheckStage::conv, Battery::L0, "nothing", "").finish();
  CHECK(empty.verdict == Gate::Verdict::empty);
  CheckReport report;
  report.gates = {empty};
  CHECK(report.exit_code() == 1);
  CHECK(check_text(report).find("nothing was compared") != std::string::npos);
  report.gates = {skipped_gate(CheckStage::conv, Battery::L0, "any", "", "why")};
  CHECK(report.exit_code() == 2);
  report.gates.clear();
  CHECK(report.exit_code() == 2);
  CHECK(TraceCheck{}.exit_code() == 2);
}

TEST_CASE("check: bisection ends at neighbours") {
  for (std::int64_t edge = 1; edge < 40; ++edge) {
    const Neighbours up = narrow_down({0, 40}, [&](std::int64_t size) { return size < edge; });
    CHECK((up.good == edge - 1 && up.bad == edge));
    const Neighbours down = narrow_down({40, 0}, [&](std::int64_t size) { return size >= edge; });
    CHECK((down.good == edge && down.bad == edge - 1));
    CHECK(between_sizes(down) == between_sizes(up));
  }
}

TEST_CASE("check: the nearest word is rounded once") {
  CHECK(nearest_word(DType::bf16, 1 + 0x1p-8) == 0x3F80);            // a tie: to even
  CHECK(nearest_word(DType::bf16, 1 + 0x1p-8 + 0x1p-40) == 0x3F81);  // twice rounded it would be the tie
  CHECK(nearest_word(DType::bf16, -(1 + 0x1p-8 + 0x1p-40)) == 0xBF81);
  CHECK(nearest_word(DType::f16, 1 + 0x1p-11 + 0x1p-40) == 0x3C01);
  CHECK(nearest_word(DType::f16, 65519.999999) == 0x7BFF);
  CHECK(nearest_word(DType::f16, 65520.0) == 0x7C00);
  CHECK(nearest_word(DType::bf16, -0.0) == 0x8000);
  for (std::uint32_t word = 1; word < 0x7F80; word += 97) {  // halfway between neighbours, and a little off
    const double low = f32_from_bf16(static_cast<std::uint16_t>(word)),
                 high = f32_from_bf16(static_cast<std::uint16_t>(word + 1));
    if (!std::isfinite(high)) break;
    CHECK(nearest_word(DType::bf16, low + (high - low) * (0.5 - 0x1p-30)) == word);
    CHECK(nearest_word(DType::bf16, low + (high - low) * (0.5 + 0x1p-30)) == word + 1);
  }
}

TEST_CASE("check: a gate of battery L1 says up to how many rows") {
  CheckOptions options = reduced("golden");
  options.batteries = {Battery::L1};
  const CheckReport report = run_check(options);
  CHECK(gate_of(report, CheckStage::recurrent, Battery::L1, "batch sizes").note == "1 to 129 rows");
  CHECK(gate_of(report, CheckStage::gated_norm, Battery::L1, "batch sizes").note == "1 to 512 rows");
  CHECK(gate_of(report, CheckStage::rmsnorm, Battery::L1, "batch sizes").note == "1 to 64 rows");
  CHECK(check_text(report).find("norm of 2048 bf16, weight + 1; 1 to 64 rows\n") != std::string::npos);
}

TEST_CASE("check: errors are measured in units of the exact value's last place") {
  const std::uint16_t one = 0x3F80, above = 0x3F81;
  const auto bytes = [](const std::uint16_t& word) { return std::as_bytes(std::span(&word, 1)); };
  Accuracy accuracy;
  const double exact = 1 + 0x1p-10;
  accuracy.add(DType::bf16, bytes(one), std::span(&exact, 1));
  CHECK(accuracy.worst == 0.125);
  CHECK(accuracy.nearest == 1);
  accuracy.add(DType::bf16, bytes(above), std::span(&exact, 1));
  CHECK(accuracy.worst == 0.875);
  CHECK((accuracy.nearest == 1 && accuracy.compared == 2));
}

TEST_CASE("check: an unknown shape, and a backend that cannot be had") {
  CheckOptions options = reduced("golden");
  options.shape = "banana";
  CHECK_THROWS_WITH_AS(run_check(options), doctest::Contains("tp1, tp4 or small"), Error);
  options.backend = "gpu";
  CHECK_THROWS_AS(run_check(options), Error);
}
