// Sweeps as text: cells in order, what is laid over what, what changes the digest and what does not.
#include <gdnsim/drift.hpp>
#include <gdnsim/error.hpp>

#include <string>

#include <doctest/doctest.h>

using namespace gdnsim;

namespace {

constexpr const char* kBase =
    R"({"rows": 1, "model": {"num_k_heads": 1, "num_v_heads": 1, "head_k_dim": 4, "head_v_dim": 4, "num_blocks": 2,
     "layer_ids": [3, 8]}, "params": {"A_log": {"uniform": [-4, -2]}}})";
constexpr const char* kPairs =
    R"([{"name": "state", "reference": {"contract": "golden"}, "other": {"contract": "golden", "state": "bf16"}},
        {"name": "beta", "reference": "f64", "other": {"contract": "golden", "set": {"beta": "bf16"}}}])";
constexpr const char* kAxes =
    R"([{"name": "gate", "values": [{"name": "drawn"}, {"name": "-9", "set": {"params": {"A_log": {"constant": -9}}}}]},
        {"name": "z", "values": [{"name": "none", "set": {"inputs": {"z": null}}}, {"name": "some"}]}])";

std::string text(const std::string& more = "", const std::string& pairs = kPairs, const std::string& axes = kAxes) {
  return std::string(R"({"schema": "gdnsim.drift/1", "base": )") + kBase +
         R"(, "steps": 10, "seeds": [7, 5], "axes": )" + axes + R"(, "pairs": )" + pairs + more + "}";
}

DriftSweep parse(const std::string& sweep) { return parse_sweep(sweep, "s.json", "."); }

std::string refusal(const std::string& sweep) {
  try {
    (void)parse(sweep);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

bool has(const std::string& line, const std::string& words) { return line.find(words) != line.npos; }

}  // namespace

TEST_CASE("the product of axes and pairs, the first axis slowest") {
  const DriftSweep sweep = parse(text());
  REQUIRE(sweep.cells.size() == 8);
  CHECK(sweep.cells[0].name == "drawn, none, state");
  CHECK(sweep.cells[1].name == "drawn, none, beta");
  CHECK(sweep.cells[2].name == "drawn, some, state");
  CHECK(sweep.cells[4].name == "-9, none, state");
  CHECK(sweep.units().size() == 8 * 2 * 2);
  CHECK(sweep.units()[3].layer == 1);
  CHECK(sweep.units()[3].seed == 1);
}

TEST_CASE("parts of a recipe are merged, values replaced, null is a value") {
  const DriftSweep sweep = parse(text());
  const auto recipe = [&](std::size_t cell) { return *sweep.streams[sweep.cells[cell].stream].recipe; };
  CHECK(recipe(0).params.A_log == Draw{Draw::Kind::uniform, -4, -2});
  CHECK(recipe(4).params.A_log.kind == Draw::Kind::constant);
  CHECK(recipe(4).params.A_log.first == -9);
  CHECK_FALSE(recipe(0).inputs.z.has_value());
  CHECK(recipe(2).inputs.z.has_value());
  CHECK(recipe(2).steps == 10);
  CHECK(open_drift_stream(sweep, {0, 1, 0})->steps() == 10);
}

TEST_CASE("sides") {
  const DriftSweep sweep = parse(text());
  CHECK(sweep.pairs[0].other.state == DType::bf16);
  CHECK_FALSE(sweep.pairs[0].reference.state.has_value());
  CHECK_FALSE(sweep.pairs[1].reference.contracts.has_value());
  CHECK(sweep.pairs[1].other.contracts->decode.beta == Beta::bf16);
  CHECK(sweep.pairs[1].other.contracts->mixed.beta == Beta::bf16);
}

TEST_CASE("points are every Nth step and the last") {
  CHECK(parse(text()).points().size() == 10);
  CHECK(parse(text(R"(, "measure": {"every": 4})")).points() == std::vector<std::int32_t>{3, 7, 9});
}

TEST_CASE("the digest is that of what is computed") {
  const std::string digest = parse(text()).digest;
  CHECK(digest.size() == 32);
  CHECK(parse(text(R"(, "note": "words")")).digest == digest);
  CHECK(parse(text(R"(, "measure": {"every": 1})")).digest == digest);
  CHECK(parse(text(R"(, "measure": {"every": 2})")).digest != digest);
  CHECK(parse(text(R"(, "thresholds": [0.5])")).digest != digest);
  std::string other = kPairs;
  other.replace(other.rfind("bf16"), 4, "f32");
  CHECK(parse(text("", other)).digest != digest);
}

TEST_CASE("refusals name the key") {
  CHECK(has(refusal(text(R"(, "threshold": [1])")), "s.json: threshold: expected only known keys"));
  CHECK(has(refusal(text(R"(, "thresholds": [0.1, 0.1])")), "thresholds: expected numbers above 0, ascending"));
  CHECK(has(refusal(text("", "[]")), "pairs: expected an array of 1 to 1024 pairs"));
  CHECK(
      has(refusal(text("", R"([{"name": "x", "reference": "f32", "other": "f64"}])")), "pairs[0].reference: expected"));
  CHECK(
      has(refusal(text("", R"([{"name": "x", "reference": "f64", "other": {"contract": "golden", "state": "f16"}}])")),
          "pairs[0].other.state: expected \"f32\" or \"bf16\""));
  CHECK(has(refusal(text(
                "", R"([{"name": "x", "reference": "f64", "other": {"contract": "golden", "set": {"beta": "f8"}}}])")),
            "pairs[0].other.contract: "));
  CHECK(has(refusal(text("", R"([{"name": "x", "reference": "f64", "other": {"contract": "triton-sm90"}}])")),
            "cell \"drawn, none, x\": "));
  CHECK(has(refusal(text("", kPairs, R"([{"name": "pair", "values": [{"name": "a"}]}])")), "axes[0].name"));
  CHECK(has(refusal(text("", kPairs, R"([{"name": "x", "values": []}])")), "axes[0].values: expected an array"));
  CHECK(
      has(refusal(text("", kPairs, R"([{"name": "x", "values": [{"name": "a", "set": {"seed": 3}}]}])")), "set.seed"));
  CHECK(has(refusal(text("", kPairs, R"([{"name": "x", "values": [{"name": "a", "trace": "no.h5"}]}])")), "no.h5"));
}
