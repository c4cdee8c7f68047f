// The HDF5 room: the only place that talks to the library (hdf5_io*.cpp include hdf5.h, nothing else does). One call and one
// check per wrapper, handles close themselves, every failure is an Error whose line opens with the file and the object.
//
// Files may be hostile, so reading is narrow: objects are opened by expected name, through hard links only, one component at a
// time; type, rank, every dimension, layout and filters are checked before a byte is allocated; data moves with the file's own
// type as memory type, so HDF5 never converts a value. What HDF5 itself does not survive is met by trial.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "file/memory_file.hpp"
#include "gdnsim/types.hpp"

namespace gdnsim::h5 {

/// Element types a dataset of ours can have, all little-endian. bf16: 16 bits, 1 sign, 8 exponent, 7 mantissa, bias 127.
enum class Type : std::uint8_t { i8, i32, i64, u64, f32, f16, bf16 };
std::size_t size_of(Type type);
std::string_view name_of(Type type);
Type type_of(DType type);

/// Type of a C++ element that is written and read as a whole vector.
template <class T>
constexpr Type type_for();
template <>
constexpr Type type_for<std::int8_t>() {
  return Type::i8;
}
template <>
constexpr Type type_for<std::int32_t>() {
  return Type::i32;
}
template <>
constexpr Type type_for<std::int64_t>() {
  return Type::i64;
}
template <>
constexpr Type type_for<std::uint64_t>() {
  return Type::u64;
}
template <>
constexpr Type type_for<float>() {
  return Type::f32;
}

using Dims = std::vector<std::uint64_t>;
/// As an expected dimension: any size.
inline constexpr std::uint64_t kAny = ~std::uint64_t{0};
std::string text_of(const Dims& dims);  // "[16, 3, 8]"; kAny as "any"
/// Bytes of an array; nothing when the product does not fit 2^62.
std::optional<std::uint64_t> bytes_of(Type type, const Dims& dims);

/// Owns one HDF5 identifier (hid_t is a 64-bit integer).
class Handle {
 public:
  Handle() = default;
  explicit Handle(std::int64_t id) : id_(id) {}
  Handle(Handle&& other) noexcept : id_(other.id_) { other.id_ = -1; }
  Handle& operator=(Handle&& other) noexcept;
  ~Handle();
  std::int64_t id() const { return id_; }
  bool close();  // true when there was nothing to close or the library closed it without an error

 private:
  std::int64_t id_ = -1;
};

/// A dataset of fixed shape, checked when it was opened.
class Dataset {
 public:
  const std::string& where() const { return where_; }  // "trace.h5: /steps/0/a"
  Type type() const { return type_; }
  const Dims& dims() const { return dims_; }
  std::uint64_t rows() const { return dims_.empty() ? 1 : dims_[0]; }  // the first axis
  std::size_t row_bytes() const { return row_bytes_; }                 // bytes of one entry of the first axis
  std::uint64_t bytes() const { return rows() * row_bytes_; }
  bool chunked() const { return chunked_; }

  /// Throws Error when a chunk was never stored: HDF5 would make up its values. Reading asks first.
  void require_whole();
  /// Moves entries first .. first+count-1 of the first axis, raw. `out`/`in` is exactly count * row_bytes() long.
  void read_rows(std::uint64_t first, std::uint64_t count, std::span<std::byte> out);
  /// Reads entry [first, second] of the first two axes.
  void read_entry(std::uint64_t first, std::uint64_t second, std::span<std::byte> out);
  void write_rows(std::uint64_t first, std::uint64_t count, std::span<const std::byte> in);
  void read_all(std::span<std::byte> out) { read_rows(0, rows(), out); }
  void write_all(std::span<const std::byte> in) { write_rows(0, rows(), in); }
  template <class T>
  std::vector<T> read_vector();
  template <class T>
  void write_vector(const std::vector<T>& values) {
    write_all(std::as_bytes(std::span(values)));
  }

  /// Where the data starts in the file, for pread and pwrite. Throws Error unless the dataset is contiguous and allocated.
  std::uint64_t file_offset() const;
  /// Closes with a checked H5Dclose: that is where HDF5 reports some failed writes. Throws Error.
  void close();

 private:
  friend class Group;
  void check_storage(std::uint64_t file_bytes);
  void require_stored(std::uint64_t first, std::uint64_t count) const;
  Handle select(std::uint64_t first, std::uint64_t count);
  void read_selected(const Handle& memory, std::uint64_t first, std::span<std::byte> out);
  Handle id_, file_type_, space_;
  std::string where_;
  Type type_ = Type::f32;
  Dims dims_;
  std::size_t row_bytes_ = 0;
  bool chunked_ = false, whole_ = false;  // whole_: every chunk is known to be stored
  Dims chunk_;
  unsigned checksums_ = 0;  // fletcher32 filters
};

/// What a reader has asked a file for: names by the path of their group.
using Asked = std::map<std::string, std::set<std::string>>;

/// A group (or the root) of an open file.
class Group {
 public:
  const std::string& where() const { return where_; }  // "trace.h5: /steps"
  std::string where(std::string_view name) const;      // "trace.h5: /steps/index"

  // Reading. `name` is one path component.
  /// True when a link of that name exists. A soft or external link is an Error.
  bool has(std::string_view name) const;
  Group group(std::string_view name) const;
  std::optional<Group> find_group(std::string_view name) const;
  /// Opens and checks class, size, rank, every dimension (kAny: any size), layout, filters, and that the whole is plausible
  /// for a file of this size. bf16 also takes uint16 or 2-byte opaque with the string attribute dtype="bfloat16".
  Dataset dataset(std::string_view name, Type type, const Dims& dims) const;
  std::optional<Dataset> find_dataset(std::string_view name, Type type, const Dims& dims) const;
  template <class T>
  std::vector<T> read_vector(std::string_view name, const Dims& dims) const {
    return dataset(name, type_for<T>(), dims).template read_vector<T>();
  }

  // Attributes: scalars or one-element arrays. Integers of any width, f32 (or f64 whose value an f32 holds exactly), strings
  // of fixed or variable length up to `kMaxText` bytes. The getters throw Error when the attribute is missing or another type.
  bool has_attribute(std::string_view name) const;
  std::int64_t int_attribute(std::string_view name) const;
  float float_attribute(std::string_view name) const;
  std::string string_attribute(std::string_view name) const;
  /// Every string attribute, sorted by name (integers and floats as text; other types are left out). At most 256.
  std::vector<std::pair<std::string, std::string>> all_attributes() const;

  // Writing: object times are off, links and attributes stay compact.
  Group create_group(std::string_view name);
  /// Contiguous, allocated at once, never filled, no filters.
  Dataset create_dataset(std::string_view name, Type type, const Dims& dims);
  template <class T>
  void create_vector(std::string_view name, const Dims& dims, const std::vector<T>& values) {
    Dataset data = create_dataset(name, type_for<T>(), dims);
    data.write_vector(values);
    data.close();
  }
  void set_int(std::string_view name, std::int64_t value);         // int32 where it fits, else int64
  void set_float(std::string_view name, float value);              // f32
  void set_string(std::string_view name, std::string_view value);  // fixed length, UTF-8, at most 60,000 bytes
  void overwrite_int(std::string_view name, std::int64_t value);   // an existing int32 attribute, in place
  /// A text of any length up to kMaxText, as an i8 dataset of its bytes (attributes end at 64 KiB).
  void create_text(std::string_view name, std::string_view value);
  std::string read_text(std::string_view name) const;

  static constexpr std::size_t kMaxText = std::size_t{1} << 20;

 private:
  friend class File;
  Handle id_;
  std::string file_, path_, where_;
  std::uint64_t file_bytes_ = 0;
  std::shared_ptr<Asked> asked_;
};

/// An open file. Declare it before the groups and datasets that live in it.
class File {
 public:
  /// Read-only. No library lock, no plugins. Throws Error: no such file, not HDF5, truncated, and the library's own reason.
  static File open(const std::string& path);
  /// New file (never an existing one): times off, library bounds 1.8 .. 1.10. `messages_as` names the file in error lines (the
  /// final name, when `path` is a temporary one). Objects of `align_from` bytes or more start at multiples of 4,096; a log
  /// says 1, so that every dataset does. HDF5 works in memory (memory_file.hpp); `close` writes the file.
  static File create(const std::string& path, const std::string& messages_as, std::uint64_t align_from = 4096);
  /// The same into a file that is there and empty.
  static File create(RawFile out, const std::string& messages_as, std::uint64_t align_from);

  Group root() const;
  /// Paths of the links that nobody has asked for, in the groups that somebody did; sorted, at most 64.
  std::vector<std::string> unasked() const;
  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }  // size on disk when it was opened
  /// Closes; every group and dataset of the file must be closed by then. A created file is written to disk now, every call
  /// checked, bulk data that was not written left as holes. Throws Error.
  void close();
  /// Closes a created file as above. Returns the bytes that `change` would make different, without making them different:
  /// who fills the holes with pwrite can do the last change (@complete) that way too, with no HDF5 near the disk.
  std::vector<Patch> close_and_prepare(const std::function<void(Group& root)>& change);

 private:
  void close_library_file();
  std::vector<Patch> write_out();
  std::optional<MemoryFile> memory_;  // of a created file
  RawFile out_;
  Handle id_;
  std::string path_;
  std::uint64_t bytes_ = 0;
  std::shared_ptr<Asked> asked_ = std::make_shared<Asked>();
};

template <class T>
std::vector<T> Dataset::read_vector() {
  require_whole();
  std::vector<T> values(static_cast<std::size_t>(bytes() / sizeof(T)));
  read_all(std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace gdnsim::h5
