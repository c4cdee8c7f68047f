// Traces of version 2: launches, moving rows, accept counts, whose blocks are; the layouts of engines, each read as the same
// canonical stream; and what is refused, field by field.
#include <doctest/doctest.h>

#include <algorithm>

#include "support/trace_builder.hpp"
#include "trace/digest.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

/// Sequence 5 decodes a token on block 1, verifies two on blocks 2 and 3, and goes on from the accepted first one.
TraceData launch_trace() {
  TraceData data = random_trace(9, DType::bf16, DType::f32, DType::bf16);
  TraceHeader& header = data.header;
  header.has_drafts = header.has_source = header.has_accepted = true;
  header.model.block_stride = 100, header.model.index_bits = 32;
  header.snapshots.clear(), data.snapshots.clear();
  header.events = {{0, -1, 1, EventKind::allocate, -1, 5, EventWhy::start},
                   {0, -1, 2, EventKind::allocate, -1, 5, EventWhy::start},
                   {0, -1, 3, EventKind::allocate, -1, 5, EventWhy::start},
                   {0, -1, 1, EventKind::load, 0, 5, EventWhy::resume},
                   {0, 1, 2, EventKind::load, 1, 5, EventWhy::none}};
  const std::vector<std::int64_t> sequence = {5, -1, -1};
  const std::vector<std::int32_t> index[] = {{1, 0, 0}, {2, 0, 0}, {3, 0, 0}, {1, 0, 0}},
                                  source[] = {{}, {1, -1, -1}, {2, -1, -1}, {2, -1, -1}},
                                  accepted[] = {{}, {1, 0, 0}, {}, {1, 0, 0}};
  const bool last[] = {true, false, true, true};
  data.plans.clear();
  for (std::int64_t t = 0; t < 4; ++t)
    data.plans.push_back(make_plan(header.model, t, t == 1 || t == 2 ? Path::mixed : Path::decode, index[t], sequence,
                                   3, "test", {t == 2 ? 1 : 0, last[t], source[t], accepted[t]}));
  return data;
}

/// The builder's trace as version 2 with random bulk data.
class Version2 : public Builder {
 public:
  Version2() {
    integer("@version", 2);
    without(*this, "recorded/0");
    Random random(3);
    words("steps/0/mixed_qkv", Type::bf16, {2, 2, 10}, random.bytes(80));
    words("steps/0/z", Type::bf16, {2, 2, 6}, random.bytes(48));
    words("steps/0/a", Type::bf16, {2, 2, 2}, random.bytes(16));
    words("steps/0/b", Type::bf16, {2, 2, 2}, random.bytes(16));
  }
  void words(const std::string& name, Type type, const Dims& dims, const Bytes& bytes) {
    data[name] = bytes;
    parts[name] = [=](Group& g, const std::string& n) {
      h5::Dataset set = g.create_dataset(n, type, dims);
      set.write_all(bytes);
      set.close();
    };
  }
  std::map<std::string, Bytes> data;
};

/// As `refused`, of a version-2 trace.
void refused2(const std::string& line, const std::function<void(Version2&)>& change) {
  const TempDir dir;
  Version2 builder;
  change(builder);
  builder.write(dir / "t.h5");
  CHECK_THROWS_WITH_AS(open_trace(dir / "t.h5"), (dir / "t.h5: " + line).c_str(), Error);
}

struct Seen {
  std::vector<StepInputs> inputs;
  std::vector<Bytes> states;
  std::string digest;
};

Seen all_of(const Builder& builder) {
  const TempDir dir;
  builder.write(dir / "t.h5");
  const auto trace = open_trace(dir / "t.h5");
  Seen seen;
  for (std::int64_t step = 0; step < trace->steps(); ++step)
    for (int layer = 0; layer < trace->model().layers(); ++layer) {
      seen.inputs.emplace_back();
      trace->inputs(step, layer, seen.inputs.back());
    }
  Bytes recurrent, conv;
  for (const Event& event : trace->events())
    if (event.kind == EventKind::load) {
      trace->load_row(event.source, recurrent, conv);
      seen.states.push_back(conv);
    }
  for (const Snapshot& snapshot : trace->snapshots()) {
    trace->read_snapshot(snapshot, recurrent, conv);
    seen.states.push_back(conv);
  }
  seen.digest = trace->content_digest();
  return seen;
}

void check_same(const Builder& a, const Builder& b) {
  const Seen x = all_of(a), y = all_of(b);
  REQUIRE(x.inputs.size() == y.inputs.size());
  for (std::size_t i = 0; i < x.inputs.size(); ++i) {
    CHECK(x.inputs[i].mixed_qkv == y.inputs[i].mixed_qkv);
    CHECK((x.inputs[i].a == y.inputs[i].a && x.inputs[i].b == y.inputs[i].b && x.inputs[i].z == y.inputs[i].z));
  }
  CHECK(x.states == y.states);
  CHECK(x.digest == y.digest);
}

/// Two-byte words of each row, put in another order: out[i] = in[order[i]].
Bytes reordered(const Bytes& in, const std::vector<std::size_t>& order, std::size_t row_words) {
  Bytes out;
  for (std::size_t row = 0; row < in.size() / (2 * row_words); ++row)
    for (std::size_t word : order)
      for (std::size_t byte = 0; byte < 2; ++byte) out.push_back(in[(row * row_words + word) * 2 + byte]);
  return out;
}

/// Rows of a and of b side by side.
Bytes beside(const Bytes& a, const Bytes& b, std::size_t a_bytes, std::size_t b_bytes) {
  Bytes out;
  for (std::size_t row = 0; row * a_bytes < a.size(); ++row) {
    out.insert(out.end(), a.begin() + static_cast<std::ptrdiff_t>(row * a_bytes),
               a.begin() + static_cast<std::ptrdiff_t>((row + 1) * a_bytes));
    out.insert(out.end(), b.begin() + static_cast<std::ptrdiff_t>(row * b_bytes),
               b.begin() + static_cast<std::ptrdiff_t>((row + 1) * b_bytes));
  }
  return out;
}

/// H 2, HV 4, K 2, V 3: with one key head flat and interleaved coincide.
class TwoHeads : public Version2 {
 public:
  TwoHeads() {
    integer("model@num_k_heads", 2), integer("model@num_v_heads", 4);
    vector<float>("params/0/A_log", {4}, {0, 1, 0, 1}), vector<float>("params/0/dt_bias", {4}, {0, 1, 0, 1});
    zeros("params/0/conv_weight", Type::bf16, {20, 2}), zeros("params/0/conv_bias", Type::bf16, {20});
    without(*this, "events"), without(*this, "recorded");
    Random random(4);
    words("steps/0/mixed_qkv", Type::bf16, {2, 2, 20}, random.bytes(160));
    words("steps/0/z", Type::bf16, {2, 2, 12}, random.bytes(96));
    words("steps/0/a", Type::bf16, {2, 2, 4}, random.bytes(32));
    words("steps/0/b", Type::bf16, {2, 2, 4}, random.bytes(32));
  }
};

// Places of the flat row in the interleaved one, written out by hand: q0 q1 | k0 k1 | v0 v1 v2 v3 of widths 2, 2 and 3.
const std::vector<std::size_t> kInterleaved = {0, 1, 4, 5, 8, 9, 10, 11, 12, 13, 2, 3, 6, 7, 14, 15, 16, 17, 18, 19};
// The same with z behind q, k and v of the row: words 20 to 31.
const std::vector<std::size_t> kInterleavedZ = {0, 1, 4, 5, 8,  9,  10, 11, 12, 13, 20, 21, 22, 23, 24, 25,
                                                2, 3, 6, 7, 14, 15, 16, 17, 18, 19, 26, 27, 28, 29, 30, 31};

}  // namespace

TEST_CASE("launches, moves, accept counts and owners come back") {
  const TempDir dir;
  const TraceData data = launch_trace();
  write_trace_data(dir / "t.h5", data);
  const auto trace = open_trace(dir / "t.h5");
  CHECK(trace->version() == 2);
  CHECK(trace->model() == data.header.model);
  CHECK(std::vector<Event>(trace->events().begin(), trace->events().end()) == data.header.events);
  for (const StepPlan& want : data.plans) {
    const StepPlan plan = trace->plan(want.step);
    CHECK(plan.draft == want.draft);
    CHECK(plan.last_draft == want.last_draft);
    CHECK(plan.source == (want.source.empty() ? std::vector<std::int32_t>(3, -1) : want.source));
    CHECK(plan.accepted == (want.accepted.empty() ? std::vector<std::int32_t>(3, 0) : want.accepted));
  }
  CHECK(launch_of(*trace, 2) == std::pair<std::int64_t, std::int64_t>(1, 3));
  CHECK(launch_of(*trace, 3) == std::pair<std::int64_t, std::int64_t>(3, 4));
  CHECK_NOTHROW(require_launch_start(*trace, 1, "t"));
  CHECK_THROWS_WITH_AS(require_launch_start(*trace, 2, "t"),
                       "t: step 2 is within the launch of steps 1:3: expected a start at step 1 or 3", Error);
}

TEST_CASE("a file has the lowest version that holds it") {
  const TempDir dir;
  const auto version = [&](const TraceData& data) {
    write_trace_data(dir / "t.h5", data, true);
    return open_trace(dir / "t.h5")->version();
  };
  TraceData plain = random_trace(9, DType::bf16, DType::f32, DType::bf16);
  CHECK(version(plain) == 1);
  plain.header.events[0].sequence = 4;
  CHECK(version(plain) == 2);
  plain = random_trace(9, DType::bf16, DType::f32, DType::bf16);
  plain.header.model.index_bits = 32;
  CHECK(version(plain) == 2);
}

TEST_CASE("the content digest covers what version 2 adds") {
  const TempDir dir;
  std::vector<std::string> digests;
  const auto add = [&](const std::function<void(TraceData&)>& change) {
    TraceData data = launch_trace();
    change(data);
    write_trace_data(dir / "t.h5", data, true);
    digests.push_back(open_trace(dir / "t.h5")->content_digest());
  };
  add([](TraceData&) {});
  add([](TraceData& data) { data.header.events[0].why = EventWhy::fork; });
  add([](TraceData& data) {
    for (Event& event : data.header.events) event.sequence = -1;
  });
  add([](TraceData& data) { data.header.model.block_stride = 101; });
  add([](TraceData& data) { data.header.model.index_bits = 64; });
  add([](TraceData& data) { data.plans[1].accepted[0] = 0; });
  add([](TraceData& data) {
    data.plans[1].draft = 0, data.plans[2].draft = 0, data.plans[1].last_draft = true, data.plans[3].source[0] = 3;
  });
  add([](TraceData& data) {
    data.plans[2].source = {}, data.plans[2].index[0] = data.plans[2].block[0] = 2, data.plans[3].accepted[0] = 2;
  });
  std::ranges::sort(digests);
  CHECK(std::ranges::adjacent_find(digests) == digests.end());
}

TEST_CASE("packed projections are read as the flat ones") {
  const TwoHeads flat;
  TwoHeads packed;
  packed.text("model@qkv_packing", "interleaved");
  packed.words("steps/0/mixed_qkv", Type::bf16, {2, 2, 20},
               reordered(flat.data.at("steps/0/mixed_qkv"), kInterleaved, 20));
  check_same(flat, packed);

  const Bytes qkvz = beside(flat.data.at("steps/0/mixed_qkv"), flat.data.at("steps/0/z"), 40, 24);
  TwoHeads joined;
  without(joined, "steps/0/mixed_qkv"), without(joined, "steps/0/z");
  joined.text("model@z_packing", "flat");
  joined.words("steps/0/qkvz", Type::bf16, {2, 2, 32}, qkvz);
  check_same(flat, joined);
  joined.text("model@z_packing", "interleaved");
  joined.words("steps/0/qkvz", Type::bf16, {2, 2, 32}, reordered(qkvz, kInterleavedZ, 32));
  check_same(flat, joined);
}

TEST_CASE("packed gates are read as the split ones") {
  const TwoHeads split;
  const Bytes ba = beside(split.data.at("steps/0/b"), split.data.at("steps/0/a"), 8, 8);
  TwoHeads joined;
  without(joined, "steps/0/a"), without(joined, "steps/0/b");
  joined.text("model@ba_packing", "flat");
  joined.words("steps/0/ba", Type::bf16, {2, 2, 8}, ba);
  check_same(split, joined);
  joined.text("model@ba_packing", "interleaved");
  joined.words("steps/0/ba", Type::bf16, {2, 2, 8}, reordered(ba, {0, 1, 4, 5, 2, 3, 6, 7}, 8));
  check_same(split, joined);
}

TEST_CASE("longer, circular and channel-first conv windows are read as [W-1, dim]") {
  // W = 3: two columns, here A and B of 10 channels, among four.
  Random random(8);
  const Bytes A = random.bytes(20), B = random.bytes(20), junk = random.bytes(20);
  const auto columns = [](std::initializer_list<Bytes> all) {
    Bytes out;
    for (const Bytes& column : all) out.insert(out.end(), column.begin(), column.end());
    return out;
  };
  Version2 plain;
  plain.integer("model@conv_width", 3);
  plain.zeros("params/0/conv_weight", Type::bf16, {10, 3});
  plain.words("events/conv", Type::bf16, {1, 2, 10}, columns({A, B}));
  plain.words("recorded/state/conv", Type::bf16, {1, 2, 10}, columns({A, B}));
  Version2 longer = plain;
  longer.integer("model@conv_columns", 4);
  longer.words("events/conv", Type::bf16, {1, 4, 10}, columns({junk, A, B, junk}));
  longer.words("recorded/state/conv", Type::bf16, {1, 4, 10}, columns({junk, junk, A, B}));
  longer.vector<std::int32_t>("events/conv_offset", {1}, {1});
  longer.vector<std::int32_t>("recorded/state/conv_offset", {1}, {2});
  check_same(plain, longer);
  Version2 circular = longer;
  circular.text("model@conv_order", "circular");
  circular.words("events/conv", Type::bf16, {1, 4, 10}, columns({B, junk, junk, A}));
  circular.vector<std::int32_t>("events/conv_offset", {1}, {3});
  check_same(plain, circular);
  Version2 channels = circular;
  channels.text("model@conv_layout", "channels");
  const auto transposed = [](const Bytes& in) {
    Bytes out(in.size());
    for (std::size_t column = 0; column < 4; ++column)
      for (std::size_t c = 0; c < 10; ++c)
        for (std::size_t byte = 0; byte < 2; ++byte)
          out[(c * 4 + column) * 2 + byte] = in[(column * 10 + c) * 2 + byte];
    return out;
  };
  channels.words("events/conv", Type::bf16, {1, 10, 4}, transposed(columns({B, junk, junk, A})));
  channels.words("recorded/state/conv", Type::bf16, {1, 10, 4}, transposed(columns({junk, junk, A, B})));
  check_same(plain, channels);
}

TEST_CASE("version 1 reads none of it") {
  accepted([](Builder& b) {
    b.text("model@qkv_packing", "nonsense"), b.integer("model@index_bits", 7);
    b.vector<std::int8_t>("steps/draft", {2}, {9, 9});
  });
}

TEST_CASE("layouts that cannot be") {
  refused2("/model @qkv_packing: expected one of \"flat\", \"interleaved\"",
           [](Version2& b) { b.text("model@qkv_packing", "planar"); });
  refused2("/model @z_packing: expected one of \"apart\", \"flat\", \"interleaved\"",
           [](Version2& b) { b.text("model@z_packing", "planar"); });
  refused2("/model @qkv_packing: expected the same as @z_packing, or nothing: q, k, v and z lie in one dataset",
           [](Version2& b) { b.text("model@z_packing", "flat"), b.text("model@qkv_packing", "interleaved"); });
  refused2("/steps/0/qkvz: expected a dataset of bf16 [2, 2, 16], found nothing",
           [](Version2& b) { b.text("model@z_packing", "flat"); });
  refused2("/model @ba_packing: expected one of \"split\", \"flat\", \"interleaved\"",
           [](Version2& b) { b.text("model@ba_packing", "planar"); });
  refused2("/steps/0/ba: expected a dataset of bf16 [2, 2, 4], found nothing",
           [](Version2& b) { b.text("model@ba_packing", "flat"); });
  refused2("/model @conv_columns: expected 1 (W - 1) to 2^20, found 0",
           [](Version2& b) { b.integer("model@conv_columns", 0); });
  refused2("/model @conv_order: expected one of \"rolled\", \"circular\"",
           [](Version2& b) { b.text("model@conv_order", "shuffled"); });
  refused2("/model @conv_layout: expected one of \"columns\", \"channels\"",
           [](Version2& b) { b.text("model@conv_layout", "rows"); });
  refused2("/events/conv_offset[0]: expected a column in 0..0, where a window of 1 columns can begin, found 1",
           [](Version2& b) { b.vector<std::int32_t>("events/conv_offset", {1}, {1}); });
  refused2("/recorded/state/conv_offset[0]: expected a column in 0..0, where a window of 1 columns can begin, found -1",
           [](Version2& b) { b.vector<std::int32_t>("recorded/state/conv_offset", {1}, {-1}); });
  refused2("/model: index_bits: expected 32 or 64", [](Version2& b) { b.integer("model@index_bits", 31); });
  refused2("/model: block_stride: expected 0 or 12 (a block's elements) to 2^45, found 11",
           [](Version2& b) { b.integer("model@block_stride", 11); });
  refused2("/model: conv_block_stride: expected 0 or 10 (a block's elements) to 2^45, found 9",
           [](Version2& b) { b.integer("model@conv_block_stride", 9); });
}

TEST_CASE("tables of block columns") {
  const auto table = [](Version2& b) {
    b.vector<std::int32_t>("steps/table", {2, 2, 2}, {1, 0, 0, 2, 3, 0, 0, 0});
    b.vector<std::int32_t>("steps/column", {2, 2}, {0, 1, 0, 9});  // the last row is padding
  };
  Version2 good;
  table(good);
  const TempDir dir;
  good.write(dir / "t.h5");
  CHECK_NOTHROW(open_trace(dir / "t.h5"));
  refused2("/steps/column[0, 0]: index column 5 outside 0..1 for row 0", [&](Version2& b) {
    table(b);
    b.vector<std::int32_t>("steps/column", {2, 2}, {5, 1, 0, 0});
  });
  refused2(
      "/steps/index[0, 0]: expected block 2, which column 0 of the row's table names, found 1, which belongs to row 1",
      [&](Version2& b) {
        table(b);
        b.vector<std::int32_t>("steps/table", {2, 2, 2}, {2, 0, 1, 2, 3, 0, 0, 0});
      });
  refused2("/steps/column[0, 1]: expected column 0 for position 7 with 8 tokens a block, found 1", [&](Version2& b) {
    table(b);
    b.integer("model@block_size", 8);
    b.vector<std::int32_t>("steps/position", {2, 2}, {3, 7, 4, 0});
  });
  refused2("/model @block_size: expected 1 to 2^31 tokens, found 0",
           [&](Version2& b) { b.integer("model@block_size", 0); });
  refused2("/steps/column: expected a dataset of int32 [2, 2], found nothing", [&](Version2& b) {
    b.vector<std::int32_t>("steps/table", {2, 2, 1}, {1, 2, 3, 0});
  });
}

TEST_CASE("launches, moves, counts and events that cannot be") {
  refused2("/steps: draft[0]: expected 0..127, found -1", [](Version2& b) {
    b.vector<std::int8_t>("steps/draft", {2}, {-1, 0});
  });
  refused2("/steps: path[0]: draft 0 of a launch of several: expected path 1 (mixed), found 0", [](Version2& b) {
    b.vector<std::int8_t>("steps/draft", {2}, {0, 1});
  });
  const auto moves = [](const std::string& line, std::initializer_list<std::int32_t> source) {
    refused2("/steps: source" + line, [&](Version2& b) {
      b.vector<std::int32_t>("steps/source", {2, 2}, std::vector<std::int32_t>(source));
    });
  };
  moves("[0, 0]: expected -1 or a block in 1..3, found 4", {4, -1, -1, -1});
  moves("[0, 1]: expected -1 or a block in 1..3, found 0", {-1, 0, -1, -1});
  moves("[1, 1]: expected -1 for an inactive row, found 1", {-1, -1, -1, 1});
  moves(
      "[0, 0]: row 0 goes on from block 2, which row 1 writes in the same step: the result would depend on their order",
      {2, -1, -1, -1});
  refused2("/steps: accepted[0, 1]: expected 0 or more, found -2", [](Version2& b) {
    b.vector<std::int32_t>("steps/accepted", {2, 2}, {0, -2, 0, 0});
  });
  refused2("/steps: accepted[1, 1]: expected 0 for an inactive row, found 1", [](Version2& b) {
    b.vector<std::int32_t>("steps/accepted", {2, 2}, {0, 0, 0, 1});
  });
  refused2("events/kind[0]: expected 0..4, found 5", [](Version2& b) {
    b.vector<std::int8_t>("events/kind", {2}, {5, 2});
  });
  refused2("events/why[1]: expected 0..5, found 6", [](Version2& b) {
    b.vector<std::int8_t>("events/why", {2}, {0, 6});
  });
  refused2("events/sequence[0]: expected -1..9223372036854775807, found -2", [](Version2& b) {
    b.vector<std::int64_t>("events/sequence", {2}, {-2, 0});
  });
  refused2("/steps/draft: expected int8 [2], found int32 [2]", [](Version2& b) {
    b.vector<std::int32_t>("steps/draft", {2}, {0, 0});
  });
}

TEST_CASE("a live row on the null block: version 2 means it") {
  accepted([](Builder& b) { b.vector<std::int64_t>("steps/sequence", {2, 2}, {5, 6, 7, 8}); });
  refused2("step 1: row 1 names the null block 0, but it belongs to sequence 8", [](Version2& b) {
    b.vector<std::int64_t>("steps/sequence", {2, 2}, {5, 6, 7, 8});
  });
}
