// Captured streams: which sequences, which bytes at which step, the recorded outputs again, and what fresh tokens are like.
#include <gdnsim/captured_stream.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#include <doctest/doctest.h>

#include <gdnsim/arith.hpp>
#include <gdnsim/error.hpp>
#include <gdnsim/recipe.hpp>
#include <gdnsim/simulator.hpp>
#include <gdnsim/trace.hpp>

using namespace gdnsim;

namespace {

/// Five sequences of 3, 7, 5, 7 and 2 tokens on three rows; sequence 10's block is zeroed, the others' are loaded.
Recipe short_recipe() {
  Recipe recipe;
  recipe.seed = 5, recipe.steps = 11, recipe.rows = 3;
  recipe.model.H = 1, recipe.model.HV = 2, recipe.model.K = 4, recipe.model.V = 3, recipe.model.W = 3;
  recipe.model.scale = 0.5f, recipe.model.num_blocks = 9, recipe.model.norm_eps = 1e-6f;
  recipe.model.layer_ids = {2, 6};
  Script script;
  for (std::int32_t step = 0; step < 11; ++step) {
    ScriptStep& at = script.steps.emplace_back();
    const auto row = [&](bool on, std::int32_t block, std::int64_t sequence) {
      at.index.push_back(on ? block : 0), at.sequence.push_back(on ? sequence : -1);
    };
    row(step < 3 || (step > 3 && step < 9), step < 3 ? 4 : 5, step < 3 ? 10 : 12);
    row(step < 7 || step > 8, step < 7 ? 7 : 3, step < 7 ? 11 : 14);
    row(step > 3, 8, 13);
  }
  const auto starts = [&](std::int32_t step, std::int32_t block, EventKind kind, std::int64_t sequence) {
    script.events.push_back({{step, -1, block, kind, -1, sequence, EventWhy::start}, 0});
  };
  starts(0, 4, EventKind::zero, 10), starts(0, 7, EventKind::load, 11), starts(4, 5, EventKind::load, 12);
  starts(4, 8, EventKind::load, 13), starts(9, 3, EventKind::load, 14);
  recipe.script = script;
  return recipe;
}

std::shared_ptr<const Captured> captured_recipe(const CaptureOptions& options = {}) {
  return capture(*make_recipe_stream(short_recipe()), options, "r.json");
}

Bytes row_of(const Bytes& bytes, int row, int rows) {
  const auto size = static_cast<std::ptrdiff_t>(bytes.size()) / rows;
  return Bytes(bytes.begin() + row * size, bytes.begin() + (row + 1) * size);
}

/// All inputs of one row, one after another.
Bytes line_of(Stream& stream, std::int64_t step, int layer, int row) {
  StepInputs inputs;
  stream.inputs(step, layer, inputs);
  Bytes line;
  for (const Bytes* bytes : {&inputs.mixed_qkv, &inputs.a, &inputs.b, &inputs.z}) {
    const Bytes part = row_of(*bytes, row, stream.rows());
    line.insert(line.end(), part.begin(), part.end());
  }
  return line;
}

std::vector<float> values_of(const Bytes& line) {
  std::vector<float> values(line.size() / 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t word;
    std::memcpy(&word, line.data() + 2 * i, 2);
    values[i] = f32_from_bf16(word);
  }
  return values;
}

std::string traces() { return std::getenv("GDNSIM_TRACES") ? std::getenv("GDNSIM_TRACES") : "traces"; }

}  // namespace

TEST_CASE("the longest sequences become rows, the earlier first, and loop") {
  const auto whole = make_recipe_stream(short_recipe());
  const auto stream = make_captured_stream(captured_recipe(), Extend::loop, 20, 0);
  REQUIRE(stream->rows() == 3);
  CHECK(stream->steps() == 20);
  CHECK(stream->model().num_blocks == 4);
  const struct {
    int row, length;
    std::int64_t first;
  } source[] = {{1, 7, 0}, {2, 7, 4}, {0, 5, 4}};  // sequences 11, 13, 12
  for (std::int64_t step = 0; step < 20; ++step) {
    const StepPlan plan = stream->plan(step);
    CHECK(plan.block == std::vector<std::int32_t>{1, 2, 3});
    for (int layer = 0; layer < 2; ++layer)
      for (int row = 0; row < 3; ++row) {
        const auto& from = source[row];
        CHECK(line_of(*stream, step, layer, row) == line_of(*whole, from.first + step % from.length, layer, from.row));
      }
  }
}

TEST_CASE("a seed turns each loop, and only turns it") {
  const auto plain = make_captured_stream(captured_recipe(), Extend::loop, 14, 0);
  bool turned = false, apart = false;
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    const auto stream = make_captured_stream(captured_recipe(), Extend::loop, 14, seed);
    std::vector<std::int64_t> by;
    for (int row = 0; row < 2; ++row) {  // both of 7 tokens
      std::int64_t offset = 0;
      while (offset < 7 && line_of(*stream, 0, 1, row) != line_of(*plain, offset, 1, row)) ++offset;
      REQUIRE(offset < 7);
      for (std::int64_t step = 0; step < 14; ++step)
        CHECK(line_of(*stream, step, 1, row) == line_of(*plain, (step + offset) % 7, 1, row));
      by.push_back(offset);
    }
    turned |= by[0] != 0, apart |= by[0] != by[1];
  }
  CHECK(turned);
  CHECK(apart);
}

TEST_CASE("blocks start with what the recording loaded, or zeros") {
  const auto whole = make_recipe_stream(short_recipe());
  const auto stream = make_captured_stream(captured_recipe({{}, 5}), Extend::loop, 4, 3);
  Bytes recurrent, conv, want_recurrent, want_conv;
  std::vector<int> loaded(5);
  const std::int32_t recorded[] = {7, 8, 5, 4, 3};  // blocks of sequences 11, 13, 12, 10, 14
  for (const Event& event : stream->events()) {
    CHECK(event.step == 0);
    REQUIRE(event.block >= 1);
    const std::int32_t block = recorded[event.block - 1];
    if (block == 4) {
      CHECK(event.kind == EventKind::zero);
      continue;
    }
    REQUIRE(event.kind == EventKind::load);
    stream->load_row(event.source, recurrent, conv);
    for (const Event& theirs : whole->events()) {
      if (theirs.block != block || theirs.kind != EventKind::load || theirs.layer != event.layer) continue;
      whole->load_row(theirs.source, want_recurrent, want_conv);
      CHECK(recurrent == want_recurrent);
      CHECK(conv == want_conv);
      ++loaded[static_cast<std::size_t>(event.block - 1)];
    }
  }
  CHECK(loaded == std::vector<int>{2, 2, 2, 0, 2});  // both layers
}

TEST_CASE("one layer alone: its inputs and its loads") {
  const auto both = make_captured_stream(captured_recipe(), Extend::loop, 4, 1);
  const auto one = make_captured_stream(captured_recipe({{1}, 2}), Extend::loop, 4, 1);
  REQUIRE(one->rows() == 2);
  CHECK(one->events().size() == 2);
  for (const Event& event : one->events()) CHECK(event.layer == 1);
  for (int row = 0; row < 2; ++row) CHECK(line_of(*one, 3, 1, row) == line_of(*both, 3, 1, row));
  CHECK(one->params(0) == both->params(0));
}

TEST_CASE("fresh tokens follow the recorded ones and have their statistics") {
  const std::int64_t steps = 3000;
  const auto captured = captured_recipe();
  const auto loop = make_captured_stream(captured, Extend::loop, 7, 0);
  const auto stream = make_captured_stream(captured, Extend::fresh, steps, 9);
  for (std::int64_t step = 0; step < 7; ++step)
    for (int row = 0; row < 2; ++row) CHECK(line_of(*stream, step, 0, row) == line_of(*loop, step, 0, row));
  // The captured values, and those that follow.
  const std::size_t elements = values_of(line_of(*loop, 0, 0, 0)).size();
  std::vector<double> mean(elements), square(elements), sum(elements), sum_of_squares(elements);
  const int lengths[] = {7, 7, 5};
  for (int row = 0; row < 3; ++row)
    for (std::int64_t step = 0; step < lengths[row]; ++step) {
      const auto values = values_of(line_of(*loop, step, 0, row));
      for (std::size_t e = 0; e < elements; ++e) mean[e] += values[e] / 19.0, square[e] += values[e] * values[e] / 19.0;
    }
  for (std::int64_t step = 7; step < steps; ++step)
    for (int row = 0; row < 3; ++row) {
      const auto values = values_of(line_of(*stream, step, 0, row));
      for (std::size_t e = 0; e < elements; ++e) sum[e] += values[e], sum_of_squares[e] += values[e] * values[e];
    }
  const double count = 3 * (steps - 7);
  for (std::size_t e = 0; e < elements; ++e) {
    const double deviation = std::sqrt(square[e] - mean[e] * mean[e]), found = sum[e] / count;
    CHECK(std::fabs(found - mean[e]) < 5 * deviation / std::sqrt(count) + 1e-3 * std::fabs(mean[e]));
    CHECK(std::sqrt(sum_of_squares[e] / count - found * found) == doctest::Approx(deviation).epsilon(0.05));
  }
}

TEST_CASE("fresh tokens are the same everywhere, of their own for each row, layer, step and seed") {
  const auto captured = captured_recipe();
  const auto stream = make_captured_stream(captured, Extend::fresh, 20, 9);
  const auto again = make_captured_stream(captured, Extend::fresh, 20, 9);
  const auto other = make_captured_stream(captured, Extend::fresh, 20, 10);
  const Bytes line = line_of(*stream, 12, 0, 0);
  CHECK(line == line_of(*again, 12, 0, 0));
  CHECK(line != line_of(*other, 12, 0, 0));
  CHECK(line != line_of(*stream, 13, 0, 0));
  CHECK(line != line_of(*stream, 12, 0, 1));
  CHECK(line != line_of(*stream, 12, 1, 0));
  std::uint16_t words[4];
  std::memcpy(words, line.data(), sizeof words);
  const std::uint16_t frozen[] = {16323, 16001, 49038, 16171};
  for (int i = 0; i < 4; ++i) CHECK(words[i] == frozen[i]);
}

TEST_CASE("a captured recording gives its recorded outputs again, then goes on") {
  const auto trace = open_trace(traces() + "/h200_k64_3layers.h5");
  const auto stream = make_captured_stream(capture(*trace, {{1}, 1}, "t.h5"), Extend::loop, 30, 0);
  // Its longest sequence is number 2, of 13 tokens.
  std::vector<std::pair<std::int64_t, int>> recorded;
  for (std::int64_t step = 0; step < trace->steps(); ++step)
    for (int row = 0; row < trace->rows(); ++row)
      if (trace->plan(step).sequence[static_cast<std::size_t>(row)] == 2) recorded.emplace_back(step, row);
  REQUIRE(recorded.size() == 13);

  struct Compare final : Observer {
    Trace& trace;
    const std::vector<std::pair<std::int64_t, int>>& recorded;
    int equal = 0, steps = 0;
    Compare(Trace& t, const std::vector<std::pair<std::int64_t, int>>& r) : trace(t), recorded(r) {}
    bool looks_at(const ComingStep&, std::vector<Look>&) override { return true; }
    void after(const StepView& view) override {
      const auto at = static_cast<std::size_t>(view.step);
      if (++steps; at >= recorded.size()) return;
      Bytes want;
      trace.read_tap(Tap::norm_out, recorded[at].first, view.layer, want);
      equal += view.outputs[Tap::norm_out] == row_of(want, recorded[at].second, trace.rows());
    }
  } compare(*trace, recorded);
  const auto backend = make_golden({});
  const ContractSet contracts = contract_set("triton-sm90");
  const auto pool = backend->make_pool(stream->model(), {1});
  simulate({*stream, *backend, contracts, {1}, 30}, *pool, compare);
  CHECK(compare.equal == 13);
  CHECK(compare.steps == 30);
}

TEST_CASE("what cannot be captured is refused") {
  const auto stream = make_recipe_stream(short_recipe());
  CHECK_THROWS_WITH_AS(capture(*stream, {{}, 6}, "r.json"), "r.json: expected 6 sequences, found 5", Error);
  Recipe launches = short_recipe();
  launches.script.reset();
  launches.schedule.speculative.drafts = 1;
  launches.schedule.allocator = Allocation::lifo;
  launches.model.num_blocks = 40;
  CHECK_THROWS_WITH_AS(capture(*make_recipe_stream(launches), {}, "r.json"),
                       doctest::Contains("launch of several tokens"), Error);
  CHECK_THROWS_WITH_AS(make_captured_stream(captured_recipe(), Extend::loop, 0, 0),
                       doctest::Contains("at least 1 step"), Error);
}
