// HDF5 access: handles, files and groups. Data is in hdf5_io_data.cpp, attributes in hdf5_io_attribute.cpp.
#include "file/hdf5_io.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "file/hdf5_io_impl.hpp"

namespace gdnsim::h5 {

namespace {

/// Links and attributes stay in the object header: fewer structures to parse, and the same bytes whatever their number.
constexpr unsigned kCompactLinks = 4096, kCompactAttributes = 1024;

extern "C" herr_t keep_innermost(unsigned n, const H5E_error2_t* entry, void* text) {
  if (n == 0 && entry->desc != nullptr) *static_cast<std::string*>(text) = entry->desc;
  return 0;
}

void require_regular(const std::string& path, const std::string& where, std::uint64_t& bytes) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw error(where, ": cannot be opened: ", std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw error(where, ": expected a regular file");
  bytes = static_cast<std::uint64_t>(status.st_size);
}

/// File access: plain I/O, explicit library bounds, no lock (a log is read while it is written).
Handle access_list(const std::string& where, std::uint64_t align_from = 4096) {
  Handle list = owned(H5Pcreate(H5P_FILE_ACCESS), where, "cannot make an access list");
  require(H5Pset_fapl_sec2(list.id()), where, "cannot choose POSIX I/O");
  require(H5Pset_libver_bounds(list.id(), H5F_LIBVER_V18, H5F_LIBVER_V110), where, "cannot set library bounds");
  require(H5Pset_file_locking(list.id(), false, true), where, "cannot switch locking off");
  require(H5Pset_alignment(list.id(), align_from, 4096), where, "cannot set alignment");
  require(H5Pset_cache(list.id(), 0, 101, std::size_t{1} << 18, 1.0), where, "cannot set the chunk cache");
  require(H5Pset_small_data_block_size(list.id(), 0), where, "cannot set the small block size");
  return list;
}

/// Access to a MemoryFile: by the stdio driver, since the POSIX one insists on a real path behind the name.
Handle memory_access_list(const std::string& where, std::uint64_t align_from = 4096) {
  Handle list = access_list(where, align_from);
  require(H5Pset_fapl_stdio(list.id()), where, "cannot choose stdio");
  // Closing the file fails while one of its objects is open: the library would keep the file open, and the copy be short.
  require(H5Pset_fclose_degree(list.id(), H5F_CLOSE_SEMI), where, "cannot set the close degree");
  return list;
}

/// A creation list of a file, group or dataset without object times.
Handle creation_list(hid_t kind, const std::string& where) {
  Handle list = owned(H5Pcreate(kind), where, "cannot make a creation list");
  require(H5Pset_obj_track_times(list.id(), false), where, "cannot switch times off");
  require(H5Pset_attr_phase_change(list.id(), kCompactAttributes, 0), where, "cannot keep attributes compact");
  if (kind != H5P_DATASET_CREATE)
    require(H5Pset_link_phase_change(list.id(), kCompactLinks, 0), where, "cannot keep links compact");
  return list;
}

}  // namespace

void start_library() {
  thread_local const bool started = [] {
    H5dont_atexit();  // every file is closed by its owner; after a failed close the library's own clean-up would crash
    H5open();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    H5PLset_loading_state(0);
    return true;
  }();
  (void)started;
}

std::string library_reason() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &text);
  H5Eclear2(H5E_DEFAULT);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  return text.empty() ? text : " (HDF5: " + text + ")";
}

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    close();
    id_ = other.id_;
    other.id_ = -1;
  }
  return *this;
}

Handle::~Handle() { close(); }

bool Handle::close() {
  if (id_ < 0) return true;
  const hid_t id = id_;
  id_ = -1;
  const H5I_type_t kind = H5Iget_type(id);
  const herr_t status = kind == H5I_FILE ? H5Fclose(id) : kind == H5I_DATASET ? H5Dclose(id) : H5Idec_ref(id);
  return status >= 0;
}

File File::open(const std::string& path) {
  start_library();
  File file;
  file.path_ = path;
  require_regular(path, path, file.bytes_);
  const Handle access = access_list(path);
  require(H5Pset_sieve_buf_size(access.id(), 0), path,
          "cannot set the sieve");  // else each small read is one of 64 KiB
  file.id_ = owned(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), path, "expected a whole HDF5 file");
  return file;
}

File File::create(const std::string& path, const std::string& messages_as, std::uint64_t align_from) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) throw error(messages_as, ": cannot be created: ", errno_text(errno));
  ::close(descriptor);
  return create(RawFile(path, RawFile::Mode::write, messages_as), messages_as, align_from);
}

File File::create(RawFile out, const std::string& messages_as, std::uint64_t align_from) {
  start_library();
  File file;
  file.path_ = messages_as;
  file.out_ = std::move(out);
  file.memory_.emplace(messages_as);
  const Handle access = memory_access_list(messages_as, align_from);
  const Handle creation = creation_list(H5P_FILE_CREATE, messages_as);
  const hid_t id = H5Fcreate(file.memory_->path().c_str(), H5F_ACC_TRUNC, creation.id(), access.id());
  file.id_ = owned(id, messages_as, "cannot be created");
  return file;
}

Group File::root() const {
  Group group;
  group.id_ = owned(H5Gopen2(id_.id(), "/", H5P_DEFAULT), path_, "the root group cannot be opened");
  group.file_ = path_;
  group.path_ = "/";
  group.where_ = path_ + ": /";
  group.file_bytes_ = bytes_;
  group.asked_ = asked_;
  return group;
}

namespace {

constexpr std::size_t kMostUnasked = 64, kMostLinks = 4096;

/// Names of a group's links, ascending.
std::vector<std::string> names_in(const Handle& group, const std::string& where) {
  H5G_info_t info{};
  require(H5Gget_info(group.id(), &info), where, "its links cannot be counted");
  std::vector<std::string> names;
  for (hsize_t i = 0; i < std::min<hsize_t>(info.nlinks, kMostLinks); ++i) {
    std::string name(256, '\0');
    const ssize_t size = require(
        H5Lget_name_by_idx(group.id(), ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size(), H5P_DEFAULT),
        where, "its links cannot be listed");
    name.resize(std::min<std::size_t>(static_cast<std::size_t>(size), name.size() - 1));
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

std::vector<std::string> File::unasked() const {
  start_library();
  std::vector<std::string> paths;
  for (const auto& [path, names] : *asked_) {
    const std::string where = path_ + ": " + path;
    const Handle group = owned(H5Gopen2(id_.id(), path.c_str(), H5P_DEFAULT), where, "cannot be opened");
    for (const std::string& name : names_in(group, where))
      if (!names.contains(name) && paths.size() < kMostUnasked)
        paths.push_back(path == "/" ? path + name : path + "/" + name);
  }
  return paths;
}

void File::close_library_file() {
  if (!id_.close()) throw error(path_, ": cannot be closed", library_reason());
}

void File::close() {
  close_library_file();
  if (memory_) write_out();
}

std::vector<Patch> File::write_out() {
  const auto must = [&](int failed) {
    if (failed != 0) throw error(path_, ": cannot be written: ", errno_text(failed));
  };
  const std::uint64_t size = memory_->size();
  std::vector<Patch> contents = memory_->contents();
  must(out_.resize(size));
  for (const Patch& patch : contents) must(out_.write_at(patch.offset, patch.bytes));
  must(out_.close());
  return contents;
}

std::vector<Patch> File::close_and_prepare(const std::function<void(Group& root)>& change) {
  GDNSIM_CHECK(memory_.has_value());
  close_library_file();
  const std::vector<Patch> before = write_out();
  const Handle access = memory_access_list(path_);
  id_ = owned(H5Fopen(memory_->path().c_str(), H5F_ACC_RDWR, access.id()), path_, "cannot be opened again");
  {
    Group again = root();
    change(again);
  }
  close_library_file();
  return difference(before, memory_->contents());
}

std::string Group::where(std::string_view name) const {
  std::string text = where_;
  if (path_ != "/") text += '/';
  return text.append(name);
}

bool Group::has(std::string_view name) const {
  start_library();
  const std::string link(name);
  (*asked_)[path_].insert(link);
  const htri_t there = require(H5Lexists(id_.id(), link.c_str(), H5P_DEFAULT), where(name), "cannot be looked up");
  if (there == 0) return false;
  H5L_info_t info{};
  require(H5Lget_info(id_.id(), link.c_str(), &info, H5P_DEFAULT), where(name), "cannot be looked up");
  if (info.type != H5L_TYPE_HARD)
    throw error(where(name), ": expected an object of this file, found a soft or external link");
  return true;
}

Group Group::group(std::string_view name) const {
  if (!has(name)) throw error(where(name), ": expected a group, found nothing");
  Group found;
  const std::string link(name);
  Handle object = owned(H5Oopen(id_.id(), link.c_str(), H5P_DEFAULT), where(name), "cannot be opened");
  if (H5Iget_type(object.id()) != H5I_GROUP) throw error(where(name), ": expected a group, found another object");
  found.id_ = std::move(object);
  found.file_ = file_;
  found.path_ = path_ == "/" ? "/" + link : path_ + "/" + link;
  found.where_ = file_ + ": " + found.path_;
  found.file_bytes_ = file_bytes_;
  found.asked_ = asked_;
  (*asked_)[found.path_];
  return found;
}

std::optional<Group> Group::find_group(std::string_view name) const {
  if (!has(name)) return std::nullopt;
  return group(name);
}

Group Group::create_group(std::string_view name) {
  const Handle creation = creation_list(H5P_GROUP_CREATE, where(name));
  const std::string link(name);
  const hid_t id = H5Gcreate2(id_.id(), link.c_str(), H5P_DEFAULT, creation.id(), H5P_DEFAULT);
  owned(id, where(name), "cannot be created");
  return group(name);
}

Dataset Group::create_dataset(std::string_view name, Type type, const Dims& dims) {
  Dataset data;
  data.where_ = where(name);
  data.type_ = type;
  data.dims_ = dims;
  const std::optional<std::uint64_t> bytes = bytes_of(type, dims);
  if (!bytes) throw error(data.where_, ": a dataset of ", name_of(type), " ", text_of(dims), " is too large");
  data.row_bytes_ = static_cast<std::size_t>(data.rows() == 0 ? 0 : *bytes / data.rows());
  data.file_type_ = make_type(type);
  const std::vector<hsize_t> sizes(dims.begin(), dims.end());
  const int rank = static_cast<int>(dims.size());
  data.space_ = owned(H5Screate_simple(rank, sizes.data(), nullptr), data.where_, "shape cannot be made");
  const Handle creation = creation_list(H5P_DATASET_CREATE, data.where_);
  require(H5Pset_layout(creation.id(), H5D_CONTIGUOUS), data.where_, "cannot be contiguous");
  require(H5Pset_alloc_time(creation.id(), H5D_ALLOC_TIME_EARLY), data.where_, "cannot be allocated early");
  require(H5Pset_fill_time(creation.id(), H5D_FILL_TIME_NEVER), data.where_, "cannot be left unfilled");
  const std::string link(name);
  const hid_t id = H5Dcreate2(id_.id(), link.c_str(), data.file_type_.id(), data.space_.id(), H5P_DEFAULT,
                              creation.id(), H5P_DEFAULT);
  data.id_ = owned(id, data.where_, "cannot be created");
  data.whole_ = true;
  return data;
}

}  // namespace gdnsim::h5
