// Merging and splitting: heads by name, so that a head lost, doubled or taken from the wrong part shows.
#include <gdnsim/error.hpp>
#include <gdnsim/ranks.hpp>

#include <functional>

#include <doctest/doctest.h>

#include "support/temp_dir.hpp"
#include "support/trace_data.hpp"
#include "trace/rank_heads.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

/// One byte a word that says line, part, rank and head.
Bytes named(std::size_t rank, const ranks::Parts& parts, int lines) {
  Bytes out;
  for (int line = 0; line < lines; ++line)
    for (std::size_t part = 0; part < parts.size(); ++part)
      for (std::int64_t head = 0; head < parts[part].heads; ++head)
        for (std::size_t i = 0; i < parts[part].bytes; ++i)
          out.push_back(static_cast<std::byte>(line * 64 + static_cast<int>(part) * 16 + static_cast<int>(rank) * 4 +
                                               static_cast<int>(head)));
  return out;
}

/// A trace of H 2 and HV 4 and its two ranks, written.
struct Files {
  TempDir dir;
  TraceData data = random_trace(5, DType::bf16, DType::f32, DType::bf16);
  const std::string whole = dir / "whole.h5";
  const std::vector<std::string> ranks{dir / "rank0.h5", dir / "rank1.h5"};
  Files() {
    write_trace_data(whole, data);
    split_ranks(whole, ranks, {});
  }
  std::string merge(const std::vector<std::string>& paths) {
    try {
      merge_ranks(paths, dir / "merged.h5", {.force = true});
    } catch (const Error& error) {
      return error.what();
    }
    return "merged";
  }
  /// What merging says when rank 1 was recorded from other data.
  std::string merge_with(const std::function<void(TraceData&)>& change) {
    TraceData other = random_trace(5, DType::bf16, DType::f32, DType::bf16);
    change(other);
    write_trace_data(dir / "other.h5", other, true);
    split_ranks(dir / "other.h5", {dir / "other0.h5", dir / "other1.h5"}, {.force = true});
    return merge({ranks[0], dir / "other1.h5"});
  }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void check_recorded(Trace& got, Trace& want) {
  Bytes a, b, conv_a, conv_b;
  for (std::int64_t step = 0; step < want.steps(); ++step)
    for (int layer = 0; layer < want.model().layers(); ++layer)
      for (std::size_t i = 0; i < kTaps; ++i) {
        if (!want.taps(layer).has(static_cast<Tap>(i))) continue;
        got.read_tap(static_cast<Tap>(i), step, layer, a);
        want.read_tap(static_cast<Tap>(i), step, layer, b);
        CHECK(a == b);
      }
  REQUIRE(got.snapshots().size() == want.snapshots().size());
  for (std::size_t i = 0; i < want.snapshots().size(); ++i) {
    CHECK(got.snapshots()[i].block == want.snapshots()[i].block);
    got.read_snapshot(got.snapshots()[i], a, conv_a);
    want.read_snapshot(want.snapshots()[i], b, conv_b);
    CHECK((a == b && conv_a == conv_b));
  }
}

}  // namespace

TEST_CASE("a line of heads is joined part by part and cut again") {
  const ranks::Parts parts = {{1, 2}, {1, 2}, {2, 3}};  // q, k, v of one rank
  const std::vector<Bytes> two = {named(0, parts, 2), named(1, parts, 2)};
  const Bytes whole = ranks::join(parts, two);
  const int want[] = {0, 0, 4, 4, 16, 16, 20, 20, 32, 32, 32, 33, 33, 33, 36, 36, 36, 37, 37, 37};
  REQUIRE(whole.size() == 40);
  for (std::size_t i = 0; i < 20; ++i) CHECK(static_cast<int>(whole[i]) == want[i]);
  for (std::size_t i = 0; i < 20; ++i) CHECK(static_cast<int>(whole[20 + i]) == want[i] + 64);
  for (std::size_t rank = 0; rank < 2; ++rank) CHECK(ranks::cut(parts, whole, rank, 2) == two[rank]);
  CHECK(ranks::join(parts, std::vector<Bytes>(2)).empty());
}

TEST_CASE("a rank holds q, k and v of its heads, not a stretch of the channels") {
  Files files;
  const auto rank = open_trace(files.ranks[1]);
  const Model& m = files.data.header.model;  // H 2, HV 4, K 3, V 5
  CHECK(rank->model().H == 1);
  CHECK(rank->model().HV == 2);
  StepInputs got;
  rank->inputs(2, 1, got);
  const StepInputs& whole = files.data.inputs[2][1];
  const auto word = [](const Bytes& words, std::size_t at) {
    return Bytes(words.begin() + 2 * at, words.begin() + 2 * at + 2);
  };
  const std::size_t share = 3 + 3 + 2 * 5, dim = static_cast<std::size_t>(m.dim());
  REQUIRE(got.mixed_qkv.size() == 3 * share * 2);
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(word(got.mixed_qkv, row * share + i) == word(whole.mixed_qkv, row * dim + 3 + i));
      CHECK(word(got.mixed_qkv, row * share + 3 + i) == word(whole.mixed_qkv, row * dim + 6 + 3 + i));
    }
    for (std::size_t i = 0; i < 10; ++i) {
      CHECK(word(got.mixed_qkv, row * share + 6 + i) == word(whole.mixed_qkv, row * dim + 12 + 10 + i));
      CHECK(word(got.z, row * 10 + i) == word(whole.z, row * 20 + 10 + i));
    }
    for (std::size_t head = 0; head < 2; ++head)
      CHECK(word(got.a, row * 2 + head) == word(whole.a, row * 4 + 2 + head));
  }
  CHECK(rank->params(0).A_log[0] == files.data.header.params[0].A_log[2]);
  CHECK(rank->params(0).norm_weight == files.data.header.params[0].norm_weight);
}

TEST_CASE("split and merged, a trace is what it was, in whatever order its ranks are given") {
  Files files;
  const auto want = open_trace(files.whole);
  for (const auto& order : {files.ranks, std::vector<std::string>{files.ranks[1], files.ranks[0]}}) {
    CHECK(files.merge(order) == "merged");
    const auto got = open_trace(files.dir / "merged.h5");
    CHECK(got->source() == want->source());
    CHECK(got->provenance() == want->provenance());
    check_recorded(*got, *want);
  }
}

TEST_CASE("ranks of different rollouts, a rank twice, a rank missing: refused by name") {
  Files files;
  CHECK(has(files.merge({files.ranks[0], files.ranks[0]}), "rank 0 is " + files.ranks[0] + " too"));
  CHECK(has(files.merge({files.ranks[0], files.ranks[1], files.ranks[1]}),
            "rank 0 of 2: expected 2 files, one a rank, found 3"));
  CHECK(has(files.merge({files.ranks[0], files.whole}), "tp_rank: missing"));
  CHECK(has(files.merge_with([](TraceData& d) { d.header.model.scale = 1; }), "/model differs from "));
  CHECK(has(files.merge_with([](TraceData& d) { d.header.params[1].norm_weight[0] ^= std::byte{1}; }),
            "/params/1/norm_weight differs"));
  CHECK(has(files.merge_with([](TraceData& d) { d.header.events[2].block = 5; }), "/events differs"));
  CHECK(has(files.merge_with([](TraceData& d) { d.header.snapshots[0].block = 3; }), "/recorded/state differs"));
  CHECK(has(files.merge_with([](TraceData& d) { d.plans[3].sequence[1] = 77; }), "/steps, step 3 differs"));
  CHECK(has(files.merge_with([](TraceData& d) {
    d.header.taps.remove(Tap::beta);
    std::erase_if(d.taps, [](const auto& tap) { return std::get<0>(tap.first) == Tap::beta; });
  }),
            "/recorded/0 differs"));
  CHECK(files.merge_with([](TraceData& d) { d.header.params[0].A_log[3] += 1; }) == "merged");  // a head's own
  CHECK_THROWS_WITH_AS(split_ranks(files.whole, std::vector<std::string>(3, files.dir / "x.h5"), {}),
                       doctest::Contains("expected a number of ranks that divides 2 key heads"), Error);
}
