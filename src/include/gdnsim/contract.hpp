// An arithmetic contract says how each operation of the decode step rounds. The equations do not fix the bits; this does.
// A contract is a plain value: printable, parseable, comparable, stored in every log. Source: docs/contracts.md.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gdnsim/types.hpp"

namespace gdnsim {

// How the product of the conv window and the weight meets the f32 accumulator (rules C1, T5).
enum class ConvProduct : std::uint8_t {
  rounded,         // rounded to the conv-state dtype, then added
  f32,             // rounded to f32, then added
  fma,             // fused into the add
  rounded_or_fma,  // rounded when the conv state is narrower than f32, else fused (Triton)
};
enum class ConvTaps : std::uint8_t { oldest_first, newest_first };
enum class ConvBias : std::uint8_t { first, last };
enum class ConvSum : std::uint8_t { f32, act };            // as summed, or rounded to the activation type before SiLU
enum class Exp : std::uint8_t { exact, ex2 };              // correctly rounded; ex2.approx(x * 0x3FB8AA3B)
enum class Div : std::uint8_t { ieee, full, reciprocal };  // IEEE; div.full.f32; a * rcp.approx.ftz(b)
enum class Sqrt : std::uint8_t { ieee, approx };           // IEEE; sqrt.approx.ftz / rsqrt.approx.ftz
enum class Negate : std::uint8_t { sign, subtract };       // flips the sign; 0 - x (differs in the sign of zero)
enum class Softplus : std::uint8_t {
  log1p,
  log,
  log_libdevice
};  // log1p(e^s); log(1 + e^s), exact or libdevice's ftz form
enum class Beta : std::uint8_t { f32, bf16 };
enum class Params : std::uint8_t { f32, bf16 };  // A_log and dt_bias as stored, or rounded through bf16
// How g, the log of the decay, becomes the factor of the state. All but exp are mistakes that engines made.
enum class Decay : std::uint8_t {
  exp,     // e^g
  linear,  // g itself: a log taken for the factor
  twice,   // e^(e^g): the factor taken for a log
  none,    // 1: the decay is lost
};
enum class QkNorm : std::uint8_t {
  divide,    // x / sqrt(n)
  multiply,  // (1/sqrt(n)) * x with the contract's rsqrt
  none,      // x, although the model asks for a norm
};
enum class QkEps : std::uint8_t {
  sum,   // sum + eps
  mean,  // sum/K + eps
  max,   // max(sqrt(sum), eps)
  sum_k  // sum + K*eps: the mean's eps, with unit length kept
};
enum class Scale : std::uint8_t { after, before };        // q * scale after its norm, or before it
enum class Update : std::uint8_t { multiply_add, fma };   // S + round(u*k), or fma(k, u, S)
enum class StateStore : std::uint8_t { declared, bf16 };  // as the state dtype says, or rounded through bf16 as well
enum class HeadMap : std::uint8_t { grouped, tiled };     // key head hv / (HV/H), or hv mod H
enum class Norm : std::uint8_t {
  vllm,
  hf,
  gate_first
};                                                 // rules N2, N3; gate_first multiplies the gate before the norm
enum class Rstd : std::uint8_t { divide, rsqrt };  // 1 / sqrt(m), or rsqrt(m)
enum class Shapes : std::uint8_t {
  any,
  triton,
  triton_v128
};  // which shapes the contract is defined for (`defined_for`)

/// How many consecutive elements one lane sums.
enum class Lane : std::uint8_t {
  one,       // 1
  two,       // 2
  four,      // 4
  eight,     // 8
  sixteen,   // 16
  row_32nd,  // row / 32 (Triton's norms)
  bytes16,   // 16 bytes of the state dtype: 4 of f32, 8 of bf16 (Triton's state dots)
  whole,     // the whole row: one sequential sum
  by_rows,   // 4 when the launch has one row a block, else 8 (rule N4; depends on the batch)
};
enum class LaneOrder : std::uint8_t { sequential, swapped };  // 0,1,2,3,...; or 1,0,2,3,... (Triton)
enum class Product : std::uint8_t { rounded, fma };           // inside a lane: round then add, or fused
enum class Exchange : std::uint8_t { plain, fused };  // fused: the first butterfly step is fma(x,y, round(x'*y'))
enum class Tree : std::uint8_t {
  widest,
  narrowest,
  sequential
};  // butterfly distances n/2..1, 1..n/2, or left to right
/// V rows whose S.k sums its lanes sequentially, whatever `order` says (rule D7). S.q never does.
enum class SequentialK : std::uint8_t {
  none,
  all,
  last_pass,  // those of the last pass of four warps over a tile of 32 rows; all where two passes or fewer do
};

/// The order in which a row of products is summed (rules D1-D7): cut in lanes; inside a lane sequential; `group` lanes
/// (0: all of them) are combined by `tree`; the groups' sums by `groups`. Missing lanes count as +0.
struct Dot {
  Lane lane = Lane::one;
  LaneOrder order = LaneOrder::sequential;
  Product product = Product::rounded;
  Exchange exchange = Exchange::plain;
  Tree tree = Tree::widest;
  int group = 32;
  Tree groups = Tree::sequential;
  SequentialK sequential_k = SequentialK::none;  // of state_dot alone
  bool operator==(const Dot&) const = default;
};

/// The default member values are the `golden` contract.
struct Contract {
  std::string name = "golden";
  Shapes shapes = Shapes::any;
  ConvProduct conv_product = ConvProduct::rounded;
  ConvTaps conv_taps = ConvTaps::oldest_first;
  ConvBias conv_bias = ConvBias::first;
  ConvSum conv_sum = ConvSum::f32;
  Exp exp = Exp::exact;
  Div div = Div::ieee;
  Sqrt sqrt = Sqrt::ieee;
  Negate negate = Negate::sign;
  Softplus softplus = Softplus::log1p;
  Beta beta = Beta::f32;
  Params params = Params::f32;
  Decay decay = Decay::exp;
  QkNorm qk_norm = QkNorm::divide;
  QkEps qk_eps = QkEps::sum;
  Scale scale = Scale::after;
  Dot qk_dot;     // sum of squares of q and k
  Dot state_dot;  // S.k and S.q
  Update update = Update::multiply_add;
  StateStore state_store = StateStore::declared;
  HeadMap head_map = HeadMap::grouped;
  Norm norm = Norm::vllm;
  Rstd rstd = Rstd::divide;
  Dot norm_dot;               // sum of squares of core_out in the gated norm
  int multiprocessors = 132;  // of the recording GPU; only Lane::by_rows reads it
  bool operator==(const Contract&) const = default;
};

/// Decode-only steps and the decode rows of mixed steps go through different kernels, so each path has its contract.
struct ContractSet {
  Contract decode;
  Contract mixed;
  const Contract& of(Path path) const { return path == Path::mixed ? mixed : decode; }
  bool operator==(const ContractSet&) const = default;
};

/// The presets, `golden` first.
std::span<const Contract> contract_presets();
/// The preset of that name; throws Error listing the names when there is none.
const Contract& contract_preset(std::string_view name);
/// A preset pair for a name: "triton-sm90" pairs with "triton-sm90-mixed" on mixed steps; every other name is its own pair.
ContractSet contract_set(std::string_view name);

/// The name that `load_contracts` understands for a set of presets: "golden", or "triton-sm90+golden" when the paths differ
/// from `contract_set` of the first.
std::string contract_name(const ContractSet& contracts);

/// (field, value) in declaration order, dots flattened as "state_dot.lane"; without the name. The words of the text form.
std::vector<std::pair<std::string, std::string>> contract_fields(const Contract& contract);
/// Sets one field from its words; throws Error naming the field and the values it knows.
void set_contract_field(Contract& contract, std::string_view field, std::string_view value);
/// Every value a field can have, in order (for listings and for searching).
std::vector<std::string> contract_field_values(std::string_view field);

/// True for a field that came after the first files were written: files without it mean its default.
bool added_later(std::string_view field);

/// The text form: "gdnsim-contract 1", then `field = value` lines. `contracts_from_text` refuses unknown and missing fields.
/// A file may hold two contracts, [decode] and [mixed]; with one, both paths use it.
std::string to_text(const ContractSet& contracts);
ContractSet contracts_from_text(const std::string& text, const std::string& where);
/// A preset's name; two of them as "DECODE+MIXED"; or a file written by `to_text`.
ContractSet load_contracts(const std::string& name_or_file);

/// Empty when the contract is defined for this model's shapes and types; else one line that says what it needs.
std::string undefined_because(const Contract& contract, const Model& model);
/// Throws Error with that line.
void require_defined(const Contract& contract, const Model& model);

}  // namespace gdnsim
