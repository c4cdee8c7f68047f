#include "trace/layout.hpp"

#include <algorithm>
#include <cstring>

#include <map>
#include <tuple>

#include "file/schema.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {

namespace {

std::uint64_t axis(std::int64_t size) { return static_cast<std::uint64_t>(size); }

template <class Word>
std::int64_t first_nan_word(std::span<const std::byte> bytes, Word infinity) {
  constexpr Word magnitude = static_cast<Word>(~Word{0}) >> 1;
  for (std::size_t i = 0; i < bytes.size() / sizeof(Word); ++i) {
    Word word = 0;
    std::memcpy(&word, bytes.data() + i * sizeof word, sizeof word);
    if ((word & magnitude) > infinity) return static_cast<std::int64_t>(i);
  }
  return -1;
}

/// "[7]", or "[3, 1]" where a row has `width` elements.
std::string index_text(std::int64_t i, std::int64_t width) {
  if (width == 0) return "[" + std::to_string(i) + "]";
  return "[" + std::to_string(i / width) + ", " + std::to_string(i % width) + "]";
}

void refuse_nan_in(std::span<const std::byte> words, DType type, std::int64_t width, std::string_view name,
                   const std::string& where) {
  const std::int64_t at = first_nan(words, type);
  if (at >= 0) throw error(where, "/", name, index_text(at, width), ": expected a number, found NaN");
}

}  // namespace

h5::Dims tap_axes(Tap tap, const Model& model) {
  switch (tap) {
    case Tap::conv_acc:
    case Tap::conv_out:
      return {axis(model.dim())};
    case Tap::q:
    case Tap::k:
      return {axis(model.H), axis(model.K)};
    case Tap::beta:
    case Tap::g:
    case Tap::decay:
    case Tap::rstd:
      return {axis(model.HV)};
    case Tap::dot_k:
    case Tap::u:
    case Tap::core_out:
    case Tap::norm_out:
      return {axis(model.HV), axis(model.V)};
    case Tap::state:
      return state_axes(model);
    case Tap::conv_state:
      return conv_axes(model);
  }
  GDNSIM_CHECK(false);
  return {};
}

h5::Dims joined(h5::Dims first, const h5::Dims& rest) {
  first.insert(first.end(), rest.begin(), rest.end());
  return first;
}

h5::Dims state_axes(const Model& model) { return {axis(model.HV), axis(model.V), axis(model.K)}; }

h5::Dims conv_axes(const Model& model) { return {axis(model.W - 1), axis(model.dim())}; }

int version_of(const TraceHeader& header) {
  const auto says_more = [](const Event& event) {
    return event.kind == EventKind::allocate || event.sequence != -1 || event.why != EventWhy::none;
  };
  const Model& m = header.model;
  const bool strides = m.block_stride != 0 || m.conv_block_stride != 0 || m.index_bits != 64;
  const bool more = strides || header.has_drafts || header.has_source || header.has_accepted;
  return header.version > 1 || more || std::ranges::any_of(header.events, says_more) ? 2 : 1;
}

bool recordable(Tap tap) { return tap != Tap::state && tap != Tap::conv_state; }

std::int64_t first_nan(std::span<const std::byte> words, DType type) {
  switch (type) {
    case DType::f32:
      return first_nan_word<std::uint32_t>(words, 0x7F800000u);
    case DType::bf16:
      return first_nan_word<std::uint16_t>(words, 0x7F80u);
    case DType::f16:
      return first_nan_word<std::uint16_t>(words, 0x7C00u);
  }
  return -1;
}

void refuse_nan(const LayerParams& params, const Model& model, const std::string& where) {
  refuse_nan_in(std::as_bytes(std::span(params.A_log)), DType::f32, 0, schema::kALog, where);
  refuse_nan_in(std::as_bytes(std::span(params.dt_bias)), DType::f32, 0, schema::kDtBias, where);
  refuse_nan_in(params.conv_weight, model.act_dtype, model.W, schema::kConvWeight, where);
  refuse_nan_in(params.conv_bias, model.act_dtype, 0, schema::kConvBias, where);
  refuse_nan_in(params.norm_weight, model.act_dtype, 0, schema::kNormWeight, where);
}

void validate_snapshots(const Model& model, std::int64_t steps, std::span<const Snapshot> snapshots,
                        const std::string& where) {
  std::map<std::tuple<std::int64_t, int, std::int32_t>, std::size_t> seen;
  for (std::size_t s = 0; s < snapshots.size(); ++s) {
    const auto range = [&](std::string_view field, std::int64_t value, std::int64_t count) {
      if (value < 0 || value >= count)
        throw error(where, "/", field, "[", s, "]: expected 0..", count - 1, ", found ", value);
    };
    range(schema::kStep, snapshots[s].step, steps);
    range(schema::kLayer, snapshots[s].layer, model.layers());
    range(schema::kBlock, snapshots[s].block, model.num_blocks);
    const auto [first, fresh] = seen.emplace(std::tuple(snapshots[s].step, snapshots[s].layer, snapshots[s].block), s);
    if (!fresh)
      throw error(where, ": entries ", first->second, " and ", s, " are both of step ", snapshots[s].step, ", layer ",
                  snapshots[s].layer, ", block ", snapshots[s].block, ": expected one snapshot each");
  }
}

}  // namespace gdnsim
