#include "trace/encoding.hpp"

#include <algorithm>
#include <cstring>

#include "file/schema.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {

using namespace schema;

namespace {

/// The first of `words` that an attribute may hold is what its absence means.
std::size_t word_of(const h5::Group& group, std::string_view name, std::initializer_list<std::string_view> words) {
  if (!group.has_attribute(name)) return 0;
  const std::string text = group.string_attribute(name);
  const auto found = std::ranges::find(words, text);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  std::string expected;
  for (std::string_view word : words) expected += (expected.empty() ? "\"" : ", \"") + std::string(word) + "\"";
  throw error(group.where(), " @", name, ": expected one of ", expected);
}

/// Per key head: q, k, the v of its value heads and, where it is there, their z.
struct HeadGroups {
  std::int64_t H, K, V, values;  // values: r * V
  explicit HeadGroups(const Model& m) : H(m.H), K(m.K), V(m.V), values(1LL * m.HV / m.H * m.V) {}
  std::int64_t width(bool z) const { return 2 * K + (z ? 2 : 1) * values; }
  Unpacking qkv(const Model& m, bool z) const {
    Unpacking unpacking{H * width(z), m.dim(), {}};
    for (std::int64_t h = 0; h < H; ++h) {
      const std::int64_t from = h * width(z);
      unpacking.runs.push_back({from, h * K, K});
      unpacking.runs.push_back({from + K, (H + h) * K, K});
      unpacking.runs.push_back({from + 2 * K, 2 * H * K + h * values, values});
    }
    return unpacking;
  }
  Unpacking z() const {
    Unpacking unpacking{H * width(true), H * values, {}};
    for (std::int64_t h = 0; h < H; ++h)
      unpacking.runs.push_back({h * width(true) + 2 * K + values, h * values, values});
    return unpacking;
  }
};

void read_packings(const h5::Group& group, const Model& m, TraceEncoding& encoding) {
  const HeadGroups heads(m);
  const bool qkv = word_of(group, kQkvPacking, {"flat", "interleaved"}) == 1;
  const std::size_t z = word_of(group, kZPacking, {"apart", "flat", "interleaved"});
  encoding.joined_qkvz = z != 0;
  if (z != 0 && group.has_attribute(kQkvPacking) && qkv != (z == 2))
    throw error(group.where(), " @", kQkvPacking, ": expected the same as @", kZPacking,
                ", or nothing: q, k, v and z lie in one dataset");
  if (z == 0 && qkv) encoding.qkv = heads.qkv(m, false);
  const std::int64_t dim = m.dim(), values = 1LL * m.HV * m.V;
  if (z == 1)
    encoding.qkvz_qkv = {dim + values, dim, {{0, 0, dim}}},
    encoding.qkvz_z = {dim + values, values, {{dim, 0, values}}};
  if (z == 2) encoding.qkvz_qkv = heads.qkv(m, true), encoding.qkvz_z = heads.z();

  const std::size_t ba = word_of(group, kBaPacking, {"split", "flat", "interleaved"});
  encoding.joined_ba = ba != 0;
  const std::int64_t HV = m.HV, groups = ba == 2 ? m.H : 1, each = HV / groups;
  encoding.ba_a = encoding.ba_b = {2 * HV, HV, {}};
  for (std::int64_t h = 0; h < groups; ++h) {
    encoding.ba_b.runs.push_back({2 * h * each, h * each, each});
    encoding.ba_a.runs.push_back({(2 * h + 1) * each, h * each, each});
  }
}

void read_conv(const h5::Group& group, const Model& m, ConvEncoding& conv) {
  if (group.has_attribute(kConvColumns)) conv.columns = group.int_attribute(kConvColumns);
  if (conv.columns < m.W - 1 || conv.columns > 1 << 20)
    throw error(group.where(), " @", kConvColumns, ": expected ", m.W - 1, " (W - 1) to 2^20, found ", conv.columns);
  conv.circular = word_of(group, kConvOrder, {"rolled", "circular"}) == 1;
  conv.channels_first = word_of(group, kConvLayout, {"columns", "channels"}) == 1;
}

std::string at(std::int64_t i, std::int64_t rows) {
  return "[" + std::to_string(i / rows) + ", " + std::to_string(i % rows) + "]: ";
}

/// Whose table of the step names this block, to say it.
std::string owner_of(const ColumnTable& t, std::int64_t step, std::int64_t row, std::int32_t block) {
  for (std::int64_t other = 0; other < t.rows; ++other) {
    const auto entries = t.table.subspan(static_cast<std::size_t>((step * t.rows + other) * t.columns),
                                         static_cast<std::size_t>(t.columns));
    if (other != row && std::ranges::find(entries, block) != entries.end())
      return ", which belongs to row " + std::to_string(other);
  }
  return "";
}

void require_column(const ColumnTable& t, std::int64_t i, const std::string& where) {
  const std::size_t at_i = static_cast<std::size_t>(i);
  const std::int64_t column = t.column[at_i];
  if (column < 0 || column >= t.columns)
    throw error(where, "/", kColumn, at(i, t.rows), "index column ", column, " outside 0..", t.columns - 1, " for row ",
                i % t.rows);
  const std::int32_t named = t.table[static_cast<std::size_t>(i * t.columns + column)];
  if (named != t.index[at_i])
    throw error(where, "/", kIndex, at(i, t.rows), "expected block ", named, ", which column ", column,
                " of the row's table names, found ", t.index[at_i], owner_of(t, i / t.rows, i % t.rows, t.index[at_i]));
  if (t.block_size == 0 || t.position.empty()) return;
  const std::int64_t position = t.position[at_i];
  if (position < 0 || position / t.block_size != column)
    throw error(where, "/", kColumn, at(i, t.rows), "expected column ", position / t.block_size, " for position ",
                position, " with ", t.block_size, " tokens a block, found ", column);
}

}  // namespace

void Unpacking::apply(const Bytes& in, std::size_t word, Bytes& out) const {
  const std::size_t from_row = static_cast<std::size_t>(in_row) * word,
                    to_row = static_cast<std::size_t>(out_row) * word;
  const std::size_t rows = in.size() / from_row;
  out.resize(rows * to_row);
  for (std::size_t row = 0; row < rows; ++row)
    for (const Run& run : runs)
      std::memcpy(out.data() + row * to_row + static_cast<std::size_t>(run.to) * word,
                  in.data() + row * from_row + static_cast<std::size_t>(run.from) * word,
                  static_cast<std::size_t>(run.count) * word);
}

h5::Dims ConvEncoding::axes(const Model& model) const {
  const auto C = static_cast<std::uint64_t>(columns), dim = static_cast<std::uint64_t>(model.dim());
  return channels_first ? h5::Dims{dim, C} : h5::Dims{C, dim};
}

void ConvEncoding::window(const Model& model, const Bytes& stored, std::int64_t offset, Bytes& out) const {
  const std::size_t word = size_of(model.conv_state_dtype), dim = static_cast<std::size_t>(model.dim());
  const std::size_t C = static_cast<std::size_t>(columns);
  out.resize(model.conv_bytes());
  for (std::size_t j = 0; j + 1 < static_cast<std::size_t>(model.W); ++j) {
    const std::size_t column = (static_cast<std::size_t>(offset) + j) % C;
    if (!channels_first) {
      std::memcpy(out.data() + j * dim * word, stored.data() + column * dim * word, dim * word);
      continue;
    }
    for (std::size_t c = 0; c < dim; ++c)
      std::memcpy(out.data() + (j * dim + c) * word, stored.data() + (c * C + column) * word, word);
  }
}

TraceEncoding read_encoding(const h5::Group& root, const Model& model, std::int64_t version) {
  TraceEncoding encoding;
  encoding.conv.columns = model.W - 1;
  if (version < 2) return encoding;
  const h5::Group group = root.group(kModel);
  read_packings(group, model, encoding);
  read_conv(group, model, encoding.conv);
  if (!group.has_attribute(kBlockSize)) return encoding;
  encoding.block_size = group.int_attribute(kBlockSize);
  if (encoding.block_size < 1 || encoding.block_size > std::int64_t{1} << 31)
    throw error(group.where(), " @", kBlockSize, ": expected 1 to 2^31 tokens, found ", encoding.block_size);
  return encoding;
}

std::vector<std::pair<std::string, std::string>> layout_words(const h5::Group& root) {
  const h5::Group group = root.group(kModel);
  std::vector<std::pair<std::string, std::string>> words;
  for (std::string_view name : {kQkvPacking, kZPacking, kBaPacking, kConvOrder, kConvLayout})
    if (group.has_attribute(name)) words.emplace_back(name, group.string_attribute(name));
  for (std::string_view name : {kConvColumns, kBlockSize})
    if (group.has_attribute(name)) words.emplace_back(name, std::to_string(group.int_attribute(name)));
  return words;
}

void require_offsets(const ConvEncoding& conv, const Model& model, std::span<const std::int32_t> offsets,
                     const std::string& where) {
  const std::int64_t last = conv.circular ? conv.columns - 1 : conv.columns - (model.W - 1);
  for (std::size_t i = 0; i < offsets.size(); ++i)
    if (offsets[i] < 0 || offsets[i] > last)
      throw error(where, "[", i, "]: expected a column in 0..", last, ", where a window of ", model.W - 1,
                  " columns can begin, found ", offsets[i]);
}

void require_columns(const ColumnTable& t, const Model& model, std::span<const std::int32_t> present,
                     const std::string& where) {
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(t.index.size()); ++i) {
    const bool there = present.empty() || i % t.rows < present[static_cast<std::size_t>(i / t.rows)];
    if (there && !model.inactive(t.index[static_cast<std::size_t>(i)])) require_column(t, i, where);
  }
}

}  // namespace gdnsim
