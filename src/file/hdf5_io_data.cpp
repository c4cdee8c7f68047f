// HDF5 access: datasets. Everything about a dataset is checked before the first byte of it is allocated or read.
#include <algorithm>
#include <limits>

#include "file/hdf5_io_impl.hpp"
#include "file/schema.hpp"

namespace gdnsim::h5 {

namespace {

/// deflate cannot expand more than this, so a dataset cannot be larger than this many times its file.
constexpr std::uint64_t kDeflateRatio = 1032;
/// The largest chunk that is taken: HDF5 holds whole chunks in memory.
constexpr std::uint64_t kMaxChunk = std::uint64_t{1} << 30;

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 62;

struct FloatFields {
  std::size_t size, exponent_at, exponent_bits, mantissa_bits, bias;
};

FloatFields fields_of(Type type) {
  if (type == Type::bf16) return {2, 7, 8, 7, 127};
  if (type == Type::f16) return {2, 10, 5, 10, 15};
  return {4, 23, 8, 23, 127};
}

bool is_float(hid_t found, const FloatFields& want) {
  if (H5Tget_class(found) != H5T_FLOAT || H5Tget_size(found) != want.size || H5Tget_order(found) != H5T_ORDER_LE)
    return false;
  std::size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
  if (H5Tget_fields(found, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) < 0) return false;
  return H5Tget_precision(found) == 8 * want.size && H5Tget_offset(found) == 0 &&
         H5Tget_norm(found) == H5T_NORM_IMPLIED && sign == 8 * want.size - 1 && exponent == want.exponent_at &&
         exponent_bits == want.exponent_bits && mantissa == 0 && mantissa_bits == want.mantissa_bits &&
         H5Tget_ebias(found) == want.bias;
}

bool is_integer(hid_t found, std::size_t size, bool with_sign) {
  return H5Tget_class(found) == H5T_INTEGER && H5Tget_size(found) == size &&
         (size == 1 || H5Tget_order(found) == H5T_ORDER_LE) &&
         H5Tget_sign(found) == (with_sign ? H5T_SGN_2 : H5T_SGN_NONE) && H5Tget_precision(found) == 8 * size &&
         H5Tget_offset(found) == 0;
}

hid_t predefined(Type type) {
  switch (type) {
    case Type::i8:
      return H5T_STD_I8LE;
    case Type::i32:
      return H5T_STD_I32LE;
    case Type::i64:
      return H5T_STD_I64LE;
    case Type::u64:
      return H5T_STD_U64LE;
    default:
      return H5T_IEEE_F32LE;
  }
}

bool dims_match(const Dims& want, const Dims& found) {
  return std::equal(want.begin(), want.end(), found.begin(), found.end(),
                    [](std::uint64_t w, std::uint64_t f) { return w == kAny || w == f; });
}

/// Reads the shape. Only the first axis may be extendible (a trace that was captured live).
Dims shape_of(hid_t space, const std::string& where) {
  if (H5Sget_simple_extent_type(space) != H5S_SIMPLE)
    throw error(where, ": expected an array, found a scalar or nothing");
  const int rank = require(H5Sget_simple_extent_ndims(space), where, "shape cannot be read");
  std::vector<hsize_t> sizes(static_cast<std::size_t>(rank)), limits(sizes.size());
  require(H5Sget_simple_extent_dims(space, sizes.data(), limits.data()), where, "shape cannot be read");
  for (std::size_t axis = 1; axis < limits.size(); ++axis)
    if (limits[axis] != sizes[axis]) throw error(where, ": expected a fixed shape, found axis ", axis, " extendible");
  return {sizes.begin(), sizes.end()};
}

/// What a dataset's filters do to its chunks.
struct Filters {
  bool deflated = false;
  unsigned checksums = 0;
};

Filters require_known_filters(hid_t creation, const std::string& where) {
  Filters found;
  const int filters = require(H5Pget_nfilters(creation), where, "filters cannot be read");
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, info = 0, values[8] = {};
    std::size_t count = 8;
    char name[16] = {};
    const H5Z_filter_t filter =
        H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &count, values, sizeof name, name, &info);
    found.deflated |= filter == H5Z_FILTER_DEFLATE;
    found.checksums += filter == H5Z_FILTER_FLETCHER32;
    if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE && filter != H5Z_FILTER_FLETCHER32)
      throw error(where, ": expected no filters but deflate, shuffle and fletcher32, found filter ", filter);
  }
  if (filters > 4) throw error(where, ": expected at most four filters, found ", filters);
  return found;
}

/// The chunk's shape; checks that a chunk is no larger than what it could hold.
Dims chunk_of(hid_t creation, const Dims& dims, const std::string& where) {
  std::vector<hsize_t> sizes(dims.size());
  const int rank =
      require(H5Pget_chunk(creation, static_cast<int>(sizes.size()), sizes.data()), where, "chunks cannot be read");
  if (rank != static_cast<int>(dims.size()))
    throw error(where, ": expected chunks of rank ", dims.size(), ", found ", rank);
  for (std::size_t axis = 0; axis < dims.size(); ++axis)
    if (sizes[axis] == 0 || (axis > 0 && sizes[axis] > std::max<std::uint64_t>(1, dims[axis])))
      throw error(where, ": expected chunks inside ", text_of(dims), ", found ", text_of({sizes.begin(), sizes.end()}));
  return {sizes.begin(), sizes.end()};
}

void require_plausible(std::uint64_t bytes, std::uint64_t file_bytes, bool deflated, const std::string& where) {
  const std::uint64_t most =
      deflated ? (file_bytes > kMaxBytes / kDeflateRatio ? kMaxBytes : file_bytes * kDeflateRatio) : file_bytes;
  if (bytes > most)
    throw error(where, ": expected at most the ", file_bytes, " bytes of the file", deflated ? " times 1032" : "",
                ", found ", bytes);
}

/// Selects a box in the file's space; returns the memory space. That has the box's shape: for any other, HDF5 walks through a
/// chunk's elements one by one.
Handle select_box(const Handle& file, const std::vector<hsize_t>& start, const std::vector<hsize_t>& size,
                  const std::string& where) {
  require(H5Sselect_hyperslab(file.id(), H5S_SELECT_SET, start.data(), nullptr, size.data(), nullptr), where,
          "cannot be selected");
  return owned(H5Screate_simple(static_cast<int>(size.size()), size.data(), nullptr), where, "cannot be selected");
}

/// The string attribute dtype="bfloat16" that names 16-bit words as bf16.
bool says_bfloat16(hid_t dataset, const std::string& where) {
  if (H5Aexists(dataset, schema::kDtype.data()) <= 0) return false;
  const Handle attribute(H5Aopen(dataset, schema::kDtype.data(), H5P_DEFAULT));
  const Handle type(attribute.id() < 0 ? -1 : H5Aget_type(attribute.id()));
  const Handle space(attribute.id() < 0 ? -1 : H5Aget_space(attribute.id()));
  if (type.id() < 0 || H5Tget_class(type.id()) != H5T_STRING || H5Sget_simple_extent_npoints(space.id()) != 1)
    return false;
  if (H5Tis_variable_str(type.id()) > 0)
    return vlen_text(attribute.id(), type.id(), where + " @dtype") == schema::kBfloat16;
  char text[64] = {};
  if (H5Tget_size(type.id()) >= sizeof text || H5Aread(attribute.id(), type.id(), text) < 0) return false;
  return std::string_view(text) == schema::kBfloat16;
}

bool is_bf16_words(hid_t dataset, hid_t found, const std::string& where) {
  const H5T_class_t kind = H5Tget_class(found);
  const bool words = (kind == H5T_OPAQUE && H5Tget_size(found) == 2) || is_integer(found, 2, false);
  return words && says_bfloat16(dataset, where);
}

}  // namespace

std::size_t size_of(Type type) {
  switch (type) {
    case Type::i8:
      return 1;
    case Type::f16:
    case Type::bf16:
      return 2;
    case Type::i32:
    case Type::f32:
      return 4;
    default:
      return 8;
  }
}

std::string_view name_of(Type type) {
  static constexpr std::string_view names[] = {"int8", "int32", "int64", "uint64", "f32", "f16", "bf16"};
  return names[static_cast<std::size_t>(type)];
}

Type type_of(DType type) { return type == DType::f32 ? Type::f32 : type == DType::bf16 ? Type::bf16 : Type::f16; }

std::string text_of(const Dims& dims) {
  std::string text = "[";
  for (std::uint64_t dim : dims) {
    if (text.size() > 1) text += ", ";
    text += dim == kAny ? "any" : std::to_string(dim);
  }
  return text + "]";
}

std::optional<std::uint64_t> bytes_of(Type type, const Dims& dims) {
  std::uint64_t bytes = size_of(type);
  for (std::uint64_t dim : dims) {
    if (dim != 0 && bytes > kMaxBytes / dim) return std::nullopt;
    bytes *= dim;
  }
  return bytes;
}

Handle make_type(Type type) {
  start_library();
  const std::string where = std::string("type ") + std::string(name_of(type));
  Handle made = owned(H5Tcopy(predefined(type)), where, "cannot be made");
  if (type != Type::f16 && type != Type::bf16) return made;
  const FloatFields want = fields_of(type);
  require(H5Tset_fields(made.id(), 15, want.exponent_at, want.exponent_bits, 0, want.mantissa_bits), where,
          "cannot be made");
  require(H5Tset_size(made.id(), want.size), where, "cannot be made");
  require(H5Tset_ebias(made.id(), want.bias), where, "cannot be made");
  return made;
}

bool is_type(hid_t found, Type type) {
  switch (type) {
    case Type::i8:
      return is_integer(found, 1, true);
    case Type::i32:
      return is_integer(found, 4, true);
    case Type::i64:
      return is_integer(found, 8, true);
    case Type::u64:
      return is_integer(found, 8, false);
    default:
      return is_float(found, fields_of(type));
  }
}

std::string describe(hid_t type) {
  for (Type known : {Type::i8, Type::i32, Type::i64, Type::u64, Type::f32, Type::f16, Type::bf16})
    if (is_type(type, known)) return std::string(name_of(known));
  const std::string bits = std::to_string(8 * H5Tget_size(type));
  const std::string order = H5Tget_order(type) == H5T_ORDER_BE ? "big-endian " : "";
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
      return order + (H5Tget_sign(type) == H5T_SGN_NONE ? "uint" : "int") + bits;
    case H5T_FLOAT:
      return order + "float of " + bits + " bits";
    case H5T_STRING:
      return "string";
    case H5T_OPAQUE:
      return "opaque of " + bits + " bits";
    case H5T_ENUM:
      return "enum";
    case H5T_COMPOUND:
      return "compound";
    case H5T_VLEN:
      return "variable-length sequence";
    case H5T_ARRAY:
      return "array type";
    default:
      return "another type";
  }
}

Dataset Group::dataset(std::string_view name, Type type, const Dims& dims) const {
  Dataset data;
  data.where_ = where(name);
  const auto wanted = [&] { return std::string(name_of(type)) + " " + text_of(dims); };
  if (!has(name)) throw error(data.where_, ": expected a dataset of ", wanted(), ", found nothing");
  const std::string link(name);
  data.id_ = owned(H5Oopen(id_.id(), link.c_str(), H5P_DEFAULT), data.where_, "cannot be opened");
  if (H5Iget_type(data.id_.id()) != H5I_DATASET) throw error(data.where_, ": expected a dataset, found another object");
  data.file_type_ = owned(H5Dget_type(data.id_.id()), data.where_, "type cannot be read");
  data.space_ = owned(H5Dget_space(data.id_.id()), data.where_, "shape cannot be read");
  data.type_ = type;
  data.dims_ = shape_of(data.space_.id(), data.where_);
  const hid_t found = data.file_type_.id();
  const bool type_fits =
      is_type(found, type) || (type == Type::bf16 && is_bf16_words(data.id_.id(), found, data.where_));
  if (!type_fits || !dims_match(dims, data.dims_))
    throw error(data.where_, ": expected ", wanted(), ", found ", describe(found), " ", text_of(data.dims_));
  data.check_storage(file_bytes_);
  return data;
}

std::optional<Dataset> Group::find_dataset(std::string_view name, Type type, const Dims& dims) const {
  if (!has(name)) return std::nullopt;
  return dataset(name, type, dims);
}

void Dataset::check_storage(std::uint64_t file_bytes) {
  const std::optional<std::uint64_t> total = bytes_of(type_, dims_);
  if (!total) throw error(where_, ": ", text_of(dims_), " is too large");
  row_bytes_ = static_cast<std::size_t>(rows() == 0 ? 0 : *total / rows());
  const Handle creation = owned(H5Dget_create_plist(id_.id()), where_, "layout cannot be read");
  const auto [deflated, checksums] = require_known_filters(creation.id(), where_);
  checksums_ = checksums;
  if (require(H5Pget_external_count(creation.id()), where_, "layout cannot be read") != 0)
    throw error(where_, ": expected data inside the file, found external storage");
  const H5D_layout_t layout = H5Pget_layout(creation.id());
  if (layout != H5D_CHUNKED && layout != H5D_CONTIGUOUS && layout != H5D_COMPACT)
    throw error(where_, ": expected a contiguous or chunked layout, found another (virtual datasets are not read)");
  require_plausible(*total, file_bytes, deflated, where_);
  chunked_ = layout == H5D_CHUNKED;
  if (chunked_) {
    chunk_ = chunk_of(creation.id(), dims_, where_);
    const std::optional<std::uint64_t> chunk = bytes_of(type_, chunk_);
    if (!chunk || *chunk > kMaxChunk)
      throw error(where_, ": expected chunks of at most 1 GiB, found ", text_of(chunk_));
    require_plausible(*chunk, std::max(file_bytes, std::uint64_t{1} << 16), deflated, where_);
  } else if (layout == H5D_CONTIGUOUS && *total > 0) {
    const haddr_t start = H5Dget_offset(id_.id());
    if (start == HADDR_UNDEF)
      throw error(where_, ": expected data, found a dataset that was never written", library_reason());
    if (start > file_bytes || *total > file_bytes - start)
      throw error(where_, ": expected ", *total, " bytes at offset ", start, ", found the end of the file at ",
                  file_bytes);
  }
}

void Dataset::require_whole() {
  if (whole_) return;
  if (chunked_ && bytes() > 0) {
    std::uint64_t want = 1;
    for (std::size_t axis = 0; axis < dims_.size(); ++axis) want *= (dims_[axis] + chunk_[axis] - 1) / chunk_[axis];
    hsize_t stored = 0;
    const Handle whole = owned(H5Dget_space(id_.id()), where_, "shape cannot be read");
    require(H5Dget_num_chunks(id_.id(), whole.id(), &stored), where_, "chunks cannot be counted");
    if (stored < want) throw error(where_, ": expected ", want, " stored chunks, found ", stored);
  }
  whole_ = true;
}

/// Each chunk is there: a damaged index can have as many as it should, one of them twice, and HDF5 would make up the values of
/// the other. And its fletcher32 filter takes four bytes off a chunk without asking how long it is. (Asked by its storage size,
/// a chunk is looked up in the index; H5Dget_chunk_info_by_coord walks through all of it.)
void Dataset::require_stored(std::uint64_t first, std::uint64_t count) const {
  std::vector<hsize_t> at(dims_.size(), 0);
  for (at[0] = first / chunk_[0] * chunk_[0]; at[0] < first + count;) {
    hsize_t stored = 0;
    require(H5Dget_chunk_storage_size(id_.id(), at.data(), &stored), where_, "a chunk cannot be found");
    if (stored <= 4 * checksums_)
      throw error(where_, "[", at[0], "]: expected a stored chunk", checksums_ > 0 ? " with its checksum" : "",
                  ", found ", stored, " bytes");
    std::size_t axis = at.size() - 1;  // the next chunk, the last axis fastest
    while (axis > 0 && (at[axis] += chunk_[axis]) >= dims_[axis]) at[axis--] = 0;
    if (axis == 0) at[0] += chunk_[0];
  }
}

void Dataset::read_rows(std::uint64_t first, std::uint64_t count, std::span<std::byte> out) {
  GDNSIM_CHECK(first <= rows() && count <= rows() - first && out.size() == count * row_bytes_);
  start_library();
  require_whole();
  if (out.empty()) return;
  if (chunked_) require_stored(first, count);
  read_selected(select(first, count), first, out);
}

void Dataset::read_entry(std::uint64_t first, std::uint64_t second, std::span<std::byte> out) {
  GDNSIM_CHECK(dims_.size() > 1 && first < dims_[0] && second < dims_[1] && out.size() * dims_[1] == row_bytes_);
  start_library();
  require_whole();
  if (out.empty()) return;
  if (chunked_) require_stored(first, 1);
  std::vector<hsize_t> start(dims_.size(), 0), size(dims_.begin(), dims_.end());
  start[0] = first, size[0] = 1;
  start[1] = second, size[1] = 1;
  read_selected(select_box(space_, start, size, where_), first, out);
}

void Dataset::read_selected(const Handle& memory, std::uint64_t first, std::span<std::byte> out) {
  const herr_t status = H5Dread(id_.id(), file_type_.id(), memory.id(), space_.id(), H5P_DEFAULT, out.data());
  if (status < 0) throw error(where_, "[", first, "]: cannot be read", library_reason());
}

void Dataset::write_rows(std::uint64_t first, std::uint64_t count, std::span<const std::byte> in) {
  GDNSIM_CHECK(first <= rows() && count <= rows() - first && in.size() == count * row_bytes_);
  if (in.empty()) return;
  const Handle memory = select(first, count);
  const herr_t status = H5Dwrite(id_.id(), file_type_.id(), memory.id(), space_.id(), H5P_DEFAULT, in.data());
  if (status < 0) throw error(where_, "[", first, "]: cannot be written", library_reason());
}

/// Selects entries of the first axis in the file's space; returns the memory space.
Handle Dataset::select(std::uint64_t first, std::uint64_t count) {
  std::vector<hsize_t> start(dims_.size(), 0), size(dims_.begin(), dims_.end());
  if (size.empty()) return owned(H5Screate(H5S_SCALAR), where_, "cannot be selected");
  start[0] = first;
  size[0] = count;
  return select_box(space_, start, size, where_);
}

std::uint64_t Dataset::file_offset() const {
  const haddr_t start = H5Dget_offset(id_.id());
  if (start == HADDR_UNDEF) throw error(where_, ": expected contiguous data, found another layout", library_reason());
  return start;
}

void Dataset::close() {
  if (!id_.close()) throw error(where_, ": cannot be closed", library_reason());
  file_type_.close();
  space_.close();
}

}  // namespace gdnsim::h5
