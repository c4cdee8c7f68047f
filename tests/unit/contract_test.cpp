// Contracts: presets, the table of fields, the text form and its errors.
#include <doctest/doctest.h>

#include <gdnsim/contract.hpp>
#include <gdnsim/error.hpp>

#include <fstream>
#include <set>

#include "support/temp_dir.hpp"

using namespace gdnsim;

namespace {

std::string message_of(const auto& call) {
  try {
    call();
  } catch (const Error& problem) {
    return problem.what();
  }
  return "";
}

std::string without_line(const std::string& text, const std::string& start) {
  const auto at = text.find("\n" + start);
  return text.substr(0, at) + text.substr(text.find('\n', at + 1));
}

Model model_of(int K, int V, DType act = DType::bf16) {
  Model model;
  model.H = 2, model.HV = 4, model.K = K, model.V = V, model.W = 4, model.act_dtype = act;
  model.num_blocks = 4;
  model.layer_ids = {0};
  return model;
}

}  // namespace

TEST_CASE("contract: the default value is the golden preset, and preset names are unique") {
  CHECK(contract_presets()[0] == Contract{});
  std::set<std::string> names;
  for (const Contract& preset : contract_presets()) CHECK(names.insert(preset.name).second);
  CHECK(names.contains("triton-sm90"));
  CHECK(names.contains("triton-sm90-mixed"));
  CHECK(contract_set("triton-sm90").mixed.name == "triton-sm90-mixed");
  CHECK(contract_set("golden").mixed.name == "golden");
}

TEST_CASE("contract: the presets differ where they should and nowhere else") {
  const auto differing = [](const std::string& a, const std::string& b) {
    std::set<std::string> fields;
    const auto x = contract_fields(contract_preset(a)), y = contract_fields(contract_preset(b));
    for (std::size_t i = 0; i < x.size(); ++i)
      if (x[i] != y[i]) fields.insert(x[i].first);
    return fields;
  };
  CHECK(differing("triton-sm90", "triton-sm90-mixed") == std::set<std::string>{"qk_norm", "qk_dot.lane", "qk_dot.order",
                                                                               "qk_dot.product", "qk_dot.exchange",
                                                                               "qk_dot.group", "qk_dot.groups"});
  CHECK(differing("triton-sm90-mixed", "triton-sm90-mixed-gating") == std::set<std::string>{"state_dot.sequential_k"});
  CHECK(differing("triton-sm90", "triton-sm90-tiled-norm") == std::set<std::string>{"shapes", "rstd", "norm_dot.lane"});
  CHECK(differing("triton-sm90", "triton-sm90-nofma") ==
        std::set<std::string>{"conv_product", "qk_dot.product", "state_dot.product", "norm_dot.product", "update"});
}

TEST_CASE("contract: every value of every field survives the text form") {
  int tried = 0;
  for (const auto& [field, value] : contract_fields(Contract{})) {
    for (const std::string& other : contract_field_values(field)) {
      Contract changed;
      changed.name = "mine";
      set_contract_field(changed, field, other);
      const ContractSet set{changed, changed};
      CHECK(contracts_from_text(to_text(set), "text") == set);
      ++tried;
    }
  }
  CHECK(tried > 80);
  for (const Contract& preset : contract_presets())
    CHECK(contracts_from_text(to_text(contract_set(preset.name)), "text") == contract_set(preset.name));
}

TEST_CASE("contract: two paths are written as two sections") {
  const std::string text = to_text(contract_set("triton-sm90"));
  CHECK(text.find("[decode]\n") != std::string::npos);
  CHECK(text.find("[mixed]\n") != std::string::npos);
  CHECK(to_text(contract_set("golden")).find('[') == std::string::npos);
}

TEST_CASE("contract: what is wrong with a text is said with its line") {
  const std::string good = to_text(contract_set("golden"));
  const auto message = [](const std::string& text) { return message_of([&] { contracts_from_text(text, "f"); }); };
  CHECK(message("nonsense\n") == "f:1: expected 'gdnsim-contract 1', found 'nonsense'");
  CHECK(message("") == "f:1: expected 'gdnsim-contract 1', found ''");
  CHECK(message(good + "colour = blue\n").find("unknown field 'colour'") != std::string::npos);
  CHECK(message(good + "exp = ex2\n").find("field 'exp' given twice") != std::string::npos);
  CHECK(message(without_line(good, "exp = ")) == "f: field 'exp' is missing");
  for (const char* later :
       {"conv_sum = ", "decay = ", "state_dot.sequential_k = "})  // files without them mean their default
    CHECK(message(without_line(good, later)) == "");
  CHECK(message("gdnsim-contract 1\nexp = fast\n") == "f:2: contract: exp: expected one of exact, ex2, found 'fast'");
  CHECK(message("gdnsim-contract 1\nmultiprocessors = 0\n").find("expected a number 1..65536, found '0'") !=
        std::string::npos);
  CHECK(message("gdnsim-contract 1\njust words\n").find("f:2: expected 'field = value'") == 0);
  CHECK(message(good + "[mixed]\nname = x\n").find("found both") != std::string::npos);
}

TEST_CASE("contract: comments and blank lines are nothing") {
  std::string text = to_text(contract_set("golden"));
  text.insert(text.find('\n') + 1, "\n# a comment\n   \n");
  CHECK(contracts_from_text(text, "f") == contract_set("golden"));
}

TEST_CASE("contract: --contract takes a name or a file, and says what it knows otherwise") {
  const test::TempDir dir;
  const std::string path = dir / "my.contract";
  std::ofstream(path) << to_text(contract_set("triton-sm90-mixed"));
  CHECK(load_contracts(path).decode.name == "triton-sm90-mixed");
  CHECK(load_contracts("golden") == contract_set("golden"));
  const std::string message = message_of([] { load_contracts("tritn"); });
  CHECK(message.find("expected one of golden, triton-sm90") != std::string::npos);
  CHECK(message.find("'tritn'") != std::string::npos);
}

TEST_CASE("contract: shapes that a preset does not define are refused by name") {
  CHECK(undefined_because(contract_preset("golden"), model_of(8, 5, DType::f32)).empty());
  CHECK(undefined_because(contract_preset("triton-sm90"), model_of(128, 64)).empty());
  CHECK(undefined_because(contract_preset("triton-sm90"), model_of(96, 128)).find("not for K = 96, V = 128") !=
        std::string::npos);
  CHECK_FALSE(undefined_because(contract_preset("triton-sm90"), model_of(128, 128, DType::f16)).empty());
  CHECK_FALSE(undefined_because(contract_preset("triton-sm90-tiled-norm"), model_of(64, 64)).empty());
  Model wide = model_of(256, 128);
  CHECK(undefined_because(contract_preset("triton-sm90-mixed-gating"), wide).find("takes two warps") !=
        std::string::npos);
  wide.state_dtype = DType::bf16;
  CHECK(undefined_because(contract_preset("triton-sm90-mixed-gating"), wide).empty());
  CHECK_THROWS_AS(require_defined(contract_preset("triton-sm90"), model_of(96, 128)), Error);
}
