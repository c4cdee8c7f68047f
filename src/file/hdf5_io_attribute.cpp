// HDF5 access: attributes. Small values, read raw and interpreted here, so that no conversion of the library touches them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "file/hdf5_io_impl.hpp"

namespace gdnsim::h5 {

namespace {

constexpr std::size_t kMaxFixedAttribute = 60000;  // an object header message ends at 64 KiB
constexpr std::size_t kMaxAttributes = 256;

struct Attribute {
  Handle id, type;
  std::string where;
};

std::string where_attribute(const Group& group, std::string_view name) {
  return group.where() + " @" + std::string(name);
}

Attribute open_attribute(const Group& group, hid_t object, std::string_view name, std::string_view wanted) {
  Attribute found;
  found.where = where_attribute(group, name);
  if (!group.has_attribute(name)) throw error(found.where, ": expected ", wanted, ", found nothing");
  const std::string text(name);
  found.id = owned(H5Aopen(object, text.c_str(), H5P_DEFAULT), found.where, "cannot be opened");
  found.type = owned(H5Aget_type(found.id.id()), found.where, "type cannot be read");
  const Handle space = owned(H5Aget_space(found.id.id()), found.where, "shape cannot be read");
  const hssize_t count = H5Sget_simple_extent_npoints(space.id());
  if (count != 1) throw error(found.where, ": expected one value, found ", count, library_reason());
  return found;
}

/// Raw little-endian bytes of a number of 1 to 8 bytes.
std::array<unsigned char, 8> raw_number(const Attribute& attribute, hid_t number) {
  std::array<unsigned char, 8> raw{};
  const std::size_t size = H5Tget_size(number);
  require(H5Aread(attribute.id.id(), attribute.type.id(), raw.data()), attribute.where, "cannot be read");
  if (H5Tget_order(number) == H5T_ORDER_BE) std::reverse(raw.begin(), raw.begin() + static_cast<std::ptrdiff_t>(size));
  return raw;
}

bool plain_integer(hid_t type) {
  const std::size_t size = H5Tget_size(type);
  const bool sized = size == 1 || size == 2 || size == 4 || size == 8;
  return H5Tget_class(type) == H5T_INTEGER && sized && H5Tget_precision(type) == 8 * size && H5Tget_offset(type) == 0;
}

/// An integer, or an enum of integers (how h5py stores a bool).
std::optional<std::int64_t> integer_value(const Attribute& attribute) {
  const bool is_enum = H5Tget_class(attribute.type.id()) == H5T_ENUM;
  const Handle base(is_enum ? H5Tget_super(attribute.type.id()) : H5Tcopy(attribute.type.id()));
  if (base.id() < 0 || !plain_integer(base.id()) || H5Tget_size(attribute.type.id()) != H5Tget_size(base.id()))
    return std::nullopt;
  const std::array<unsigned char, 8> raw = raw_number(attribute, base.id());
  const unsigned unused = 64 - 8 * static_cast<unsigned>(H5Tget_size(base.id()));
  std::uint64_t word = 0;
  std::memcpy(&word, raw.data(), sizeof word);
  word <<= unused;
  if (H5Tget_sign(base.id()) == H5T_SGN_2) return static_cast<std::int64_t>(word) >> unused;
  if ((word >> unused) > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  return static_cast<std::int64_t>(word >> unused);
}

bool is_f64(hid_t type) { return H5Tequal(type, H5T_IEEE_F64LE) > 0; }

/// Nothing for another type, and for an f64 that no f32 equals.
std::optional<float> float_value(const Attribute& attribute) {
  const hid_t type = attribute.type.id();
  if (!is_type(type, Type::f32) && !is_f64(type)) return std::nullopt;
  const std::array<unsigned char, 8> raw = raw_number(attribute, type);
  float narrow = 0;
  std::memcpy(&narrow, raw.data(), sizeof narrow);
  if (!is_f64(type)) return narrow;
  double wide = 0;
  std::memcpy(&wide, raw.data(), sizeof wide);
  if (!(std::fabs(wide) <= std::numeric_limits<float>::max())) return std::nullopt;
  narrow = static_cast<float>(wide);
  return static_cast<double>(narrow) == wide ? std::optional(narrow) : std::nullopt;
}

std::string fixed_text(const Attribute& attribute) {
  const std::size_t size = H5Tget_size(attribute.type.id());
  if (size > kMaxFixedAttribute * 2) throw error(attribute.where, ": expected a short text, found ", size, " bytes");
  std::string text(size, '\0');
  require(H5Aread(attribute.id.id(), attribute.type.id(), text.data()), attribute.where, "cannot be read");
  text.resize(std::min(text.find('\0'), text.size()));
  if (H5Tget_strpad(attribute.type.id()) == H5T_STR_SPACEPAD) text.resize(text.find_last_not_of(' ') + 1);
  return text;
}

std::string text_value(const Attribute& attribute) {
  if (H5Tis_variable_str(attribute.type.id()) > 0)
    return vlen_text(attribute.id.id(), attribute.type.id(), attribute.where);
  return fixed_text(attribute);
}

template <class Value>
void set_number(hid_t object, const std::string& where, std::string_view name, const Handle& type, Value value) {
  const std::string text(name);
  const Handle space = owned(H5Screate(H5S_SCALAR), where, "cannot be made");
  const hid_t id = H5Acreate2(object, text.c_str(), type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT);
  const Handle attribute = owned(id, where, "cannot be created");
  require(H5Awrite(attribute.id(), type.id(), &value), where, "cannot be written");
}

/// An attribute that all_attributes shows: its text, or nothing for other types.
std::optional<std::string> shown(const Attribute& attribute) {
  const H5T_class_t kind = H5Tget_class(attribute.type.id());
  if (kind == H5T_STRING) return text_value(attribute);
  if (kind == H5T_INTEGER || kind == H5T_ENUM) {
    const std::optional<std::int64_t> value = integer_value(attribute);
    return value ? std::optional(std::to_string(*value)) : std::nullopt;
  }
  if (kind != H5T_FLOAT) return std::nullopt;
  const std::optional<float> value = float_value(attribute);
  if (!value) return std::nullopt;
  std::ostringstream text;
  text.precision(9);
  text << *value;
  return text.str();
}

}  // namespace

std::string vlen_text(hid_t attribute, hid_t type, const std::string& where) {
  char* raw = nullptr;
  require(H5Aread(attribute, type, &raw), where, "cannot be read");
  if (raw == nullptr) return "";
  const std::string text(raw, ::strnlen(raw, Group::kMaxText));
  H5free_memory(raw);
  return text;
}

bool Group::has_attribute(std::string_view name) const {
  start_library();
  const std::string text(name);
  return require(H5Aexists(id_.id(), text.c_str()), where_attribute(*this, name), "cannot be looked up") > 0;
}

std::int64_t Group::int_attribute(std::string_view name) const {
  const Attribute attribute = open_attribute(*this, id_.id(), name, "an integer");
  const std::optional<std::int64_t> value = integer_value(attribute);
  if (!value) throw error(attribute.where, ": expected an integer, found ", describe(attribute.type.id()));
  return *value;
}

float Group::float_attribute(std::string_view name) const {
  const Attribute attribute = open_attribute(*this, id_.id(), name, "an f32");
  const std::optional<float> value = float_value(attribute);
  if (value) return *value;
  const bool wide = is_f64(attribute.type.id());
  throw error(attribute.where, ": expected an f32, found ",
              wide ? "an f64 that no f32 equals" : describe(attribute.type.id()));
}

std::string Group::string_attribute(std::string_view name) const {
  const Attribute attribute = open_attribute(*this, id_.id(), name, "a string");
  if (H5Tget_class(attribute.type.id()) != H5T_STRING)
    throw error(attribute.where, ": expected a string, found ", describe(attribute.type.id()));
  return text_value(attribute);
}

std::vector<std::pair<std::string, std::string>> Group::all_attributes() const {
  H5O_info_t info{};
  require(H5Oget_info2(id_.id(), &info, H5O_INFO_NUM_ATTRS), where_, "attributes cannot be counted");
  if (info.num_attrs > kMaxAttributes)
    throw error(where_, ": expected at most ", kMaxAttributes, " attributes, found ", info.num_attrs);
  std::vector<std::pair<std::string, std::string>> all;
  for (hsize_t n = 0; n < info.num_attrs; ++n) {
    const hid_t id = H5Aopen_by_idx(id_.id(), ".", H5_INDEX_NAME, H5_ITER_INC, n, H5P_DEFAULT, H5P_DEFAULT);
    const Handle opened = owned(id, where_, "an attribute cannot be opened");
    char name[256] = {};
    require(H5Aget_name(opened.id(), sizeof name, name), where_, "an attribute's name cannot be read");
    const Handle space = owned(H5Aget_space(opened.id()), where_attribute(*this, name), "shape cannot be read");
    if (H5Sget_simple_extent_npoints(space.id()) != 1) continue;
    const Attribute attribute = open_attribute(*this, id_.id(), name, "a value");
    if (const std::optional<std::string> text = shown(attribute)) all.emplace_back(name, *text);
  }
  std::sort(all.begin(), all.end());
  return all;
}

void Group::set_int(std::string_view name, std::int64_t value) {
  const bool narrow = value == static_cast<std::int32_t>(value);
  const std::string where = where_attribute(*this, name);
  if (narrow) return set_number(id_.id(), where, name, make_type(Type::i32), static_cast<std::int32_t>(value));
  set_number(id_.id(), where, name, make_type(Type::i64), value);
}

void Group::set_float(std::string_view name, float value) {
  set_number(id_.id(), where_attribute(*this, name), name, make_type(Type::f32), value);
}

void Group::set_string(std::string_view name, std::string_view value) {
  const std::string where = where_attribute(*this, name), text(name);
  if (value.size() > kMaxFixedAttribute)
    throw error(where, ": expected at most ", kMaxFixedAttribute, " bytes, found ", value.size());
  if (value.find('\0') != value.npos) throw error(where, ": expected a text without zero bytes");
  const Handle type = owned(H5Tcopy(H5T_C_S1), where, "type cannot be made");
  const std::string padded(value.empty() ? std::string_view("\0", 1) : value);
  require(H5Tset_size(type.id(), padded.size()), where, "type cannot be made");
  require(H5Tset_strpad(type.id(), H5T_STR_NULLPAD), where, "type cannot be made");
  require(H5Tset_cset(type.id(), H5T_CSET_UTF8), where, "type cannot be made");
  const Handle space = owned(H5Screate(H5S_SCALAR), where, "cannot be made");
  const hid_t id = H5Acreate2(id_.id(), text.c_str(), type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT);
  const Handle attribute = owned(id, where, "cannot be created");
  require(H5Awrite(attribute.id(), type.id(), padded.data()), where, "cannot be written");
}

void Group::overwrite_int(std::string_view name, std::int64_t value) {
  const Attribute attribute = open_attribute(*this, id_.id(), name, "an integer");
  GDNSIM_CHECK(is_type(attribute.type.id(), Type::i32));
  const auto narrow = static_cast<std::int32_t>(value);
  require(H5Awrite(attribute.id.id(), attribute.type.id(), &narrow), attribute.where, "cannot be written");
}

void Group::create_text(std::string_view name, std::string_view value) {
  if (value.size() > kMaxText)
    throw error(where(name), ": expected at most ", kMaxText, " bytes of text, found ", value.size());
  const auto* bytes = reinterpret_cast<const std::int8_t*>(value.data());
  create_vector(name, {value.size()}, std::vector<std::int8_t>(bytes, bytes + value.size()));
}

std::string Group::read_text(std::string_view name) const {
  Dataset data = dataset(name, Type::i8, {kAny});
  if (data.bytes() > kMaxText)
    throw error(data.where(), ": expected at most ", kMaxText, " bytes of text, found ", data.bytes());
  std::string text(static_cast<std::size_t>(data.bytes()), '\0');
  data.read_all(std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace gdnsim::h5
