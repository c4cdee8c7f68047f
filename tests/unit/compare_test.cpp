// Comparing words: distances, classes, counts, the first divergence in execution order, and whether its inputs matched.
#include <doctest/doctest.h>

#include <gdnsim/compare.hpp>

#include <bit>
#include <cmath>
#include <limits>

using namespace gdnsim;

namespace {

std::uint32_t word(float x) { return std::bit_cast<std::uint32_t>(x); }

Model tiny_model() {
  Model model;
  model.H = 1, model.HV = 2, model.K = 2, model.V = 2, model.W = 3;
  model.act_dtype = DType::bf16, model.conv_state_dtype = DType::bf16, model.state_dtype = DType::f32;
  model.num_blocks = 5;
  model.layer_ids = {0, 4};
  return model;
}

StepPlan plan_at(const Model& model, std::int64_t step, std::vector<std::int32_t> index) {
  std::vector<std::int64_t> sequence;
  for (std::int32_t each : index) sequence.push_back(each > 0 ? 100 + each : -1);
  return make_plan(model, step, Path::decode, index, sequence, static_cast<int>(index.size()), "test");
}

Bytes rows_of(const Model& model, Tap tap, int rows) {
  return Bytes(shape_of(tap, model).bytes() * static_cast<std::size_t>(rows));
}

void flip(Bytes& bytes, std::size_t byte, unsigned bits = 1) { bytes[byte] ^= static_cast<std::byte>(bits); }

}  // namespace

TEST_CASE("compare: ULP distances cross zero one by one and stop at NaN") {
  const float denormal = std::numeric_limits<float>::denorm_min();
  CHECK(ulp_distance(DType::f32, word(1.0f), word(std::nextafter(1.0f, 2.0f))) == 1);
  CHECK(ulp_distance(DType::f32, word(0.0f), word(-0.0f)) == 1);
  CHECK(ulp_distance(DType::f32, word(-denormal), word(denormal)) == 3);
  CHECK(ulp_distance(DType::f32, word(std::numeric_limits<float>::max()),
                     word(std::numeric_limits<float>::infinity())) == 1);
  CHECK(ulp_distance(DType::f32, word(-std::numeric_limits<float>::infinity()),
                     word(std::numeric_limits<float>::infinity())) == 2u * 0x7F800000u + 1);
  CHECK_FALSE(ulp_distance(DType::f32, 0x7FC00000, word(1.0f)).has_value());
  CHECK(ulp_distance(DType::bf16, 0x3F80, 0x3F81) == 1);
  CHECK(ulp_distance(DType::bf16, 0x8001, 0x0001) == 3);
  CHECK(ulp_distance(DType::f16, 0x3C00, 0x3BFF) == 1);
}

TEST_CASE("compare: classes") {
  CHECK(classify(DType::f32, word(1.0f), word(1.5f)) == DiffClass::rounding);
  CHECK(classify(DType::f32, word(0.0f), word(-0.0f)) == DiffClass::signed_zero);
  CHECK(classify(DType::f32, 0x7FC00000, 0x7FFFFFFF) == DiffClass::nan_payload);
  CHECK(classify(DType::bf16, 0x7FC0, 0x3F80) == DiffClass::nan);
  CHECK(classify(DType::bf16, 0x7F80, 0x3F80) == DiffClass::inf);
  CHECK(classify(DType::f16, 0x7C00, 0x7BFF) == DiffClass::inf);
}

TEST_CASE("compare: counts, and the place of the first difference") {
  const Model model = tiny_model();
  LayerComparer comparer(model, 1, false);
  const StepPlan plan = plan_at(model, 3, {2, 4});
  Bytes want = rows_of(model, Tap::core_out, 2), got = want;
  const std::size_t row = shape_of(Tap::core_out, model).bytes();
  flip(got, row + 2 * 3);     // row 1, head 1, element 1
  flip(got, row + 2 * 2, 2);  // row 1, head 1, element 0: before it
  comparer.tap(Tap::core_out, plan, got, want);
  const TapCount& count = comparer.counts()[static_cast<std::size_t>(Tap::core_out)];
  CHECK(count.compared == 8);
  CHECK(count.differing == 2);
  CHECK(count.max_ulp == 2);
  REQUIRE(comparer.first().has_value());
  const Divergence& first = *comparer.first();
  CHECK(first.step == 3);
  CHECK(first.layer == 1);
  CHECK(first.layer_id == 4);
  CHECK(first.row == 1);
  CHECK(first.sequence == 104);
  CHECK(first.block == 4);
  CHECK(first.head == 1);
  CHECK(first.element == 0);
  CHECK(first.got == 2);
  CHECK(first.want == 0);
  CHECK(first.ulp == 2);
}

TEST_CASE("compare: execution order, not the order of calls or of the alphabet") {
  Divergence conv, core, later;
  conv.step = core.step = 1, later.step = 2;
  conv.layer = core.layer = later.layer = 0;
  conv.tap = Tap::conv_out, core.tap = Tap::core_out, later.tap = Tap::conv_out;
  CHECK(precedes(conv, core));
  CHECK(precedes(core, later));
  CHECK_FALSE(precedes(later, conv));
  Divergence other_layer = conv;
  other_layer.layer = 1;
  CHECK(precedes(core, other_layer));
}

TEST_CASE("compare: inactive rows are compared where the model says what they hold") {
  Model model = tiny_model();
  const StepPlan plan = plan_at(model, 0, {2, 0});
  Bytes want = rows_of(model, Tap::core_out, 2), got = want;
  flip(got, shape_of(Tap::core_out, model).bytes());  // the inactive row
  LayerComparer strict(model, 0, false);
  strict.tap(Tap::core_out, plan, got, want);
  CHECK(strict.first().has_value());
  model.inactive_core_out = InactiveOut::unwritten;
  LayerComparer lenient(model, 0, false);
  lenient.tap(Tap::core_out, plan, got, want);
  CHECK_FALSE(lenient.first().has_value());
  CHECK(lenient.counts()[static_cast<std::size_t>(Tap::core_out)].not_compared == 4);
}

TEST_CASE("compare: inputs matched only where everything read was recorded") {
  const Model model = tiny_model();
  LayerComparer comparer(model, 0, false);
  Bytes conv = rows_of(model, Tap::conv_out, 1), core = rows_of(model, Tap::core_out, 1), wrong = core;
  flip(wrong, 0);
  const auto run_step = [&](std::int64_t step, const Bytes& got) {
    const StepPlan plan = plan_at(model, step, {2});
    comparer.tap(Tap::conv_out, plan, conv, conv);
    comparer.tap(Tap::core_out, plan, got, core);
    comparer.step_done(plan);
  };
  comparer.pin(2, 0);
  run_step(0, core);
  SUBCASE("the state was carried, so unknown") {
    run_step(1, wrong);
    CHECK(comparer.first()->inputs == InputsMatched::unknown);
    CHECK(comparer.first()->from_step == 0);
  }
  SUBCASE("the state was loaded just before, and conv_out agrees: equal") {
    comparer.pin(2, 1);
    run_step(1, wrong);
    CHECK(comparer.first()->inputs == InputsMatched::equal);
    CHECK(comparer.first()->from_step == 1);
  }
}

TEST_CASE("compare: a block of which nothing was recorded is unknown, unless the run was our own") {
  const Model model = tiny_model();
  const StepPlan plan = plan_at(model, 0, {2});
  Bytes conv = rows_of(model, Tap::conv_out, 1), wrong = conv;
  flip(wrong, 0);
  for (const bool from_zero : {false, true}) {
    LayerComparer comparer(model, 0, from_zero);
    comparer.tap(Tap::conv_out, plan, wrong, conv);
    CHECK(comparer.first()->inputs == (from_zero ? InputsMatched::equal : InputsMatched::unknown));
  }
}

TEST_CASE("compare: gates read no state, so their inputs match whatever the block holds") {
  const Model model = tiny_model();
  const StepPlan plan = plan_at(model, 0, {2});
  LayerComparer comparer(model, 0, false);
  Bytes g = rows_of(model, Tap::g, 1), wrong = g, u = rows_of(model, Tap::u, 1), wrong_u = u;
  flip(wrong, 0), flip(wrong_u, 0);
  comparer.tap(Tap::g, plan, wrong, g);
  comparer.tap(Tap::u, plan, wrong_u, u);
  CHECK(comparer.first_of(Tap::g)->inputs == InputsMatched::equal);
  CHECK(comparer.first_of(Tap::u)->inputs == InputsMatched::different);  // through decay and S.k
}

TEST_CASE("compare: an opaque step ends what was known of its rows' blocks") {
  const Model model = tiny_model();
  LayerComparer comparer(model, 0, false);
  comparer.pin(2, 0);
  const std::vector<std::int32_t> index{2};
  const std::vector<std::int64_t> sequence{102};
  comparer.step_done(make_plan(model, 0, Path::opaque, index, sequence, 1, "test"));
  Bytes conv = rows_of(model, Tap::conv_out, 1), wrong = conv;
  flip(wrong, 0);
  comparer.tap(Tap::conv_out, plan_at(model, 1, {2}), wrong, conv);
  CHECK(comparer.first()->inputs == InputsMatched::unknown);
}

TEST_CASE("compare: a later tap whose input differs already says so") {
  const Model model = tiny_model();
  LayerComparer comparer(model, 0, true);
  const StepPlan plan = plan_at(model, 0, {2});
  Bytes conv = rows_of(model, Tap::conv_out, 1), wrong_conv = conv, core = rows_of(model, Tap::core_out, 1),
        wrong_core = core;
  flip(wrong_conv, 0), flip(wrong_core, 0);
  comparer.tap(Tap::conv_out, plan, wrong_conv, conv);
  comparer.tap(Tap::core_out, plan, wrong_core, core);
  CHECK(comparer.first()->tap == Tap::conv_out);
  CHECK(comparer.first()->inputs == InputsMatched::equal);
  CHECK(comparer.first_of(Tap::core_out)->inputs == InputsMatched::different);
}

TEST_CASE("compare: a snapshot of a block that no row named has no row") {
  const Model model = tiny_model();
  LayerComparer comparer(model, 0, false);
  const StepPlan plan = plan_at(model, 0, {2});
  Bytes state(model.state_bytes()), conv(model.conv_bytes()), wrong = state;
  flip(wrong, 4 * 5);  // head 1, element 1
  CHECK(comparer.state(plan, 2, state, state, conv, conv));
  CHECK_FALSE(comparer.state(plan, 3, state, wrong, conv, conv));
  CHECK(comparer.first()->row == -1);
  CHECK(comparer.first()->block == 3);
  CHECK(comparer.first()->head == 1);
  CHECK(comparer.first()->element == 1);
}
