// How a trace of version 2 may lay out what a stream shows flat: packed projections, longer or circular conv windows, tables of
// block columns (docs/trace-format.md, "Layouts"). Everything is made canonical here, on the way in.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "file/hdf5_io.hpp"
#include "gdnsim/types.hpp"

namespace gdnsim {

/// One run of elements of a row: `count` of them, from one place to another.
struct Run {
  std::int64_t from, to, count;
};
/// Rows of `in_row` elements of which the runs make rows of `out_row`.
struct Unpacking {
  std::int64_t in_row = 0, out_row = 0;
  std::vector<Run> runs;
  bool none() const { return runs.empty(); }
  void apply(const Bytes& in, std::size_t word, Bytes& out) const;
};

/// The conv windows of a file: [columns, dim] or [dim, columns] of which W-1 columns are the window.
struct ConvEncoding {
  std::int64_t columns = 0;
  bool circular = false, channels_first = false;
  h5::Dims axes(const Model& model) const;
  bool plain(const Model& model) const { return columns == model.W - 1 && !channels_first; }
  /// The window that begins at column `offset`, as [W-1, dim].
  void window(const Model& model, const Bytes& stored, std::int64_t offset, Bytes& out) const;
};

struct TraceEncoding {
  Unpacking qkv;             // of /steps/<l>/mixed_qkv
  bool joined_qkvz = false;  // mixed_qkv and z lie in /steps/<l>/qkvz
  Unpacking qkvz_qkv, qkvz_z;
  bool joined_ba = false;  // a and b lie in /steps/<l>/ba
  Unpacking ba_a, ba_b;
  ConvEncoding conv;
  std::int64_t block_size = 0;  // tokens of a column of /steps/table; 0: not said
};

/// What /model says, checked; what version 1 means for a file of version 1. Throws Error naming the attribute.
TraceEncoding read_encoding(const h5::Group& root, const Model& model, std::int64_t version);

/// The attributes of /model that say so, as name and text; for people.
std::vector<std::pair<std::string, std::string>> layout_words(const h5::Group& root);

/// Throws Error unless each of the `count` windows begins at a column where it can.
void require_offsets(const ConvEncoding& conv, const Model& model, std::span<const std::int32_t> offsets,
                     const std::string& where);

/// Throws Error unless each row that names a block names the one in its table's column, and the column is its position's.
/// Empty spans: the file does not say. `index` [T, B], `table` [T, B, columns], `column` and `position` [T, B].
struct ColumnTable {
  std::int64_t rows = 0, columns = 0, block_size = 0;
  std::span<const std::int32_t> index, table, column, position;
};
void require_columns(const ColumnTable& table, const Model& model, std::span<const std::int32_t> present,
                     const std::string& where);

}  // namespace gdnsim
