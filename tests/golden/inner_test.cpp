// The values inside the step of a first divergence: right words at the right place, recorded or not.
#include <doctest/doctest.h>

#include <gdnsim/contract.hpp>
#include <gdnsim/inner.hpp>
#include <gdnsim/recipe.hpp>
#include <gdnsim/record.hpp>
#include <gdnsim/trace.hpp>

#include "support/temp_dir.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

constexpr const char* kRecipe = R"({"schema": "gdnsim.recipe/1", "seed": 9, "steps": 6, "rows": 3,
  "model": {"num_k_heads": 2, "num_v_heads": 4, "head_k_dim": 32, "head_v_dim": 32, "num_blocks": 5, "layer_ids": [0]},
  "schedule": {"running": 2, "length": [3, 6]}})";

const TapSet kEverything{Tap::conv_acc, Tap::conv_out, Tap::q, Tap::k,        Tap::beta, Tap::g,
                         Tap::decay,    Tap::dot_k,    Tap::u, Tap::core_out, Tap::rstd, Tap::norm_out};

struct Found {
  ReplayResult result;
  std::vector<InnerValue> inner;
  const InnerValue* named(const std::string& name) const {
    for (const InnerValue& value : inner)
      if (value.name == name) return &value;
    return nullptr;
  }
};

/// Records the recipe under golden and replays it under golden with one change.
Found replay_changed(const TapSet& taps, const std::function<void(Contract&)>& change, Mode mode = Mode::both) {
  const TempDir folder;
  const std::string path = folder / "inner.h5";
  const auto backend = make_golden({});
  const auto stream = make_recipe_stream(parse_recipe(kRecipe, "test"));
  RecordOptions record;
  record.taps = taps;
  record.snapshot_every = 1;
  record_trace(*stream, *backend, contract_set("golden"), path, record);
  const auto trace = open_trace(path);
  ReplayOptions options;
  options.mode = mode;
  options.contracts = contract_set("golden");
  change(options.contracts->decode), change(options.contracts->mixed);
  Found found{replay(*trace, *trace, *backend, options), {}};
  found.inner = inner_values(*trace, *trace, *backend, found.result);
  return found;
}

void bf16_beta(Contract& contract) { contract.beta = Beta::bf16; }

}  // namespace

TEST_CASE("inner: with every tap recorded, what precedes the divergence agrees and it itself shows both words") {
  const Found found = replay_changed(kEverything, bf16_beta);
  REQUIRE(found.result.first().has_value());
  const Divergence& first = *found.result.first();
  REQUIRE(first.tap == Tap::beta);
  REQUIRE(found.named("beta") != nullptr);
  CHECK(found.named("beta")->word == first.got);
  CHECK(found.named("beta")->recorded == first.want);
  REQUIRE(found.named("decay") != nullptr);
  CHECK(found.named("decay")->word == found.named("decay")->recorded);
  CHECK(found.named("q_norm")->value == doctest::Approx(0.1767767).epsilon(1e-5));  // 1/sqrt(32), the scale
  CHECK(found.named("k_norm")->value == doctest::Approx(1).epsilon(1e-5));
}

TEST_CASE("inner: the same words without any inner tap recorded, found through a later tap") {
  for (const Mode mode : {Mode::carried, Mode::local}) {
    const Found few = replay_changed({Tap::conv_out, Tap::core_out}, bf16_beta, mode);
    const Found all = replay_changed(kEverything, bf16_beta, mode);
    const Divergence &late = *few.result.first(), &early = *all.result.first();
    REQUIRE(late.tap == Tap::state);
    REQUIRE(late.step == early.step);
    REQUIRE(late.row == early.row);
    REQUIRE(late.head == early.head);
    CHECK(few.named("beta")->word == all.named("beta")->word);
    CHECK_FALSE(few.named("beta")->recorded.has_value());
    CHECK(few.named("state_before") != nullptr);
    CHECK(few.named("u")->element == late.element / 32);
    CHECK(few.named("k")->element == late.element % 32);
    CHECK(few.named("core_out")->recorded.has_value());
  }
}

TEST_CASE("inner: a conv divergence shows the window before, the new input and the sum") {
  const Found found =
      replay_changed({Tap::conv_acc, Tap::conv_out}, [](Contract& c) { c.conv_product = ConvProduct::f32; });
  REQUIRE(found.result.first().has_value());
  const Divergence& first = *found.result.first();
  REQUIRE(first.tap == Tap::conv_acc);
  int windows = 0;
  for (const InnerValue& value : found.inner) windows += value.name == "window_before";
  CHECK(windows == 3);
  REQUIRE(found.named("conv_acc") != nullptr);
  CHECK(found.named("conv_acc")->word == first.got);
  CHECK(found.named("conv_acc")->recorded == first.want);
  CHECK(found.named("x")->element == first.element);
  CHECK(found.named("conv_out") != nullptr);
}

TEST_CASE("inner: nothing differs, nothing is shown") {
  CHECK(replay_changed(kEverything, [](Contract&) {}).inner.empty());
}
