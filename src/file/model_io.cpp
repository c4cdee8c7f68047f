#include "file/model_io.hpp"

#include <limits>
#include <set>

#include "file/schema.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {

using namespace schema;

namespace {

/// An integer attribute that fits an int; the ranges of a model are checked by `validate`.
int small_int(const h5::Group& group, std::string_view name) {
  const std::int64_t value = group.int_attribute(name);
  if (value != static_cast<int>(value))
    throw error(group.where(), " @", name, ": expected a small integer, found ", value);
  return static_cast<int>(value);
}

bool flag(const h5::Group& group, std::string_view name) {
  const std::int64_t value = group.int_attribute(name);
  if (value != 0 && value != 1) throw error(group.where(), " @", name, ": expected 0 or 1, found ", value);
  return value == 1;
}

/// A text of at most 40 bytes that is safe to print in one line.
std::string quoted(const std::string& text) {
  std::string shown = text.substr(0, 40);
  for (char& c : shown)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  return '"' + shown + (text.size() > 40 ? "...\"" : "\"");
}

template <class Enum>
Enum word(const h5::Group& group, std::string_view name, std::optional<Enum> (*parse)(std::string_view),
          std::string_view words) {
  const std::string text = group.string_attribute(name);
  const std::optional<Enum> value = parse(text);
  if (!value) throw error(group.where(), " @", name, ": expected ", words, ", found ", quoted(text));
  return *value;
}

template <class Enum>
Enum word_or(const h5::Group& group, std::string_view name, std::optional<Enum> (*parse)(std::string_view),
             std::string_view words, Enum otherwise) {
  return group.has_attribute(name) ? word(group, name, parse, words) : otherwise;
}

void read_layer_ids(const h5::Group& group, Model& model) {
  model.layer_ids = group.read_vector<std::int32_t>(kLayerIds, {h5::kAny});
  std::set<std::int32_t> seen;
  for (std::size_t l = 0; l < model.layer_ids.size(); ++l) {
    const std::int32_t id = model.layer_ids[l];
    if (id < 0) throw error(group.where(kLayerIds), "[", l, "]: expected 0 or more, found ", id);
    if (!seen.insert(id).second)
      throw error(group.where(kLayerIds), "[", l, "]: expected each layer once, found ", id, " again");
  }
}

/// How the engine's pool lies in memory: version 2.
void read_offsets(const h5::Group& group, Model& model) {
  if (group.has_attribute(kBlockStride)) model.block_stride = group.int_attribute(kBlockStride);
  if (group.has_attribute(kConvBlockStride)) model.conv_block_stride = group.int_attribute(kConvBlockStride);
  if (group.has_attribute(kIndexBits)) model.index_bits = small_int(group, kIndexBits);
}

}  // namespace

std::int64_t require_format(const h5::Group& root, std::string_view format, int newest) {
  if (!root.has_attribute(kFormat))
    throw error(root.where(), " @", kFormat, ": expected \"", format, "\", found nothing");
  const std::string found = root.string_attribute(kFormat);
  if (found != format) throw error(root.where(), " @", kFormat, ": expected \"", format, "\", found ", quoted(found));
  const std::int64_t version = root.int_attribute(kVersion);
  if (version > newest)
    throw error(root.where(), " @", kVersion, ": expected at most ", newest, ", found ", version,
                ": the file is of a newer version than this program reads");
  if (version < 1) throw error(root.where(), " @", kVersion, ": expected 1 or more, found ", version);
  return version;
}

Model read_model(const h5::Group& root, std::int64_t version) {
  constexpr std::string_view kDtypes = "\"f32\", \"bf16\" or \"f16\"", kZeroOrUnwritten = "\"zero\" or \"unwritten\"";
  const h5::Group group = root.group(kModel);
  Model model;
  model.H = small_int(group, kNumKHeads);
  model.HV = small_int(group, kNumVHeads);
  model.K = small_int(group, kHeadKDim);
  model.V = small_int(group, kHeadVDim);
  model.W = small_int(group, kConvWidth);
  model.scale = group.float_attribute(kScale);
  model.activation = word(group, kActivation, activation_from, "\"silu\" or \"none\"");
  model.use_qk_l2norm = flag(group, kUseQkL2norm);
  model.state_dtype = word(group, kStateDtype, dtype_from, kDtypes);
  model.conv_state_dtype = word(group, kConvStateDtype, dtype_from, kDtypes);
  model.act_dtype = word(group, kActDtype, dtype_from, kDtypes);
  model.sentinel = word(group, kSentinel, sentinel_from, "\"nonpositive\", \"zero\" or \"minus_one\"");
  model.num_blocks = group.int_attribute(kNumBlocks);
  if (group.has_attribute(kNormEps)) model.norm_eps = group.float_attribute(kNormEps);
  model.norm_gate = word_or(group, kNormGate, norm_gate_from, "\"silu\" or \"sigmoid\"", NormGate::silu);
  model.inactive_conv_out = word_or(group, kInactiveConvOut, inactive_out_from, kZeroOrUnwritten, InactiveOut::zero);
  model.inactive_core_out = word_or(group, kInactiveCoreOut, inactive_out_from, kZeroOrUnwritten, InactiveOut::zero);
  read_layer_ids(group, model);
  if (version >= 2) read_offsets(group, model);
  validate(model, group.where());
  return model;
}

void write_model(h5::Group& root, const Model& model) {
  h5::Group group = root.create_group(kModel);
  group.set_int(kNumKHeads, model.H);
  group.set_int(kNumVHeads, model.HV);
  group.set_int(kHeadKDim, model.K);
  group.set_int(kHeadVDim, model.V);
  group.set_int(kConvWidth, model.W);
  group.set_float(kScale, model.scale);
  group.set_string(kActivation, name_of(model.activation));
  group.set_int(kUseQkL2norm, model.use_qk_l2norm ? 1 : 0);
  group.set_string(kStateDtype, name_of(model.state_dtype));
  group.set_string(kConvStateDtype, name_of(model.conv_state_dtype));
  group.set_string(kActDtype, name_of(model.act_dtype));
  group.set_string(kSentinel, name_of(model.sentinel));
  group.set_int(kNumBlocks, model.num_blocks);
  if (model.norm_eps) group.set_float(kNormEps, *model.norm_eps);
  group.set_string(kNormGate, name_of(model.norm_gate));
  group.set_string(kInactiveConvOut, name_of(model.inactive_conv_out));
  group.set_string(kInactiveCoreOut, name_of(model.inactive_core_out));
  if (model.block_stride != 0) group.set_int(kBlockStride, model.block_stride);
  if (model.conv_block_stride != 0) group.set_int(kConvBlockStride, model.conv_block_stride);
  if (model.index_bits != 64) group.set_int(kIndexBits, model.index_bits);
  group.create_vector(kLayerIds, {model.layer_ids.size()}, model.layer_ids);
}

std::vector<std::pair<std::string, std::string>> read_provenance(const h5::Group& root) {
  const std::optional<h5::Group> group = root.find_group(kProvenance);
  return group ? group->all_attributes() : std::vector<std::pair<std::string, std::string>>{};
}

void write_provenance(h5::Group& root, const std::vector<std::pair<std::string, std::string>>& provenance) {
  if (provenance.empty()) return;
  h5::Group group = root.create_group(kProvenance);
  for (const auto& [name, text] : provenance) group.set_string(name, text);
}

}  // namespace gdnsim
