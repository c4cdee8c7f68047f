// Reports as text, JSON and page: what they say of mechanisms and odd words, and that no text in them can become markup.
#include <doctest/doctest.h>

#include <gdnsim/report.hpp>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

using namespace gdnsim;

namespace {

/// A replay that diverged at one word.
Report diverged(DiffClass kind, std::uint32_t got, std::uint32_t want) {
  Divergence d;
  d.step = 5, d.layer = 1, d.layer_id = 3, d.tap = Tap::core_out, d.row = 0, d.block = 2, d.head = 1, d.element = 4;
  d.type = DType::f32, d.got = got, d.want = want, d.kind = kind, d.ulp = ulp_distance(d.type, got, want);
  d.near = {3, {7, got}, {7, want}};
  Report report;
  report.command = "replay";
  report.files = {"trace.h5"};
  report.verdict = Verdict::diverged;
  report.carried.done = true;
  report.carried.first = d;
  report.carried.counts[static_cast<std::size_t>(Tap::core_out)].compared = 1;
  return report;
}

std::string text_of(const Report& report) {
  std::ostringstream out;
  print_text(out, report);
  return out.str();
}

bool has(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

}  // namespace

TEST_CASE("report: scopes in words") {
  CHECK(scope_text({}) == "everywhere");
  Scope scope;
  scope.from_step = scope.to_step = 5, scope.layer = 0, scope.row = 2;
  CHECK(scope_text(scope) == "step 5, layer 0, row 2");
  scope.to_step = 7;
  CHECK(scope_text(scope) == "steps 5 to 7, layer 0, row 2");
  scope.to_step = -1;
  CHECK(scope_text(scope) == "from step 5 on, layer 0, row 2");
  scope = {};
  scope.to_step = 3, scope.block = 4, scope.head = 1;
  CHECK(scope_text(scope) == "up to step 3, block 4, head 1");
}

TEST_CASE("report: a replay names the command that looks for the mechanism; a search says what it found") {
  Report report = diverged(DiffClass::rounding, 0x3F800001, 0x3F800000);
  CHECK(has(text_of(report), "mechanism\n  not searched: 'gdnsim explain' names it\n"));
  report.searched = true;
  Mechanism wrong_block;
  wrong_block.id = "wrong-block", wrong_block.scope.layer = 1;
  wrong_block.says = "row 0 read the state of block 2", wrong_block.evidence = "64 of 64 words";
  report.mechanisms = {wrong_block};
  report.tried = {"exp: 1 re-run"};
  std::string text = text_of(report);
  CHECK(has(text,
            "  wrong-block (layer 1)\n    says      row 0 read the state of block 2\n    evidence  64 of 64 words\n"
            "    proof     a re-run under it gives the recorded bits\n"));
  CHECK_FALSE(has(text, "tried"));
  CHECK_FALSE(has(text, "not searched"));
  report.mechanisms[0].evidence.clear();
  for (int i = 0; i < 60; ++i) report.mechanisms[0].evidence += "words ";
  std::istringstream lines(text_of(report));
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 120);
  Mechanism unexplained;
  unexplained.id = "unexplained", unexplained.proof = Proof::pattern;
  report.mechanisms.push_back(unexplained);
  for (int i = 0; i < 20; ++i) report.tried.push_back("hypothesis " + std::to_string(i));
  text = text_of(report);
  CHECK(has(text, "no re-run gives the recorded bits"));
  CHECK(has(text, "  tried       exp: 1 re-run\n              hypothesis 0\n"));
  CHECK(has(text, "and 11 more"));
  CHECK_FALSE(has(text, "hypothesis 19"));
}

TEST_CASE("report: nothing differs, nothing to explain") {
  Report report;
  report.command = "explain";
  report.files = {"trace.h5"};
  report.verdict = Verdict::match;
  report.searched = true;
  CHECK(has(text_of(report), "none: nothing differs"));
}

TEST_CASE("report: classes that a name alone would not explain") {
  CHECK(has(text_of(diverged(DiffClass::value, 0xBF800000, 0x3F800000)), "of opposite sign, not a rounding"));
  CHECK(has(text_of(diverged(DiffClass::value, 0x40800000, 0x3F800000)), "too far apart for a rounding"));
  CHECK(has(text_of(diverged(DiffClass::poison, 0x7FC00000, 0x3F800000)), "copied or never initialised"));
  CHECK(has(text_of(diverged(DiffClass::rounding, 0x3F800001, 0x3F800000)), "class    rounding, 1 ULP\n"));
  CHECK(has(text_of(diverged(DiffClass::rounding, 0x3F800001, 0x3F800000)), "elements 3:5  =X  "));
}

TEST_CASE("report: mechanisms in JSON have the scope fields that apply and no others") {
  Report report = diverged(DiffClass::rounding, 0x3F800001, 0x3F800000);
  Mechanism m;
  m.id = "exp", m.scope.from_step = 0, m.scope.to_step = 9, m.proof = Proof::fact;
  report.mechanisms = {m};
  const auto json = to_json(report)["mechanisms"][0];
  CHECK(json["scope"].dump() == R"({"from_step":0,"to_step":9})");
  CHECK(json["proof"] == "fact");
}

TEST_CASE("report: JSON text is the same JSON, lists of numbers on one line") {
  const auto json = nlohmann::ordered_json::parse(
      R"({"a": [1, 2, 3], "b": [], "c": {}, "d": [[1, 2, {"x": 3}], [4]], "e": {"f": null, "g": "<&\u0000>"}, "h": true})");
  const std::string text = json_text(json);
  CHECK(nlohmann::ordered_json::parse(text) == json);
  CHECK(has(text, "\n  \"a\": [1,2,3],\n"));
  CHECK(has(text, "\n    [1,2,{\"x\":3}],\n"));
}

TEST_CASE("report: the page holds the report's JSON, and no text can leave it") {
  Report report = diverged(DiffClass::rounding, 0x3F800001, 0x3F800000);
  report.notes = {"</script><script>alert(1)</script>", "<!--", "REPORT_JSON", "a byte \xFF that is no UTF-8"};
  const std::string page = to_html(report), open = R"(<script type="application/json" id="report">)";
  const std::size_t from = page.find(open) + open.size(), to = page.find("</script>", from);
  REQUIRE(from > open.size());
  const std::string data = page.substr(from, to - from);
  CHECK(std::ranges::count(data, '<') == 0);
  CHECK(nlohmann::ordered_json::parse(data)["notes"][0] == report.notes[0]);
  CHECK(nlohmann::ordered_json::parse(data)["notes"][2] == "REPORT_JSON");
  CHECK_FALSE(has(page, "alert(1)</script>"));
  CHECK_FALSE(has(page, "SCRIPT_HASH"));
  for (const char* outside : {"http:", "https:", "url(", "@import", "src=", "href="}) {
    CAPTURE(outside);
    CHECK_FALSE(has(page, outside));
  }
}
