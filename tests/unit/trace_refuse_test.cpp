// What opening a trace refuses, each with the file, the dataset, the index and what was expected; and that no mutation of a
// file does anything worse than that.
#include <gdnsim/error.hpp>
#include <gdnsim/trace.hpp>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include <doctest/doctest.h>

#include "file/hdf5_io.hpp"
#include "support/skip.hpp"
#include "support/temp_dir.hpp"
#include "support/trace_builder.hpp"
#include "support/trace_data.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("the builder's trace is good, and stays so without each optional part") {
  accepted([](Builder&) {});
  for (const char* part :
       {"params/0/conv_bias", "params/0/norm_weight", "steps/rows", "steps/path", "steps/token", "steps/position",
        "steps/0/z", "recorded/0/conv_out", "recorded/0", "recorded/state", "recorded"})
    accepted([&](Builder& b) { without(b, part); });
  accepted([](Builder& b) { without(b, "events"); });
  accepted(
      [](Builder& b) { b.parts["model@norm_eps"] = [](Group& g, const std::string& n) { g.set_float(n, 1e-6f); }; });
  accepted([](Builder& b) {  // events, but no load rows
    b.vector<std::int8_t>("events/kind", {2}, {0, 2});
    without(b, "events/recurrent"), without(b, "events/conv");
  });
}

TEST_CASE("a file that is not a trace") {
  const TempDir dir;
  CHECK_THROWS_WITH_AS(open_trace(dir / "none.h5"), doctest::Contains("none.h5: cannot be opened: No such file"),
                       Error);
  CHECK_THROWS_WITH_AS(open_trace(dir.path()), doctest::Contains(": expected a regular file"), Error);
  for (const char* content : {"", "{\"schema\": 1}", "\x89HDF\r\n\x1a\n"}) {
    write_file(dir / "text.h5", content);
    CHECK_THROWS_WITH_AS(open_trace(dir / "text.h5"), doctest::Contains("text.h5: expected a whole HDF5 file"), Error);
  }
  refused("/ @format: expected \"gdnsim-trace\", found \"gdnsim-log\"",
          [](Builder& b) { b.text("@format", "gdnsim-log"); });
  refused("/ @format: expected \"gdnsim-trace\", found nothing", [](Builder& b) { without(b, "@format"); });
  refused("/ @format: expected a string, found int32", [](Builder& b) { b.integer("@format", 1); });
}

TEST_CASE("versions and completeness") {
  refused("/ @version: expected at most 2, found 3: the file is of a newer version than this program reads",
          [](Builder& b) { b.integer("@version", 3); });
  refused("/ @version: expected 1 or more, found 0", [](Builder& b) { b.integer("@version", 0); });
  refused("/ @version: expected an integer, found nothing", [](Builder& b) { without(b, "@version"); });
  refused("/ @version: expected an integer, found string", [](Builder& b) { b.text("@version", "1"); });
  refused("/ @complete: expected 1, found 0: the trace was not closed properly",
          [](Builder& b) { b.integer("@complete", 0); });
  refused("/ @complete: expected an integer, found nothing", [](Builder& b) { without(b, "@complete"); });
}

TEST_CASE("the model") {
  for (const char* name :
       {"num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "conv_width", "use_qk_l2norm", "num_blocks"})
    refused("/model @" + std::string(name) + ": expected an integer, found nothing",
            [&](Builder& b) { without(b, "model@" + std::string(name)); });
  for (const char* name : {"activation", "state_dtype", "conv_state_dtype", "act_dtype", "sentinel"}) {
    refused("/model @" + std::string(name) + ": expected a string, found nothing",
            [&](Builder& b) { without(b, "model@" + std::string(name)); });
  }
  refused("/model @scale: expected an f32, found nothing", [](Builder& b) { without(b, "model@scale"); });
  refused("/model @scale: expected an f32, found int32", [](Builder& b) { b.integer("model@scale", 1); });
  refused("/model @sentinel: expected \"nonpositive\", \"zero\" or \"minus_one\", found \"never\"",
          [](Builder& b) { b.text("model@sentinel", "never"); });
  refused("/model @act_dtype: expected \"f32\", \"bf16\" or \"f16\", found \"f\?\?8\"",
          [](Builder& b) { b.text("model@act_dtype", "f\n\t8"); });
  refused("/model @use_qk_l2norm: expected 0 or 1, found 2", [](Builder& b) { b.integer("model@use_qk_l2norm", 2); });
  refused("/model @num_k_heads: expected a small integer, found 4294967297",
          [](Builder& b) { b.integer("model@num_k_heads", 4294967297); });
  refused("/model/layer_ids: expected int32 [any], found int64 [1]",
          [](Builder& b) { b.vector<std::int64_t>("model/layer_ids", {1}, {7}); });
  refused("/model/layer_ids[0]: expected 0 or more, found -1",
          [](Builder& b) { b.vector<std::int32_t>("model/layer_ids", {1}, {-1}); });
  refused("/model/layer_ids[1]: expected each layer once, found 7 again", [](Builder& b) {
    b.vector<std::int32_t>("model/layer_ids", {2}, {7, 7});
  });
  const auto impossible = [](const char* field, std::int64_t value) {
    const TempDir dir;
    Builder builder;
    builder.integer(std::string("model@") + field, value);
    builder.write(dir / "t.h5");
    CHECK_THROWS_WITH_AS(open_trace(dir / "t.h5"),
                         doctest::Contains((std::string("/model: ") + field + ": expected").c_str()), Error);
  };
  impossible("num_v_heads", 0), impossible("num_k_heads", -1), impossible("num_v_heads", 2147483647);
  impossible("head_k_dim", 1 << 30), impossible("conv_width", 1), impossible("num_blocks", 0),
      impossible("num_blocks", std::int64_t{1} << 62);
  refused("/model: num_v_heads: expected a multiple of num_k_heads = 2, found 3",
          [](Builder& b) { b.integer("model@num_k_heads", 2), b.integer("model@num_v_heads", 3); });
}

TEST_CASE("datasets that are missing, of another type or of another shape") {
  refused("/params: expected a group, found nothing", [](Builder& b) { without(b, "params"); });
  refused("/steps: expected a group, found nothing", [](Builder& b) { without(b, "steps"); });
  refused("/model: expected a group, found nothing", [](Builder& b) { without(b, "model"); });
  for (const auto& [name, wanted] :
       std::map<std::string, std::string>{{"params/0/A_log", "f32 [2]"},
                                          {"params/0/dt_bias", "f32 [2]"},
                                          {"params/0/conv_weight", "bf16 [10, 2]"},
                                          {"steps/index", "int32 [any, any]"},
                                          {"steps/sequence", "int64 [2, 2]"},
                                          {"steps/0/mixed_qkv", "bf16 [2, 2, 10]"},
                                          {"steps/0/a", "bf16 [2, 2, 2]"},
                                          {"steps/0/b", "bf16 [2, 2, 2]"},
                                          {"events/step", "int32 [any]"},
                                          {"events/kind", "int8 [2]"},
                                          {"events/conv", "bf16 [1, 1, 10]"},
                                          {"recorded/state/recurrent", "f32 [1, 2, 3, 2]"}}) {
    refused("/" + name + ": expected a dataset of " + wanted + ", found nothing",
            [&](Builder& b) { without(b, name); });
    refused("/" + name + ": expected " + wanted + ", found uint64 [2, 2]", [&](Builder& b) {
      b.vector<std::uint64_t>(name, {2, 2}, {0, 0, 0, 0});
    });
  }
  for (const char* name :
       {"params/0/conv_bias", "params/0/norm_weight", "steps/rows", "steps/path", "steps/token", "steps/position",
        "steps/0/z", "events/recurrent", "recorded/0/conv_out", "recorded/0/q", "recorded/0/beta"}) {
    const TempDir dir;
    Builder builder;
    builder.vector<std::uint64_t>(name, {2, 2}, {0, 0, 0, 0});
    builder.write(dir / "t.h5");
    const std::string start = "/" + std::string(name) + ": expected ";
    CHECK_THROWS_WITH_AS(open_trace(dir / "t.h5"), doctest::Contains(start.c_str()), Error);
    CHECK_THROWS_WITH_AS(open_trace(dir / "t.h5"), doctest::Contains("found uint64 [2, 2]"), Error);
  }
  refused("/steps/0/a: expected bf16 [2, 2, 2], found bf16 [1, 2, 2]", [](Builder& b) {
    b.zeros("steps/0/a", Type::bf16, {1, 2, 2});
  });
  refused("/steps/0/a: expected bf16 [2, 2, 2], found f16 [2, 2, 2]", [](Builder& b) {
    b.zeros("steps/0/a", Type::f16, {2, 2, 2});
  });
  refused("/recorded/0/core_out: expected bf16 [2, 2, 2, 3], found f32 [2, 2, 2, 3]", [](Builder& b) {
    b.zeros("recorded/0/core_out", Type::f32, {2, 2, 2, 3});
  });
  refused("/recorded/state/block: expected int32 [1], found int32 [2]", [](Builder& b) {
    b.vector<std::int32_t>("recorded/state/block", {2}, {1, 1});
  });
  refused("/steps/index: expected a dataset, found another object",
          [](Builder& b) { b.parts["steps/index"] = [](Group& g, const std::string& n) { g.create_group(n); }; });
  refused("/steps/index: expected 1 to 2^31-1 steps of 1 to 2^24 rows, found [0, 2]", [](Builder& b) {
    b.vector<std::int32_t>("steps/index", {0, 2}, {});
  });
}

TEST_CASE("NaN in each parameter, with its index") {
  refused("/params/0/A_log[1]: expected a number, found NaN", [](Builder& b) {
    b.vector<float>("params/0/A_log", {2}, {0, kNaN});
  });
  refused("/params/0/dt_bias[0]: expected a number, found NaN", [](Builder& b) {
    b.vector<float>("params/0/dt_bias", {2}, {-kNaN, 0});
  });
  const auto words = [](std::size_t count, std::size_t at, std::uint16_t word, const Dims& dims) {
    return [=](Group& g, const std::string& n) {
      std::vector<std::uint16_t> values(count);
      values[at] = word;
      h5::Dataset data = g.create_dataset(n, Type::bf16, dims);
      data.write_all(std::as_bytes(std::span(values)));
      data.close();
    };
  };
  refused("/params/0/conv_weight[8, 1]: expected a number, found NaN", [&](Builder& b) {
    b.parts["params/0/conv_weight"] = words(20, 17, 0x7F81, {10, 2});
  });
  refused("/params/0/conv_bias[9]: expected a number, found NaN",
          [&](Builder& b) { b.parts["params/0/conv_bias"] = words(10, 9, 0xFFFF, {10}); });
  refused("/params/0/norm_weight[2]: expected a number, found NaN",
          [&](Builder& b) { b.parts["params/0/norm_weight"] = words(3, 2, 0x7FC0, {3}); });
  accepted([&](Builder& b) { b.parts["params/0/norm_weight"] = words(3, 2, 0xFF80, {3}); });  // an infinity is a number
}

TEST_CASE("indices, rows and paths") {
  refused("/steps: index[1, 0]: expected a block in 1..3 or the sentinel (nonpositive), found 4", [](Builder& b) {
    b.vector<std::int32_t>("steps/index", {2, 2}, {1, 2, 4, 0});
  });
  refused(
      "/steps: index[0, 1]: rows 0 and 1 both name block 2 in one step: two writers, the result would depend on their "
      "order (sequences 5 and 6)",
      [](Builder& b) {
        b.vector<std::int32_t>("steps/index", {2, 2}, {2, 2, 3, 0});
      });
  refused("/steps: rows[1]: expected 0..2, found 3", [](Builder& b) {
    b.vector<std::int32_t>("steps/rows", {2}, {2, 3});
  });
  refused("/steps: rows[0]: expected 0..2, found -1", [](Builder& b) {
    b.vector<std::int32_t>("steps/rows", {2}, {-1, 2});
  });
  for (const int tokens : {-1, 1})
    refused("/steps/launch_tokens[0]: expected 0 (not known) or the 2 active rows and more, found " +
                std::to_string(tokens),
            [tokens](Builder& b) {
              b.vector<std::int32_t>("steps/launch_tokens", {2}, {tokens, 5});
            });
  accepted([](Builder& b) { b.vector<std::int32_t>("steps/launch_tokens", {2}, {0, 5}); });
  refused("/steps: path[1]: expected 0, 1 or 2, found 3", [](Builder& b) {
    b.vector<std::int8_t>("steps/path", {2}, {0, 3});
  });
  accepted([](Builder& b) {  // beyond the rows that are there any index may stand
    b.vector<std::int32_t>("steps/index", {2, 2}, {1, 99, 3, 3});
    b.vector<std::int32_t>("steps/rows", {2}, {1, 1});
  });
}

TEST_CASE("events and snapshots") {
  const auto event = [](const char* name, std::int32_t first, std::int32_t second, const std::string& line) {
    refused("events/" + std::string(name) + line, [&](Builder& b) {
      b.vector<std::int32_t>(std::string("events/") + name, {2}, {first, second});
    });
  };
  event("step", 1, 0, "[1]: expected at least 1 (sorted by step), found 0");
  event("step", 0, 2, "[1]: expected 0..1, found 2");
  event("layer", -2, 0, "[0]: expected -1..0, found -2");
  event("block", 1, 4, "[1]: expected 0..3, found 4");
  event("source", 1, 1, "[0]: expected 0..0, found 1");
  event("source", 0, -1, "[1]: expected 0..3, found -1");
  refused("events/kind[1]: expected 0..3, found 4", [](Builder& b) {
    b.vector<std::int8_t>("events/kind", {2}, {1, 4});
  });
  refused("events/kind[1]: expected 0..3, found -1", [](Builder& b) {
    b.vector<std::int8_t>("events/kind", {2}, {1, -1});
  });
  refused("/recorded/state/step[0]: expected 0..1, found 2",
          [](Builder& b) { b.vector<std::int32_t>("recorded/state/step", {1}, {2}); });
  refused("/recorded/state/layer[0]: expected 0..0, found -1",
          [](Builder& b) { b.vector<std::int32_t>("recorded/state/layer", {1}, {-1}); });
  refused("/recorded/state/block[0]: expected 0..3, found 4",
          [](Builder& b) { b.vector<std::int32_t>("recorded/state/block", {1}, {4}); });
}

TEST_CASE("two thousand random mutations and truncations: an Error or a trace, nothing else") {
  const TempDir dir;
  Builder().write(dir / "good.h5");
  const std::string good = file_bytes(dir / "good.h5");
  Random random(2024);
  int refusals = 0, opened = 0;
  for (int i = 0; i < 2000; ++i) {
    CAPTURE(i);
    std::string bytes = good;
    if (i % 4 == 0) bytes.resize(random.below(good.size()));
    for (std::uint64_t n = i % 4 == 0 ? 0 : 1 + random.below(4); n > 0; --n)
      bytes[random.below(bytes.size())] ^= static_cast<char>(1u << random.below(8));
    write_file(dir / "bad.h5", bytes);
    try {
      read_everything(*open_trace(dir / "bad.h5"));
      ++opened;
    } catch (const Error& bad) {
      const std::string line = bad.what();
      CHECK(line.find("bad.h5: ") != line.npos);
      CHECK(line.find('\n') == line.npos);
      ++refusals;
    }
  }
  CHECK(refusals > 500);
  CHECK(opened > 50);
}

TEST_CASE("files that other HDF5 writers make, and that no reader should take") {
  const char* scripts = std::getenv("GDNSIM_TEST_SCRIPTS");
  if (scripts == nullptr) GDNSIM_SKIP("GDNSIM_TEST_SCRIPTS is not set");
  if (std::system("python3 -c 'import h5py' >/dev/null 2>&1") != 0) GDNSIM_SKIP("h5py is not installed");
  const TempDir dir;
  const TraceData data = random_trace(1, DType::bf16, DType::f32, DType::bf16);
  write_trace_data(dir / "base.h5", data);
  const std::string command =
      "python3 '" + std::string(scripts) + "/odd_hdf5.py' '" + dir / "base.h5" + "' '" + dir.path() + "' >/dev/null";
  REQUIRE(std::system(command.c_str()) == 0);
  const std::string digest = open_trace(dir / "base.h5")->content_digest();
  for (const char* name : {"plain", "latest", "latest_extendible", "chunks", "deflate", "fletcher", "extendible",
                           "words", "python_values"}) {
    CAPTURE(name);
    const std::unique_ptr<Trace> trace = open_trace(dir / (std::string(name) + ".h5"));
    CHECK(trace->content_digest() == digest);
    CHECK(trace->provenance() == data.header.provenance);
    Bytes rows;
    for (const auto& [key, want] : data.taps) {
      trace->read_tap(std::get<0>(key), std::get<1>(key), std::get<2>(key), rows);
      CHECK(rows == want);
    }
  }
  const std::pair<const char*, const char*> bad[] = {
      {"bad_external_storage", "/steps/sequence: expected data inside the file, found external storage"},
      {"bad_virtual", "/steps/index: expected a contiguous or chunked layout"},
      {"bad_missing_chunk", "/steps/sequence: expected 4 stored chunks, found 1"},
      {"bad_missing_bulk_chunk", "/steps/1/a: expected 4 stored chunks, found 1"},
      {"bad_never_written", "/steps/sequence: expected data, found a dataset that was never written"},
      {"bad_big_endian", "/steps/index: expected int32 [any, any], found big-endian int32 [4, 3]"},
      {"bad_filter", "/steps/index: expected no filters but deflate, shuffle and fletcher32, found filter 6"},
      {"bad_extendible", "/steps/index: expected a fixed shape, found axis 1 extendible"},
      {"bad_soft_link", "/steps/index: expected an object of this file, found a soft or external link"},
      {"bad_external_link", "/steps/index: expected an object of this file, found a soft or external link"},
      {"bad_group", "/steps/index: expected a dataset, found another object"},
      {"bad_huge", "/steps/index: expected at most the"},
      {"bad_huge_chunk", "/steps/index: expected at most the"}};
  for (const auto& [name, line] : bad) {
    CAPTURE(name);
    CHECK_THROWS_WITH_AS(read_everything(*open_trace(dir / (std::string(name) + ".h5"))), doctest::Contains(line),
                         Error);
  }
}
