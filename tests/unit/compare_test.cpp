// Comparing words: distances, classes, counts, the first divergence in execution order, and whether its inputs matched.
#include <doctest/doctest.h>

#include <gdnsim/compare.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

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
  CHECK(classify(DType::f32, word(1.0f), word(std::nextafter(1.0f, 2.0f))) == DiffClass::rounding);
  CHECK(classify(DType::f32, word(1.0f), word(1.5f)) == DiffClass::value);
  CHECK(classify(DType::f32, word(1.0f), word(-1.0f)) == DiffClass::value);
  CHECK(classify(DType::f32, word(0.0f), word(-0.0f)) == DiffClass::signed_zero);
  CHECK(classify(DType::f32, 0x7FC00000, 0x7FFFFFFF) == DiffClass::nan_payload);
  CHECK(classify(DType::bf16, 0x7FC0, 0x3F80) == DiffClass::nan);
  CHECK(classify(DType::bf16, 0x7F80, 0x3F80) == DiffClass::inf);
  CHECK(classify(DType::f16, 0x7C00, 0x7BFF) == DiffClass::inf);
}

TEST_CASE("compare: rounding ends where the upper half of the digits parts, or where cancellation cannot explain it") {
  CHECK(classify(DType::f32, word(1.0f), word(1.0f) + 4096) == DiffClass::rounding);
  CHECK(classify(DType::f32, word(1.0f), word(1.0f) + 4097) == DiffClass::value);
  CHECK(classify(DType::bf16, 0x3F80, 0x3F90) == DiffClass::rounding);
  CHECK(classify(DType::bf16, 0x3F80, 0x3F91) == DiffClass::value);
  CHECK(classify(DType::f16, 0x3C00, 0x3C20) == DiffClass::rounding);
  CHECK(classify(DType::f16, 0x3C00, 0x3C21) == DiffClass::value);
  // Beside values of size 1, sums may end up at 1e-6 and -1e-6; beside values of size 0.01 they may not.
  CHECK(classify(DType::f32, word(1e-6f), word(-1e-6f), 1) == DiffClass::rounding);
  CHECK(classify(DType::f32, word(1e-6f), word(-1e-6f), 0.01) == DiffClass::value);
  CHECK(classify(DType::f32, word(1e-30f), word(-1e-30f)) == DiffClass::value);
  CHECK(classify(DType::f32, word(0.5f), word(-0.5f), 1) == DiffClass::value);
}

TEST_CASE("compare: a class of one word does not depend on the side it is on") {
  for (const auto& [a, b] : {std::pair{word(1.0f), word(2.0f)},
                             {word(0.0f), word(-0.0f)},
                             {0x7FC00000u, word(1.0f)},
                             {0x7F800000u, word(3.0f)},
                             {0x7FFFFFFFu, 0x7FC00000u}})
    CHECK(classify(DType::f32, a, b) == classify(DType::f32, b, a));
}

namespace {

/// One row of a tap of zeros but for one word, against zeros with another.
DiffClass kind_in(Tap tap, std::uint32_t got, std::uint32_t want) {
  const Model model = tiny_model();
  const TapShape shape = shape_of(tap, model);
  Bytes ours(shape.bytes()), theirs(shape.bytes());
  std::memcpy(ours.data(), &got, size_of(shape.type)), std::memcpy(theirs.data(), &want, size_of(shape.type));
  TapCount count;
  const WordRun run = compare_words(tap, shape, ours, theirs, count);
  CHECK(count.classes[static_cast<std::size_t>(run.kind)] == 1);
  return run.kind;
}

}  // namespace

TEST_CASE("compare: poison is a NaN that arithmetic does not make, where arithmetic made the value") {
  CHECK(kind_in(Tap::u, 0x7FC00000, word(1.0f)) == DiffClass::poison);
  CHECK(kind_in(Tap::u, word(1.0f), 0xFFFFFFFF) == DiffClass::poison);
  CHECK(kind_in(Tap::u, 0x7FFFFFFF, word(1.0f)) == DiffClass::nan);
  CHECK(kind_in(Tap::state, 0x7FFFFFFF, 0x7FC00001) == DiffClass::poison);
  CHECK(kind_in(Tap::core_out, 0x7FC0, 0x3F80) == DiffClass::poison);
  CHECK(kind_in(Tap::core_out, 0x7FFF, 0x3F80) == DiffClass::nan);
  CHECK(kind_in(Tap::conv_state, 0x7FC0, 0x3F80) == DiffClass::nan);  // copied from the inputs
  CHECK(kind_in(Tap::conv_state, 0x7FC0, 0x7FFF) == DiffClass::nan_payload);
  CHECK(kind_in(Tap::k, 0x7FC00000, word(1.0f)) == DiffClass::nan);  // without a norm a copy
}

TEST_CASE("compare: histogram and classes of a tap") {
  Model model = tiny_model();
  model.V = 4;
  const TapShape shape = shape_of(Tap::u, model);  // f32, 2 heads of 4
  std::vector<std::uint32_t> want(8, word(1.0f)), got = want;
  got[0] += 1, got[1] += 3, got[2] += 4, got[4] = word(-1.0f), got[5] = 0x7FFFFFFF;
  TapCount count;
  const WordRun run =
      compare_words(Tap::u, shape, std::as_bytes(std::span(got)), std::as_bytes(std::span(want)), count);
  CHECK(run.first == 0);
  CHECK(run.differing == 5);
  CHECK(run.compared == 8);
  CHECK(count.ulps[0] == 1);   // 1
  CHECK(count.ulps[1] == 1);   // 2-3
  CHECK(count.ulps[2] == 1);   // 4-7
  CHECK(count.ulps[30] == 1);  // 2 * 0x3F800000 + 1
  CHECK(count.max_ulp == 2u * 0x3F800000u + 1);
  CHECK(count.classes[static_cast<std::size_t>(DiffClass::rounding)] == 3);
  CHECK(count.classes[static_cast<std::size_t>(DiffClass::value)] == 1);
  CHECK(count.classes[static_cast<std::size_t>(DiffClass::nan)] == 1);
  TapCount both = count;
  both.add(count);
  CHECK(both.ulps[30] == 2);
  CHECK(both.classes[static_cast<std::size_t>(DiffClass::rounding)] == 6);
}

TEST_CASE("compare: the widest distance has a bucket") {
  TapCount count;
  const std::uint32_t got = 0xFF800000, want = 0x7F800000;
  compare_words(Tap::beta, {DType::f32, 1, 1}, std::as_bytes(std::span(&got, 1)), std::as_bytes(std::span(&want, 1)),
                count);
  CHECK(count.ulps[31] == 1);
}

TEST_CASE("compare: cells hold what each step compared and found, and merge when there are many") {
  CellRow row(1, 7);
  WordRun run;
  run.compared = 10;
  for (std::int64_t step = 3; step < 3 + CellRow::kMaxCells; ++step) {
    run.differing = step == 5 ? 2 : 0, run.max_ulp = step == 5 ? 9 : 0;
    row.add(step, Tap::core_out, run);
  }
  REQUIRE(row.cells().size() == static_cast<std::size_t>(CellRow::kMaxCells));
  CHECK(row.first_step() == 3);
  CHECK(row.cells()[2].differing == 2);
  CHECK(row.cells()[2].max_ulp == 9);
  CHECK(row.cells()[2].taps[static_cast<std::size_t>(Tap::core_out)] == 2);
  run.differing = 4;
  row.add(3 + CellRow::kMaxCells, Tap::state, run);
  CHECK(row.steps_per_cell() == 2);
  CHECK(row.cells().size() == static_cast<std::size_t>(CellRow::kMaxCells / 2 + 1));
  CHECK(row.cells()[1].compared == 20);
  CHECK(row.cells()[1].differing == 2);
  CHECK(row.cells().back().differing == 4);
  std::uint64_t sum = 0;
  for (const Cell& cell : row.cells()) sum += cell.compared;
  CHECK(sum == 10u * (CellRow::kMaxCells + 1));
}

TEST_CASE("compare: cells of a layer add up, digests and snapshots included") {
  const Model model = tiny_model();
  LayerComparer comparer(model, 1, true);
  const StepPlan plan = plan_at(model, 4, {2});
  Bytes state(model.state_bytes()), conv(model.conv_bytes()), wrong = state;
  flip(wrong, 0);
  comparer.state(plan, 2, wrong, state, conv, conv);
  comparer.digest(plan, 0, 1, 5, 6);
  comparer.pool_digest(plan, 7, 7);
  REQUIRE(comparer.cells().cells().size() == 1);
  const Cell& cell = comparer.cells().cells()[0];
  CHECK(comparer.cells().first_step() == 4);
  CHECK(comparer.cells().layer_id() == 4);
  CHECK(cell.compared == static_cast<std::uint64_t>(model.state_elements() + model.conv_elements()) + 2);
  CHECK(cell.differing == 2);
  CHECK(cell.taps[static_cast<std::size_t>(Tap::state)] == 2);
}

TEST_CASE("compare: the words around the first, within its head") {
  Model model = tiny_model();
  model.V = 20;
  const TapShape shape = shape_of(Tap::u, model);
  const StepPlan plan = plan_at(model, 0, {2});
  Bytes want = rows_of(model, Tap::u, 1), got = want;
  for (const std::size_t element : {20u + 10u, 20u + 12u}) flip(got, 4 * element);
  LayerComparer comparer(model, 0, true);
  comparer.tap(Tap::u, plan, got, want);
  REQUIRE(comparer.first().has_value());
  const Divergence& first = *comparer.first();
  CHECK(first.head == 1);
  CHECK(first.element == 10);
  CHECK(first.near.from == 2);
  REQUIRE(first.near.got.size() == 17);
  CHECK(first.near.got[8] == 1);
  CHECK(first.near.got[10] == 1);
  CHECK(first.near.want[10] == 0);
  Bytes edge = want;
  flip(edge, 4 * 20);  // head 1, element 0
  LayerComparer other(model, 0, true);
  other.tap(Tap::u, plan, edge, want);
  CHECK(other.first()->near.from == 0);
  CHECK(other.first()->near.got.size() == 9);
  CHECK(shape.per_head == 20);
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
