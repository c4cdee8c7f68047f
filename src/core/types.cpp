#include "gdnsim/types.hpp"

#include <cmath>
#include <span>

#include "gdnsim/error.hpp"
#include "gdnsim/source_place.hpp"

namespace gdnsim {
namespace {

// Words of each enum, in the enum's order.
constexpr std::string_view kDTypes[] = {"f32", "bf16", "f16"};
constexpr std::string_view kTapNames[] = {"conv_acc", "conv_out", "conv_state", "q",       "k",
                                          "beta",     "g",        "decay",      "dot_k",   "u",
                                          "state",    "core_out", "rstd",       "norm_out"};
constexpr std::string_view kActivations[] = {"none", "silu"};
constexpr std::string_view kNormGates[] = {"silu", "sigmoid"};
constexpr std::string_view kSentinels[] = {"nonpositive", "zero", "minus_one"};
constexpr std::string_view kInactiveOuts[] = {"zero", "unwritten"};
constexpr std::string_view kPaths[] = {"decode", "mixed", "opaque"};
static_assert(std::size(kTapNames) == kTaps);

template <class Enum>
std::optional<Enum> find(std::span<const std::string_view> words, std::string_view name) {
  for (std::size_t i = 0; i < words.size(); ++i)
    if (words[i] == name) return static_cast<Enum>(i);
  return std::nullopt;
}

void expect(bool holds, const std::string& where, const std::string& field, const std::string& expected) {
  if (!holds) throw error(where, ": ", field, ": expected ", expected);
}

constexpr std::int64_t kMaxCount = 1 << 24;                   // of one axis
constexpr std::int64_t kMaxElements = std::int64_t{1} << 45;  // of a pool

void validate_shapes(const Model& model, const std::string& where) {
  const auto count = [&](std::int64_t value, const char* name, std::int64_t least, std::int64_t most) {
    if (value < least || value > most)
      throw error(where, ": ", name, ": expected ", least, " to ", most, ", found ", value);
  };
  count(model.H, "num_k_heads", 1, 4096);
  count(model.HV, "num_v_heads", 1, 4096);
  count(model.K, "head_k_dim", 1, 16384);
  count(model.V, "head_v_dim", 1, 16384);
  count(model.W, "conv_width", 2, 64);
  count(model.num_blocks, "num_blocks", 1, std::int64_t{1} << 31);
  count(model.layers(), "layer_ids", 1, 65536);
  if (model.HV % model.H != 0)
    throw error(where, ": num_v_heads: expected a multiple of num_k_heads = ", model.H, ", found ", model.HV);
  expect(model.dim() <= kMaxCount, where, "conv channels", "at most 2^24");
  expect(model.state_elements() <= kMaxElements / model.num_blocks, where, "num_blocks x HV x V x K",
         "at most 2^45 elements");
}

/// Strides are 0 or hold a block, and the pool's offsets stay below 2^61 elements.
void validate_stride(std::int64_t stride, std::int64_t least, const char* name, const std::string& where) {
  if (stride == 0) return;
  if (stride < least || stride > kMaxElements)
    throw error(where, ": ", name, ": expected 0 or ", least, " (a block's elements) to 2^45, found ", stride);
}

std::int64_t stride_of(const Model& model, bool conv) {
  const std::int64_t given = conv ? model.conv_block_stride : model.block_stride;
  return given != 0 ? given : conv ? model.conv_elements() : model.state_elements();
}

/// The first block with an element at `limit` or beyond.
std::int64_t first_beyond(const Model& model, bool conv, std::int64_t limit) {
  const std::int64_t stride = stride_of(model, conv), size = conv ? model.conv_elements() : model.state_elements();
  return size > limit ? 0 : (limit - size) / stride + 1;
}

std::string offset_warning(const Model& model, bool conv) {
  constexpr std::int64_t kSigned = std::int64_t{1} << 31, kUnsigned = std::int64_t{1} << 32;
  const std::int64_t block = first_beyond(model, conv, kSigned), wraps = first_beyond(model, conv, kUnsigned);
  if (block >= model.num_blocks) return "";
  const std::int64_t begins = (kSigned + stride_of(model, conv) - 1) / stride_of(model, conv);
  std::ostringstream text;
  text << (conv ? "conv" : "recurrent") << " state: block " << block << " has elements beyond 2^31 (stride "
       << stride_of(model, conv);
  if (begins != block) text << "; block " << begins << " is the first to begin there";
  text << "): a signed 32-bit offset of them is negative";
  // Of a block that straddles the limit only the end wraps, to the front of the pool.
  const std::int64_t hit = wraps * stride_of(model, conv) < kUnsigned ? 0 : wrapped_block(model, wraps, conv);
  if (wraps < model.num_blocks)
    text << "; an unsigned one wraps from block " << wraps << " on, which hits block " << hit;
  return text.str();
}

}  // namespace

void check_failed(const char* file, int line, const char* condition) {
  std::ostringstream text;
  text << "gdnsim: internal error at " << source_place(file) << ":" << line << ": " << condition
       << " does not hold; please report this\n";
  std::fputs(text.str().c_str(), stderr);
  std::abort();
}

std::string_view name_of(DType v) { return kDTypes[static_cast<std::size_t>(v)]; }
std::string_view name_of(Tap v) { return kTapNames[static_cast<std::size_t>(v)]; }
std::string_view name_of(Activation v) { return kActivations[static_cast<std::size_t>(v)]; }
std::string_view name_of(NormGate v) { return kNormGates[static_cast<std::size_t>(v)]; }
std::string_view name_of(Sentinel v) { return kSentinels[static_cast<std::size_t>(v)]; }
std::string_view name_of(InactiveOut v) { return kInactiveOuts[static_cast<std::size_t>(v)]; }
std::string_view name_of(Path v) { return kPaths[static_cast<std::size_t>(v)]; }

std::optional<DType> dtype_from(std::string_view name) { return find<DType>(kDTypes, name); }
std::optional<Tap> tap_from(std::string_view name) { return find<Tap>(kTapNames, name); }
std::optional<Activation> activation_from(std::string_view name) { return find<Activation>(kActivations, name); }
std::optional<NormGate> norm_gate_from(std::string_view name) { return find<NormGate>(kNormGates, name); }
std::optional<Sentinel> sentinel_from(std::string_view name) { return find<Sentinel>(kSentinels, name); }
std::optional<InactiveOut> inactive_out_from(std::string_view name) { return find<InactiveOut>(kInactiveOuts, name); }

bool Model::inactive(std::int32_t index) const {
  switch (sentinel) {
    case Sentinel::nonpositive:
      return index <= 0;
    case Sentinel::zero:
      return index == 0;
    case Sentinel::minus_one:
      return index == -1;
  }
  return true;
}

void validate(const Model& model, const std::string& where) {
  validate_shapes(model, where);
  expect(std::isfinite(model.scale), where, "scale", "a finite number");
  expect(!model.norm_eps || (std::isfinite(*model.norm_eps) && *model.norm_eps >= 0), where, "norm_eps",
         "a finite number, 0 or more");
  expect(model.state_dtype != DType::f16, where, "state_dtype", "f32 or bf16");
  expect(model.conv_state_dtype != DType::f16, where, "conv_state_dtype", "f32 or bf16");
  expect(model.index_bits == 32 || model.index_bits == 64, where, "index_bits", "32 or 64");
  validate_stride(model.block_stride, model.state_elements(), "block_stride", where);
  validate_stride(model.conv_block_stride, model.conv_elements(), "conv_block_stride", where);
}

std::int64_t wrapped_block(const Model& model, std::int64_t block, bool conv) {
  const std::int64_t stride = stride_of(model, conv), offset = block * stride;
  const std::int64_t wrapped = offset & 0xFFFFFFFF, hit = wrapped / stride;
  return wrapped == offset || hit >= model.num_blocks ? -1 : hit;
}

std::vector<std::string> offset_warnings(const Model& model) {
  std::vector<std::string> lines;
  for (const bool conv : {false, true}) {
    if (model.index_bits != 32) break;
    std::string line = offset_warning(model, conv);
    if (!line.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

TapShape shape_of(Tap tap, const Model& model) {
  switch (tap) {
    case Tap::conv_acc:
      return {DType::f32, 1, model.dim()};
    case Tap::conv_out:
      return {model.act_dtype, 1, model.dim()};
    case Tap::conv_state:
      return {model.conv_state_dtype, 1, model.conv_elements()};
    case Tap::q:
    case Tap::k:
      return {DType::f32, model.H, model.K};
    case Tap::beta:
    case Tap::g:
    case Tap::decay:
    case Tap::rstd:
      return {DType::f32, model.HV, 1};
    case Tap::dot_k:
    case Tap::u:
      return {DType::f32, model.HV, model.V};
    case Tap::state:
      return {model.state_dtype, model.HV, 1LL * model.V * model.K};
    case Tap::core_out:
    case Tap::norm_out:
      return {model.act_dtype, model.HV, model.V};
  }
  GDNSIM_CHECK(false);
  return {};
}

}  // namespace gdnsim
