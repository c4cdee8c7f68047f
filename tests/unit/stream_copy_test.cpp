// A stream written out as a trace: what the writer is given, and that what is read back is the stream.
#include <gdnsim/error.hpp>
#include <gdnsim/recipe.hpp>
#include <gdnsim/trace.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <unistd.h>

#include <doctest/doctest.h>

using namespace gdnsim;

namespace {

Recipe small_recipe() {
  Recipe r;
  r.seed = 77;
  r.steps = 24;
  r.rows = 4;
  r.model.H = 2, r.model.HV = 4, r.model.K = 24, r.model.V = 20, r.model.W = 4, r.model.scale = 0.5f;
  r.model.norm_eps = 1e-6f;
  r.model.num_blocks = 9;
  r.model.layer_ids = {4, 1, 9};
  r.params.conv_bias = Draw{};
  r.schedule.length = Range{3, 12};
  r.schedule.preempt = 0.1;
  r.schedule.mixed = 0.5;
  return r;
}

/// Remembers what it was given.
struct FakeWriter : TraceWriter {
  std::vector<StepPlan> plans;
  std::vector<std::pair<std::int64_t, int>> inputs;
  std::vector<Bytes> x, states;
  void write_plan(const StepPlan& plan) override { plans.push_back(plan); }
  void write_inputs(std::int64_t step, int layer, const StepInputs& in) override {
    inputs.emplace_back(step, layer);
    x.push_back(in.mixed_qkv);
  }
  void write_load_row(std::int64_t source, std::span<const std::byte> recurrent, std::span<const std::byte>) override {
    REQUIRE(source == static_cast<std::int64_t>(states.size()));
    states.emplace_back(recurrent.begin(), recurrent.end());
  }
  void write_tap(Tap, std::int64_t, int, std::span<const std::byte>) override { FAIL("a stream has no taps"); }
  void write_snapshot(std::int64_t, std::span<const std::byte>, std::span<const std::byte>) override {
    FAIL("nor snapshots");
  }
  void finish() override { FAIL("that is the caller's"); }
};

}  // namespace

TEST_CASE("copying a stream hands every plan, input and load row to the writer") {
  const Recipe r = small_recipe();
  const auto stream = make_recipe_stream(r);
  const TraceHeader header = trace_header_of(*stream);
  CHECK(header.model == r.model);
  CHECK(header.params.size() == 3);
  CHECK(header.params[2] == stream->params(2));
  CHECK(header.steps == 24);
  CHECK(header.rows == 4);
  CHECK(header.has_z);
  CHECK(header.has_path);
  CHECK(header.taps.empty());
  CHECK(std::equal(header.events.begin(), header.events.end(), stream->events().begin(), stream->events().end()));
  FakeWriter writer;
  std::vector<std::int64_t> done;
  copy_stream(*stream, writer, [&](std::int64_t steps) { done.push_back(steps); });
  CHECK(writer.plans.size() == 24);
  CHECK(done.size() == 24);
  CHECK(done.back() == 24);
  CHECK(writer.inputs.size() == 72);
  CHECK(static_cast<std::int64_t>(writer.states.size()) == header.load_rows);
  CHECK(header.load_rows > 12);
  StepInputs in;
  for (std::size_t i = 0; i < writer.inputs.size(); ++i) {
    const auto [step, layer] = writer.inputs[i];
    CHECK(static_cast<std::size_t>(step * 3 + layer) == i);
    stream->inputs(step, layer, in);
    CHECK(in.mixed_qkv == writer.x[i]);
  }
}

namespace {

/// A folder of its own, removed at the end.
struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("gdnsim-stream-copy-" + std::to_string(static_cast<long>(getpid())));
  Folder() { std::filesystem::create_directory(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const char* name) const { return (path / name).string(); }
};

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void same_step(Stream& a, Stream& b, std::int64_t step) {
  const StepPlan p = a.plan(step), q = b.plan(step);
  CHECK(p.path == q.path);
  CHECK(p.index == q.index);
  CHECK(p.block == q.block);
  CHECK(p.sequence == q.sequence);
  CHECK(p.present == q.present);
  StepInputs x, y;
  for (int layer = 0; layer < a.model().layers(); ++layer) {
    a.inputs(step, layer, x);
    b.inputs(step, layer, y);
    CHECK(x.mixed_qkv == y.mixed_qkv);
    CHECK(x.a == y.a);
    CHECK(x.b == y.b);
    CHECK(x.z == y.z);
  }
}

void same_stream(Stream& a, Stream& b) {
  CHECK(a.model() == b.model());
  REQUIRE(a.steps() == b.steps());
  REQUIRE(a.rows() == b.rows());
  REQUIRE(std::equal(a.events().begin(), a.events().end(), b.events().begin(), b.events().end()));
  for (int layer = 0; layer < a.model().layers(); ++layer) {
    CHECK(a.params(layer) == b.params(layer));
    CHECK(a.has_z(layer) == b.has_z(layer));
  }
  for (std::int64_t step = 0; step < a.steps(); ++step) same_step(a, b, step);
  Bytes state_a, conv_a, state_b, conv_b;
  for (const Event& event : a.events()) {
    if (event.kind != EventKind::load) continue;
    a.load_row(event.source, state_a, conv_a);
    b.load_row(event.source, state_b, conv_b);
    CHECK(state_a == state_b);
    CHECK(conv_a == conv_b);
  }
}

}  // namespace

TEST_CASE("a recipe written as a trace reads back as the same stream, and twice as the same bytes") {
  const Folder folder;
  Recipe r = small_recipe();
  SUBCASE("everything") { r.schedule.stale_tail = true; }
  SUBCASE("special values keep their bits") {
    r.inputs.specials = {
        0.05, {SpecialRecipe::Kind::payload, SpecialRecipe::Kind::minus_zero, SpecialRecipe::Kind::denormal}};
  }
  SUBCASE("the least: no z, no bias, no norm, zero starts") {
    r.inputs.z.reset();
    r.params.conv_bias.reset();
    r.params.norm_weight.reset();
    r.model.norm_eps.reset();
    r.states.start = StateRecipe::Start::zero;
    r.schedule = {};
  }
  SUBCASE("other types and sentinel") {
    r.model.state_dtype = DType::bf16, r.model.conv_state_dtype = DType::f32, r.model.act_dtype = DType::f16;
    r.model.sentinel = Sentinel::minus_one;
  }
  const auto stream = make_recipe_stream(r);
  write_trace(*stream, folder.file("a.h5"), false);
  write_trace(*make_recipe_stream(r), folder.file("b.h5"), false);
  const auto trace = open_trace(folder.file("a.h5"));
  CHECK_FALSE(trace->has_recording());
  same_stream(*stream, *trace);
  CHECK(contents(folder.file("a.h5")) == contents(folder.file("b.h5")));
  CHECK_THROWS_AS(write_trace(*stream, folder.file("a.h5"), false), Error);
  CHECK_NOTHROW(write_trace(*stream, folder.file("a.h5"), true, {{"note", "synthetic"}}));
}
