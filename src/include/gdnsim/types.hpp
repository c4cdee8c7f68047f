// The nouns of the field: element types, taps, and the shape and rules of one model's GDN layers.
//
// Shapes (docs/arithmetic.md, rule A1): H key heads, HV value heads (a multiple of H), K and V head widths, W conv width,
// dim = 2*H*K + HV*V conv channels packed flat q | k | v, each [head][width]. B rows in a step, T steps, L layers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gdnsim {

using Bytes = std::vector<std::byte>;

/// Stored element types. bf16 and f16 are moved as raw 16-bit words and widened only for arithmetic.
enum class DType : std::uint8_t { f32, bf16, f16 };

constexpr std::size_t size_of(DType type) { return type == DType::f32 ? 4 : 2; }
std::string_view name_of(DType type);
std::optional<DType> dtype_from(std::string_view name);

/// Named values inside one step, in execution order. A report never orders them any other way.
enum class Tap : std::uint8_t {
  conv_acc,    // f32 [dim]       the conv sum before the activation
  conv_out,    // act [dim]       activated and rounded: q | k | v
  conv_state,  // conv [W-1, dim] the rolled window, after the step
  q,           // f32 [H, K]      normalised and scaled
  k,           // f32 [H, K]      normalised
  beta,        // f32 [HV]
  g,           // f32 [HV]        log of the decay
  decay,       // f32 [HV]
  dot_k,       // f32 [HV, V]     S.k after the decay
  u,           // f32 [HV, V]     (v - S.k) * beta
  state,       // state [HV, V, K] after the step, as stored
  core_out,    // act [HV, V]
  rstd,        // f32 [HV]
  norm_out,    // act [HV, V]
};
inline constexpr std::size_t kTaps = 14;

std::string_view name_of(Tap tap);
std::optional<Tap> tap_from(std::string_view name);

/// A set of taps.
class TapSet {
 public:
  constexpr TapSet() = default;
  constexpr TapSet(std::initializer_list<Tap> taps) {
    for (Tap tap : taps) add(tap);
  }
  constexpr void add(Tap tap) { bits_ |= bit(tap); }
  constexpr void remove(Tap tap) { bits_ &= static_cast<std::uint16_t>(~bit(tap)); }
  constexpr bool has(Tap tap) const { return (bits_ & bit(tap)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const TapSet&) const = default;

 private:
  static constexpr std::uint16_t bit(Tap tap) { return static_cast<std::uint16_t>(1u << static_cast<unsigned>(tap)); }
  std::uint16_t bits_ = 0;
};

enum class Activation : std::uint8_t { none, silu };
enum class NormGate : std::uint8_t { silu, sigmoid };
/// Which index marks an inactive row: <= 0, == 0, or == -1 (then block 0 is an ordinary block).
enum class Sentinel : std::uint8_t { nonpositive, zero, minus_one };
/// What an inactive row's output buffer holds: +0 (compared) or whatever was there (not compared, counted).
enum class InactiveOut : std::uint8_t { zero, unwritten };
/// Which kernels ran a step: decode rows alone, decode rows beside a prefill, or something that cannot be replayed.
enum class Path : std::int8_t { decode = 0, mixed = 1, opaque = 2 };

std::string_view name_of(Activation value);
std::string_view name_of(NormGate value);
std::string_view name_of(Sentinel value);
std::string_view name_of(InactiveOut value);
std::string_view name_of(Path value);
std::optional<Activation> activation_from(std::string_view name);
std::optional<NormGate> norm_gate_from(std::string_view name);
std::optional<Sentinel> sentinel_from(std::string_view name);
std::optional<InactiveOut> inactive_out_from(std::string_view name);

/// Everything that is the same for all layers and steps of a trace: the /model group of both file formats.
struct Model {
  int H = 0, HV = 0, K = 0, V = 0, W = 0;
  float scale = 0;  // multiplies q after its norm; K^-0.5 as f32 in every known model
  Activation activation = Activation::silu;
  bool use_qk_l2norm = true;
  DType state_dtype = DType::f32;
  DType conv_state_dtype = DType::bf16;
  DType act_dtype = DType::bf16;
  Sentinel sentinel = Sentinel::nonpositive;
  std::int64_t num_blocks = 0;
  std::optional<float> norm_eps;
  NormGate norm_gate = NormGate::silu;
  InactiveOut inactive_conv_out = InactiveOut::zero;
  InactiveOut inactive_core_out = InactiveOut::zero;
  std::vector<std::int32_t> layer_ids;  // the model's own layer numbers, [L]
  // How the engine's pool lies in memory, for the check of its element offsets alone (offset_warnings): nothing here reads it.
  std::int64_t block_stride = 0,
               conv_block_stride = 0;  // elements from one block to the next; 0: as many as a block has
  int index_bits = 64;                 // of the engine's element offsets: 32 or 64

  int layers() const { return static_cast<int>(layer_ids.size()); }
  std::int64_t dim() const { return 2LL * H * K + 1LL * HV * V; }
  std::int64_t state_elements() const { return 1LL * HV * V * K; }      // one recurrent block
  std::int64_t conv_elements() const { return 1LL * (W - 1) * dim(); }  // one conv block
  std::size_t state_bytes() const { return static_cast<std::size_t>(state_elements()) * size_of(state_dtype); }
  std::size_t conv_bytes() const { return static_cast<std::size_t>(conv_elements()) * size_of(conv_state_dtype); }

  /// True when `index` marks an inactive row under this model's sentinel rule (rule A7).
  bool inactive(std::int32_t index) const;
  bool operator==(const Model&) const = default;
};

/// Throws Error naming the field when a shape or a scalar of the model cannot be: counts below 1, HV not a multiple of H,
/// W below 2, a scale or eps that is not finite, no layers, a block's bytes or the pool's beyond 2^47. `where` opens the line.
void validate(const Model& model, const std::string& where);

/// One line for each pool whose element offsets do not fit an engine's 32 bits: the first block that is out of reach, and the
/// block that a wrapped offset hits. Empty unless the model says index_bits 32.
std::vector<std::string> offset_warnings(const Model& model);
/// The block that `block`'s first element lands in when its offset is taken modulo 2^32; -1 when it stays in `block`, or lands
/// outside the pool. `conv`: in the pool of conv states.
std::int64_t wrapped_block(const Model& model, std::int64_t block, bool conv);

/// How a tap's row is laid out: `heads` x `per_head` elements of `type` (conv taps have one "head" of all channels).
struct TapShape {
  DType type;
  std::int64_t heads;
  std::int64_t per_head;
  std::int64_t elements() const { return heads * per_head; }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(type); }
};
TapShape shape_of(Tap tap, const Model& model);

/// One layer's parameters. Raw act words where the file has the activation type; empty when the file has none.
struct LayerParams {
  std::vector<float> A_log;    // [HV]
  std::vector<float> dt_bias;  // [HV]
  Bytes conv_weight;           // act [dim, W]
  Bytes conv_bias;             // act [dim], or empty
  Bytes norm_weight;           // act [V], or empty
  bool operator==(const LayerParams&) const = default;
};

}  // namespace gdnsim
