// Contracts as values: the presets, and one table of fields that printing, parsing, logging and searching all read.
#include "gdnsim/contract.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <sstream>

#include "gdnsim/refused.hpp"
#include "gdnsim/regular_file.hpp"

namespace gdnsim {
namespace {

using Words = std::vector<std::string_view>;

constexpr int kMaxGroup = 4096;

/// One field: its words (empty: a whole number in low..high), and how to get and set it as a number.
struct Field {
  std::string name;
  Words words;
  int low = 0, high = 0;
  std::function<int(const Contract&)> get;
  std::function<void(Contract&, int)> set;
};

template <class Enum>
Field word_field(std::string name, Enum Contract::*member, Words words) {
  return {std::move(name),
          std::move(words),
          0,
          0,
          [member](const Contract& c) { return static_cast<int>(c.*member); },
          [member](Contract& c, int value) { c.*member = static_cast<Enum>(value); }};
}

template <class Enum>
Field dot_field(const std::string& dot_name, Dot Contract::*dot, const std::string& name, Enum Dot::*member,
                Words words) {
  return {dot_name + "." + name,
          std::move(words),
          0,
          0,
          [dot, member](const Contract& c) { return static_cast<int>(c.*dot.*member); },
          [dot, member](Contract& c, int value) { c.*dot.*member = static_cast<Enum>(value); }};
}

void add_dot(std::vector<Field>& fields, const std::string& name, Dot Contract::*dot) {
  fields.push_back(
      dot_field(name, dot, "lane", &Dot::lane, {"1", "2", "4", "8", "16", "row/32", "16-bytes", "whole", "by-rows"}));
  fields.push_back(dot_field(name, dot, "order", &Dot::order, {"sequential", "swapped"}));
  fields.push_back(dot_field(name, dot, "product", &Dot::product, {"rounded", "fma"}));
  fields.push_back(dot_field(name, dot, "exchange", &Dot::exchange, {"plain", "fused"}));
  fields.push_back(dot_field(name, dot, "tree", &Dot::tree, {"widest", "narrowest", "sequential"}));
  fields.push_back({name + ".group",
                    {},
                    0,
                    kMaxGroup,
                    [dot](const Contract& c) { return (c.*dot).group; },
                    [dot](Contract& c, int value) { (c.*dot).group = value; }});
  fields.push_back(dot_field(name, dot, "groups", &Dot::groups, {"widest", "narrowest", "sequential"}));
}

std::vector<Field> make_fields() {
  std::vector<Field> f;
  f.push_back(word_field("shapes", &Contract::shapes, {"any", "triton", "triton-v128"}));
  f.push_back(word_field("conv_product", &Contract::conv_product, {"rounded", "f32", "fma", "rounded-or-fma"}));
  f.push_back(word_field("conv_taps", &Contract::conv_taps, {"oldest-first", "newest-first"}));
  f.push_back(word_field("conv_bias", &Contract::conv_bias, {"first", "last"}));
  f.push_back(word_field("conv_sum", &Contract::conv_sum, {"f32", "act"}));
  f.push_back(word_field("exp", &Contract::exp, {"exact", "ex2"}));
  f.push_back(word_field("div", &Contract::div, {"ieee", "full", "reciprocal"}));
  f.push_back(word_field("sqrt", &Contract::sqrt, {"ieee", "approx"}));
  f.push_back(word_field("negate", &Contract::negate, {"sign", "subtract"}));
  f.push_back(word_field("softplus", &Contract::softplus, {"log1p", "log", "log-libdevice"}));
  f.push_back(word_field("beta", &Contract::beta, {"f32", "bf16"}));
  f.push_back(word_field("params", &Contract::params, {"f32", "bf16"}));
  f.push_back(word_field("decay", &Contract::decay, {"exp", "linear", "twice", "none"}));
  f.push_back(word_field("qk_norm", &Contract::qk_norm, {"divide", "multiply", "none"}));
  f.push_back(word_field("qk_eps", &Contract::qk_eps, {"sum", "mean", "max", "sum-k"}));
  f.push_back(word_field("scale", &Contract::scale, {"after", "before"}));
  add_dot(f, "qk_dot", &Contract::qk_dot);
  add_dot(f, "state_dot", &Contract::state_dot);
  f.push_back(
      dot_field("state_dot", &Contract::state_dot, "sequential_k", &Dot::sequential_k, {"none", "all", "last-pass"}));
  f.push_back(word_field("update", &Contract::update, {"multiply-add", "fma"}));
  f.push_back(word_field("state_store", &Contract::state_store, {"declared", "bf16"}));
  f.push_back(word_field("head_map", &Contract::head_map, {"grouped", "tiled"}));
  f.push_back(word_field("norm", &Contract::norm, {"vllm", "hf", "gate-first"}));
  f.push_back(word_field("rstd", &Contract::rstd, {"divide", "rsqrt"}));
  add_dot(f, "norm_dot", &Contract::norm_dot);
  f.push_back({"multiprocessors",
               {},
               1,
               65536,
               [](const Contract& c) { return c.multiprocessors; },
               [](Contract& c, int value) { c.multiprocessors = value; }});
  return f;
}

const std::vector<Field>& fields() {
  static const std::vector<Field> table = make_fields();
  return table;
}

const Field& field_named(std::string_view name) {
  for (const Field& field : fields())
    if (field.name == name) return field;
  throw error("contract: unknown field '", name, "'");
}

std::string value_text(const Field& field, const Contract& contract) {
  const int value = field.get(contract);
  return field.words.empty() ? std::to_string(value) : std::string(field.words[static_cast<std::size_t>(value)]);
}

std::optional<int> whole_number(std::string_view text) {
  if (text.empty() || text.size() > 6 || !std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; }))
    return std::nullopt;
  return std::stoi(std::string(text));
}

// ---- presets (docs/contracts.md) ----

Contract triton_sm90() {
  Contract c;
  c.name = "triton-sm90";
  c.shapes = Shapes::triton;
  c.conv_product = ConvProduct::rounded_or_fma;
  c.exp = Exp::ex2;
  c.div = Div::full;
  c.sqrt = Sqrt::approx;
  c.negate = Negate::subtract;
  c.softplus = Softplus::log_libdevice;
  const Dot lanes{.lane = Lane::row_32nd, .order = LaneOrder::swapped, .product = Product::fma, .group = 0};
  c.qk_dot = c.state_dot = c.norm_dot = lanes;
  c.state_dot.lane = Lane::bytes16;
  c.update = Update::fma;
  return c;
}

Contract mixed_of(Contract c) {
  c.name = "triton-sm90-mixed";
  c.qk_norm = QkNorm::multiply;
  c.qk_dot = {.lane = Lane::one, .exchange = Exchange::fused, .group = 32, .groups = Tree::widest};
  return c;
}

/// The kernel that computes the gates as well (rule T12): vLLM 0.26 on sends the decode rows of a mixed step through it.
Contract gating_of(Contract mixed) {
  mixed.name = "triton-sm90-mixed-gating";
  mixed.state_dot.sequential_k = SequentialK::last_pass;
  return mixed;
}

/// vLLM 0.2x-0.3x replaces FLA's row kernel for the gated norm by a tiled one (rule N4).
Contract with_tiled_norm(Contract c) {
  c.name += "-tiled-norm";
  c.shapes = Shapes::triton_v128;
  c.rstd = Rstd::rsqrt;
  c.norm_dot.lane = Lane::by_rows;
  return c;
}

/// Triton with FP fusion switched off: every FMA becomes a multiply and an add in the same order.
Contract without_fma(Contract c) {
  c.name += "-nofma";
  c.conv_product = ConvProduct::rounded;
  c.qk_dot.product = c.state_dot.product = c.norm_dot.product = Product::rounded;
  c.update = Update::multiply_add;
  return c;
}

std::vector<Contract> make_presets() {
  const Contract decode = triton_sm90(), mixed = mixed_of(decode), gating = gating_of(mixed);
  return {Contract{},
          decode,
          mixed,
          with_tiled_norm(decode),
          with_tiled_norm(mixed),
          without_fma(decode),
          gating,
          with_tiled_norm(gating)};
}

// ---- the text form ----

constexpr std::string_view kMagic = "gdnsim-contract 1";

void print_contract(std::ostream& out, const Contract& contract) {
  out << "name = " << contract.name << "\n";
  for (const auto& [field, value] : contract_fields(contract)) out << field << " = " << value << "\n";
}

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

/// Reads `field = value` lines into one contract and remembers which fields were there.
class ContractParser {
 public:
  explicit ContractParser(std::string where) : where_(std::move(where)) {}

  void line(int number, const std::string& text) {
    const auto equals = text.find('=');
    if (equals == std::string::npos) throw error(where_, ":", number, ": expected 'field = value', found '", text, "'");
    const std::string name = trimmed(text.substr(0, equals)), value = trimmed(text.substr(equals + 1));
    if (std::ranges::find(seen_, name) != seen_.end())
      throw error(where_, ":", number, ": field '", name, "' given twice");
    seen_.push_back(name);
    try {
      name == "name" ? void(contract_.name = value) : set_contract_field(contract_, name, value);
    } catch (const Error& problem) {
      throw error(where_, ":", number, ": ", problem.what());
    }
  }

  Contract finish() const {
    for (const Field& field : fields())
      if (std::ranges::find(seen_, field.name) == seen_.end() && !added_later(field.name))
        throw error(where_, ": field '", field.name, "' is missing");
    require_own_name();
    return contract_;
  }

  bool started() const { return !seen_.empty(); }

 private:
  /// A report shows the name alone, so a preset's name must mean the preset.
  void require_own_name() const {
    const std::string& name = contract_.name;
    const auto plain = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
    };
    if (name.empty() || name.size() > 60 || !std::ranges::all_of(name, plain))
      throw error(where_, ": name: expected 1 to 60 letters, digits, '-', '_' or '.'");
    for (const Contract& preset : contract_presets())
      if (preset.name == name && preset != contract_)
        throw error(where_, ": name: '", name,
                    "' is a preset and means other choices; give this contract a name of its own");
  }

  std::string where_;
  Contract contract_;
  std::vector<std::string> seen_;
};

bool is_triton_width(int n) { return n == 32 || n == 64 || n == 128 || n == 256; }

}  // namespace

std::span<const Contract> contract_presets() {
  static const std::vector<Contract> presets = make_presets();
  return presets;
}

const Contract& contract_preset(std::string_view name) {
  std::string known;
  for (const Contract& preset : contract_presets()) {
    if (preset.name == name) return preset;
    known += (known.empty() ? "" : ", ") + preset.name;
  }
  throw error("contract: expected one of ", known, " or a contract file, found '", name, "'");
}

ContractSet contract_set(std::string_view name) {
  const Contract& decode = contract_preset(name);
  if (name == "triton-sm90") return {decode, contract_preset("triton-sm90-mixed")};
  if (name == "triton-sm90-tiled-norm") return {decode, contract_preset("triton-sm90-mixed-tiled-norm")};
  return {decode, decode};
}

std::string contract_name(const ContractSet& contracts) {
  const std::string &decode = contracts.decode.name, &mixed = contracts.mixed.name;
  if (decode == mixed) return decode;
  for (const Contract& preset : contract_presets())
    if (preset.name == decode && contract_set(decode) == contracts) return decode;
  return decode + "+" + mixed;
}

std::vector<std::pair<std::string, std::string>> contract_fields(const Contract& contract) {
  std::vector<std::pair<std::string, std::string>> result;
  for (const Field& field : fields()) result.emplace_back(field.name, value_text(field, contract));
  return result;
}

std::vector<std::string> contract_field_values(std::string_view name) {
  const Field& field = field_named(name);
  return {field.words.begin(), field.words.end()};
}

bool added_later(std::string_view field) {
  return field == "decay" || field == "state_dot.sequential_k" || field == "conv_sum";
}

void set_contract_field(Contract& contract, std::string_view name, std::string_view value) {
  const Field& field = field_named(name);
  if (field.words.empty()) {
    const auto number = whole_number(value);
    if (!number || *number < field.low || *number > field.high)
      throw error("contract: ", name, ": expected a number ", field.low, "..", field.high, ", found '", value, "'");
    return field.set(contract, *number);
  }
  const auto word = std::ranges::find(field.words, value);
  if (word != field.words.end()) return field.set(contract, static_cast<int>(word - field.words.begin()));
  std::string known;
  for (std::string_view each : field.words) known += (known.empty() ? "" : ", ") + std::string(each);
  throw error("contract: ", name, ": expected one of ", known, ", found '", value, "'");
}

std::string to_text(const ContractSet& contracts) {
  std::ostringstream out;
  out << kMagic << "\n";
  if (contracts.decode == contracts.mixed) {
    print_contract(out, contracts.decode);
  } else {
    out << "[decode]\n";
    print_contract(out, contracts.decode);
    out << "[mixed]\n";
    print_contract(out, contracts.mixed);
  }
  return out.str();
}

ContractSet contracts_from_text(const std::string& text, const std::string& where) {
  std::istringstream in(text);
  std::string line;
  int number = 1;
  if (!std::getline(in, line) || trimmed(line) != kMagic)
    throw error(where, ":1: expected '", kMagic, "', found '", trimmed(line).substr(0, 60), "'");
  ContractParser both(where), decode(where), mixed(where);
  ContractParser* current = &both;
  while (std::getline(in, line)) {
    ++number;
    const std::string content = trimmed(line);
    if (content.empty() || content[0] == '#') continue;
    if (content == "[decode]")
      current = &decode;
    else if (content == "[mixed]")
      current = &mixed;
    else
      current->line(number, content);
  }
  if (both.started() && (decode.started() || mixed.started()))
    throw error(where, ": expected either one contract or the sections [decode] and [mixed], found both");
  if (both.started()) return {both.finish(), both.finish()};
  return {decode.finish(), mixed.finish()};
}

ContractSet load_contracts(const std::string& name_or_file) {
  for (const Contract& preset : contract_presets())
    if (preset.name == name_or_file)
      return contract_set(name_or_file);
    else if (name_or_file.starts_with(preset.name + "+"))
      return {preset, contract_preset(name_or_file.substr(preset.name.size() + 1))};
  refuse_irregular(name_or_file);
  std::ifstream file(name_or_file, std::ios::binary);
  const int failed = errno;
  std::error_code none;
  const bool is_path =
      name_or_file.find_first_of("./") != std::string::npos || std::filesystem::exists(name_or_file, none);
  if (!file && is_path) throw error(name_or_file, ": expected a contract file: ", std::strerror(failed));
  if (!file) contract_preset(name_or_file);  // throws, with the list of names
  std::string text(1 << 16, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return contracts_from_text(text, name_or_file);
}

std::string undefined_because(const Contract& contract, const Model& model) {
  for (const Dot* dot : {&contract.qk_dot, &contract.state_dot, &contract.norm_dot})
    if (dot->exchange == Exchange::fused && (dot->lane != Lane::one || dot->group < 2 || dot->group > 128))
      return "contract '" + contract.name + "': a fused exchange needs lanes of 1 and groups of 2 to 128";
  if (contract.shapes == Shapes::any) return "";
  if (contract.state_dot.sequential_k == SequentialK::last_pass &&
      static_cast<int>(512 / size_of(model.state_dtype)) < model.K)
    return "contract '" + contract.name + "' is not defined for K = 256 with an f32 state: a row then takes two warps";
  const bool widths = is_triton_width(model.K) && is_triton_width(model.V) &&
                      (contract.shapes != Shapes::triton_v128 || model.V == 128);
  if (widths && model.act_dtype == DType::bf16) return "";
  return "contract '" + contract.name + "' is defined for K and V of 32, 64, 128 or 256" +
         (contract.shapes == Shapes::triton_v128 ? " (V = 128 in its norm)" : "") +
         " and bf16 activations, not for K = " + std::to_string(model.K) + ", V = " + std::to_string(model.V) + ", " +
         std::string(name_of(model.act_dtype));
}

void require_defined(const Contract& contract, const Model& model) {
  const std::string reason = undefined_because(contract, model);
  if (!reason.empty()) throw Refused(reason);
}

}  // namespace gdnsim
