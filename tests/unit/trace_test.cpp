// Traces written and read back: every optional feature, each element type, bits that a float conversion would lose, and a
// writer that never leaves half a file. What a reader refuses is in trace_refuse_test.cpp.
#include <gdnsim/error.hpp>
#include <gdnsim/trace.hpp>

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <doctest/doctest.h>

#include "support/skip.hpp"
#include "support/temp_dir.hpp"
#include "support/trace_data.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

void check_header(Trace& trace, const TraceData& data) {
  CHECK(trace.model() == data.header.model);
  CHECK(trace.steps() == data.header.steps);
  CHECK(trace.rows() == data.header.rows);
  CHECK(trace.provenance() == data.header.provenance);
  CHECK(trace.has_recording());
  for (int l = 0; l < trace.model().layers(); ++l) {
    CHECK(trace.params(l) == data.header.params[static_cast<std::size_t>(l)]);
    CHECK(trace.has_z(l));
    CHECK(trace.taps(l) == data.header.taps);
  }
  CHECK(std::vector<Event>(trace.events().begin(), trace.events().end()) == data.header.events);
}

void check_plans(Trace& trace, const TraceData& data) {
  for (const StepPlan& want : data.plans) {
    const StepPlan plan = trace.plan(want.step);
    CHECK(plan.path == want.path);
    CHECK(plan.index == want.index);
    CHECK(plan.block == want.block);
    CHECK(plan.sequence == want.sequence);
    CHECK(plan.present == want.present);
    CHECK(plan.launch_tokens == want.launch_tokens);
  }
}

void check_bulk(Trace& trace, const TraceData& data) {
  Bytes recurrent, conv;
  for (const auto& [key, rows] : data.taps) {
    const auto [tap, step, layer] = key;
    StepInputs inputs;
    const StepInputs& want = data.inputs[static_cast<std::size_t>(step)][static_cast<std::size_t>(layer)];
    trace.inputs(step, layer, inputs);
    CHECK((inputs.mixed_qkv == want.mixed_qkv && inputs.a == want.a && inputs.b == want.b && inputs.z == want.z));
    trace.read_tap(tap, step, layer, recurrent);
    CHECK(recurrent == rows);
  }
  for (std::size_t n = 0; n < data.loads.size(); ++n) {
    trace.load_row(static_cast<std::int32_t>(n), recurrent, conv);
    CHECK((recurrent == data.loads[n].first && conv == data.loads[n].second));
  }
  REQUIRE(trace.snapshots().size() == data.snapshots.size());
  for (const Snapshot& snapshot : trace.snapshots()) {
    trace.read_snapshot(snapshot, recurrent, conv);
    const auto at = static_cast<std::size_t>(snapshot.at);
    CHECK((recurrent == data.snapshots[at].first && conv == data.snapshots[at].second));
    CHECK(snapshot.block == data.header.snapshots[at].block);
  }
}

/// A trace without anything optional.
TraceData bare_trace() {
  TraceData data = random_trace(5, DType::bf16, DType::f32, DType::bf16);
  TraceHeader& header = data.header;
  header.has_z = header.has_path = false;
  header.taps = {};
  header.events.clear(), header.snapshots.clear(), header.provenance.clear();
  header.load_rows = 0;
  header.model.norm_eps.reset();
  for (LayerParams& params : header.params) params.conv_bias.clear(), params.norm_weight.clear();
  for (StepPlan& plan : data.plans) plan.path = Path::decode;
  for (auto& step : data.inputs)
    for (StepInputs& inputs : step) inputs.z.clear();
  data.loads.clear(), data.snapshots.clear(), data.taps.clear();
  return data;
}

}  // namespace

TEST_CASE("a trace with every optional feature comes back bit for bit, in each element type") {
  const TempDir dir;
  std::uint64_t seed = 1;
  for (const DType act : {DType::bf16, DType::f16, DType::f32})
    for (const DType state : {DType::f32, DType::bf16}) {
      CAPTURE(seed);
      const DType conv = state == DType::f32 ? DType::bf16 : DType::f32;
      const TraceData data = random_trace(seed++, act, state, conv);
      const std::string path = dir / "trace.h5";
      write_trace_data(path, data, true);
      const std::unique_ptr<Trace> trace = open_trace(path);
      check_header(*trace, data);
      check_plans(*trace, data);
      check_bulk(*trace, data);
    }
  CHECK(dir.count() == 1);
}

TEST_CASE("snapshots come sorted by step, layer, then file order") {
  const TempDir dir;
  write_trace_data(dir / "trace.h5", random_trace(1, DType::bf16, DType::f32, DType::bf16));
  const std::unique_ptr<Trace> trace = open_trace(dir / "trace.h5");
  std::vector<std::int64_t> at;
  for (const Snapshot& snapshot : trace->snapshots()) at.push_back(snapshot.at);
  CHECK(at == std::vector<std::int64_t>{1, 2, 0});
}

TEST_CASE("a trace without anything optional") {
  const TempDir dir;
  const TraceData data = bare_trace();
  write_trace_data(dir / "trace.h5", data);
  const std::unique_ptr<Trace> trace = open_trace(dir / "trace.h5");
  CHECK(trace->model() == data.header.model);
  CHECK_FALSE(trace->has_recording());
  CHECK_FALSE(trace->has_z(1));
  CHECK(trace->events().empty());
  CHECK(trace->snapshots().empty());
  CHECK(trace->provenance().empty());
  CHECK(trace->params(1) == data.header.params[1]);
  check_plans(*trace, data);
  StepInputs inputs;
  trace->inputs(3, 1, inputs);
  CHECK(inputs.z.empty());
  CHECK(inputs.mixed_qkv == data.inputs[3][1].mixed_qkv);
}

TEST_CASE("more layers than a default group keeps in its header") {
  const TempDir dir;
  TraceData data = bare_trace();
  Random random(3);
  data.header.model.layer_ids.clear(), data.header.params.clear();
  for (int l = 0; l < 40; ++l) {
    data.header.model.layer_ids.push_back(l * 2);
    data.header.params.push_back(random_params(random, data.header.model));
  }
  for (auto& step : data.inputs) step.resize(40, step[0]);
  write_trace_data(dir / "trace.h5", data);
  const std::unique_ptr<Trace> trace = open_trace(dir / "trace.h5");
  CHECK(trace->model() == data.header.model);
  CHECK(trace->params(39) == data.header.params[39]);
  CHECK_NOTHROW(read_everything(*trace));
}

TEST_CASE("the same calls write the same bytes") {
  const TempDir dir;
  for (const std::uint64_t seed : {1, 2, 3}) {
    const TraceData data = random_trace(seed, DType::bf16, DType::f32, DType::bf16);
    write_trace_data(dir / "a.h5", data, true);
    write_trace_data(dir / "b.h5", data, true);
    CHECK(file_bytes(dir / "a.h5") == file_bytes(dir / "b.h5"));
  }
}

TEST_CASE("the content digest names the inputs: each change shows, recorded outputs and provenance do not") {
  const TempDir dir;
  const TraceData data = random_trace(1, DType::bf16, DType::f32, DType::bf16);
  const auto digest = [&](const TraceData& changed) {
    write_trace_data(dir / "trace.h5", changed, true);
    const std::unique_ptr<Trace> trace = open_trace(dir / "trace.h5");
    CHECK(trace->source() == "trace:" + trace->content_digest());
    return trace->content_digest();
  };
  const std::string original = digest(data);
  CHECK(original.size() == 32);
  CHECK(digest(data) == original);
  const auto changed = [&](auto change) {
    TraceData other = data;
    change(other);
    return digest(other) != original;
  };
  CHECK(changed([](TraceData& d) { d.inputs[3][1].mixed_qkv.back() ^= std::byte{1}; }));
  CHECK(changed([](TraceData& d) { d.inputs[0][0].a[0] ^= std::byte{1}; }));
  CHECK(changed([](TraceData& d) { d.inputs[0][0].b[0] ^= std::byte{1}; }));
  CHECK(changed([](TraceData& d) { d.inputs[0][0].z[0] ^= std::byte{1}; }));
  CHECK(changed([](TraceData& d) { d.loads[1].first[3] ^= std::byte{1}; }));
  CHECK(changed([](TraceData& d) { d.loads[1].second[3] ^= std::byte{1}; }));
  CHECK(changed([](TraceData& d) { d.header.params[1].A_log[2] += 1; }));
  CHECK(changed([](TraceData& d) { d.header.params[1].dt_bias[0] = 0.0f; }));
  CHECK(changed([](TraceData& d) { d.header.params[0].conv_bias.clear(); }));
  CHECK(changed([](TraceData& d) { d.header.params[0].norm_weight[1] ^= std::byte{1}; }));
  CHECK(changed([](TraceData& d) { d.header.model.norm_eps = 1e-5f; }));
  CHECK(changed([](TraceData& d) { d.header.model.layer_ids[1] = 3; }));
  CHECK(changed([](TraceData& d) { d.header.events[3].source = 2; }));
  CHECK(changed([](TraceData& d) { d.plans[3].sequence[1] = 9; }));
  CHECK(changed([](TraceData& d) { d.plans[3].index[1] = 5; }));
  CHECK(changed([](TraceData& d) { d.plans[3].path = Path::mixed; }));
  CHECK(changed([](TraceData& d) { d.plans[1].present = 2; }));
  CHECK(changed([](TraceData& d) { d.plans[1].launch_tokens = 8; }));
  CHECK_FALSE(changed([](TraceData& d) { d.taps.begin()->second[0] ^= std::byte{1}; }));
  CHECK_FALSE(changed([](TraceData& d) { d.snapshots[0].first[0] ^= std::byte{1}; }));
  CHECK_FALSE(changed([](TraceData& d) { d.header.provenance[0].second = "another"; }));
}

TEST_CASE("an existing file is kept unless force is set") {
  const TempDir dir;
  const std::string path = dir / "trace.h5";
  const TraceData data = random_trace(1, DType::bf16, DType::f32, DType::bf16);
  write_file(path, "precious");
  CHECK_THROWS_WITH_AS(create_trace(path, data.header, false), doctest::Contains("already exists"), Error);
  {
    const std::unique_ptr<TraceWriter> writer = create_trace(path, data.header, true);
    CHECK(file_bytes(path) == "precious");
    write_contents(*writer, data);
  }  // never finished
  CHECK(file_bytes(path) == "precious");
  CHECK(dir.count() == 1);
  write_trace_data(path, data, true);
  CHECK_NOTHROW(open_trace(path));
  CHECK(dir.count() == 1);
}

TEST_CASE("a file that appears while the trace is written is not replaced without force") {
  const TempDir dir;
  const TraceData data = random_trace(1, DType::bf16, DType::f32, DType::bf16);
  {
    const std::unique_ptr<TraceWriter> writer = create_trace(dir / "trace.h5", data.header, false);
    write_contents(*writer, data);
    write_file(dir / "trace.h5", "precious");
    CHECK_THROWS_AS(writer->finish(), Error);
  }
  CHECK(file_bytes(dir / "trace.h5") == "precious");
  CHECK(dir.count() == 1);
}

TEST_CASE("finish refuses a trace with holes") {
  const TempDir dir;
  const TraceData data = random_trace(1, DType::bf16, DType::f32, DType::bf16);
  const std::string path = dir / "trace.h5";
  const auto hole = [&](auto skip) {
    TraceData part = data;
    skip(part);
    const std::unique_ptr<TraceWriter> writer = create_trace(path, data.header, false);
    write_contents(*writer, part);
    CHECK_THROWS_WITH_AS(writer->finish(), doctest::Contains("was never written"), Error);
  };
  hole([](TraceData& d) { d.plans.pop_back(); });
  hole([](TraceData& d) { d.taps.erase(d.taps.begin()); });
  hole([](TraceData& d) { d.snapshots.pop_back(); });
  hole([](TraceData& d) { d.loads.pop_back(); });
  CHECK(dir.count() == 0);
}

TEST_CASE("the writer refuses what the reader would refuse") {
  const TempDir dir;
  const TraceData data = random_trace(1, DType::bf16, DType::f32, DType::bf16);
  const auto refused = [&](const char* message, auto change) {
    TraceHeader header = data.header;
    change(header);
    CHECK_THROWS_WITH_AS(create_trace(dir / "trace.h5", header, false), doctest::Contains(message), Error);
  };
  refused("/params/1/A_log[2]: expected a number, found NaN", [](TraceHeader& h) { h.params[1].A_log[2] = NAN; });
  refused("/params: expected 2 layers, found 1", [](TraceHeader& h) { h.params.pop_back(); });
  refused("/params/0/conv_weight: expected 256 bytes, found 3",
          [](TraceHeader& h) { h.params[0].conv_weight.resize(3); });
  refused("num_v_heads", [](TraceHeader& h) { h.model.HV = 3; });
  refused("events/block[0]", [](TraceHeader& h) { h.events[0].block = 99; });
  refused("/recorded/state/step[2]: expected 0..3, found 4", [](TraceHeader& h) { h.snapshots[2].step = 4; });
  refused("expected no tap state", [](TraceHeader& h) { h.taps.add(Tap::state); });
  const std::unique_ptr<TraceWriter> writer = create_trace(dir / "trace.h5", data.header, false);
  StepPlan plan = data.plans[0];
  plan.index[1] = 1;
  CHECK_THROWS_WITH_AS(writer->write_plan(plan), doctest::Contains("both name block 1"), Error);
  StepInputs inputs = data.inputs[0][0];
  inputs.a.pop_back();
  CHECK_THROWS_WITH_AS(writer->write_inputs(0, 0, inputs), doctest::Contains("/steps/0/a: expected 24 bytes, found 23"),
                       Error);
  CHECK_THROWS_AS(writer->write_inputs(4, 0, data.inputs[0][0]), Error);
}

TEST_CASE("a target that cannot be written is an error, and nothing is left behind") {
  const TempDir dir;
  const TraceData data = random_trace(1, DType::bf16, DType::f32, DType::bf16);
  CHECK_THROWS_WITH_AS(create_trace(dir / "no/such/trace.h5", data.header, false),
                       doctest::Contains("cannot be created"), Error);
  CHECK(dir.count() == 0);
}

TEST_CASE("when the disk ends, wherever it ends, the writer throws and leaves nothing") {
  const TempDir dir;
  const std::string path = dir / "trace.h5";
  const TraceData data = random_trace(1, DType::bf16, DType::f32, DType::bf16);
  write_trace_data(path, data);
  const std::string whole = file_bytes(path);
  std::filesystem::remove(path);
  struct rlimit before {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  std::size_t refused = 0, tried = 0;
  for (std::size_t limit = 0; limit < whole.size(); limit += 1 + whole.size() / 60) {
    const struct rlimit small { limit, before.rlim_max };
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    bool threw = false;
    try {
      write_trace_data(path, data);
    } catch (const Error&) {
      threw = true;
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    ++tried;
    refused += threw ? 1 : 0;
    CHECK(dir.count() == 0);
  }
  std::signal(SIGXFSZ, previous);
  CHECK(refused == tried);
  write_trace_data(path, data);  // and the library still works
  CHECK(file_bytes(path) == whole);
}

TEST_CASE("recorded traces open and read whole") {
  const char* extra = std::getenv("GDNSIM_EXTRA_DATA");
  if (extra == nullptr) GDNSIM_SKIP("GDNSIM_EXTRA_DATA is not set");
  std::size_t opened = 0;
  for (const char* name : {"traces", "faults"}) {
    const std::filesystem::path folder = std::filesystem::path(extra) / name;
    if (!std::filesystem::is_directory(folder)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".h5") continue;
      CAPTURE(entry.path().string());
      const std::unique_ptr<Trace> trace = open_trace(entry.path().string());
      CHECK(trace->has_recording());
      CHECK_NOTHROW(read_everything(*trace));
      ++opened;
    }
  }
  CHECK(opened > 0);
}
