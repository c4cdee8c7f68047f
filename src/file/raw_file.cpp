#include "file/raw_file.hpp"

#include <atomic>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

constexpr const char* kTemporary = ".tmp";

struct flock whole_file() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

/// Makes a rename durable. What cannot be synced loses nothing but that, so failures are not reported.
void sync_directory_of(const std::string& path) {
  const std::string directory = directory_of(path);
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

int rename_without_replacing(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  if (::link(from.c_str(), to.c_str()) != 0) return errno;  // the older way to the same end
  return ::unlink(from.c_str()) == 0 ? 0 : errno;
}

/// The process of a name `temporary_name` made, or 0.
pid_t maker_of(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return 0;
  const std::string rest(name.substr(prefix.size()));
  int process = 0, count = 0, length = 0;
  if (std::sscanf(rest.c_str(), "%9d-%9d%n", &process, &count, &length) != 2) return 0;
  return process > 0 && static_cast<std::size_t>(length) == rest.size() ? process : 0;
}

/// Removes what killed processes left of their attempts at `path`. What cannot be removed does no harm.
void remove_leftovers(const std::string& path) {
  const std::string prefix = std::filesystem::path(path).filename().string() + kTemporary;
  std::error_code ignored;
  for (std::filesystem::directory_iterator entry(directory_of(path), ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    const pid_t maker = maker_of(entry->path().filename().string(), prefix);
    const bool dead = maker != 0 && ::kill(maker, 0) != 0 && errno == ESRCH;
    if (dead && !is_locked(entry->path().string())) ::unlink(entry->path().c_str());
  }
}

std::string name_of_descriptor(int descriptor) { return "/proc/self/fd/" + std::to_string(descriptor); }

}  // namespace

RawFile::RawFile(const std::string& path, Mode mode, const std::string& shown) {
  const int flags = (mode == Mode::read ? O_RDONLY : O_RDWR) | O_CLOEXEC;
  descriptor_ = ::open(path.c_str(), flags);
  if (descriptor_ < 0) throw error(shown, ": cannot open: ", errno_text(errno));
}

RawFile& RawFile::operator=(RawFile&& other) noexcept {
  if (this != &other) {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = other.descriptor_;
    other.descriptor_ = -1;
  }
  return *this;
}

RawFile::~RawFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::uint64_t RawFile::size() const {
  struct stat status;
  return ::fstat(descriptor_, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

int RawFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return EIO;
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return 0;
}

int RawFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno;
    if (put == 0) return EIO;
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
  return 0;
}

int RawFile::resize(std::uint64_t bytes) {
  int failed = EINTR;
  while (failed == EINTR) failed = ::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  return failed;
}

int RawFile::reserve(std::uint64_t bytes) {
  int failed = EINTR;
  while (failed == EINTR) failed = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes));
  return failed == EOPNOTSUPP || failed == EINVAL ? 0 : failed;
}

int RawFile::sync() {
  int failed = EINTR;
  while (failed == EINTR) failed = ::fdatasync(descriptor_) == 0 ? 0 : errno;
  return failed;
}

int RawFile::close() {
  if (descriptor_ < 0) return 0;
  const int failed = ::close(descriptor_) == 0 || errno == EINTR ? 0 : errno;
  descriptor_ = -1;
  return failed;
}

int RawFile::lock() {
  struct flock lock = whole_file();
  return ::fcntl(descriptor_, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

bool is_locked(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  struct flock lock = whole_file();
  const bool locked = ::fcntl(descriptor, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  ::close(descriptor);
  return locked;
}

int rename_file(const std::string& from, const std::string& to, bool replace) {
  const int failed =
      replace ? (std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno) : rename_without_replacing(from, to);
  if (failed == 0) sync_directory_of(to);
  return failed;
}

std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> count{0};
  return path + kTemporary + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

NewFile::NewFile(const std::string& path) : path_(path) {
  remove_leftovers(path);
  descriptor_ = ::open(directory_of(path).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  if (descriptor_ >= 0) return;
  const std::string name = temporary_name(path);
  const int named = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (named < 0) throw error(path, ": cannot be created: ", errno_text(errno));
  ::close(named);
  temporary_ = name;
}

NewFile::~NewFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  if (descriptor_ >= 0) ::close(descriptor_);
}

RawFile NewFile::open() const {
  return RawFile(temporary_.empty() ? name_of_descriptor(descriptor_) : temporary_, RawFile::Mode::write, path_);
}

/// A link cannot replace a file, a rename can: then the file, whole by now, has a temporary name for a moment.
int NewFile::put_in_place(bool replace) {
  if (temporary_.empty()) {
    const std::string name = replace ? temporary_name(path_) : path_, from = name_of_descriptor(descriptor_);
    if (::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) return errno;
    if (!replace) return sync_directory_of(path_), 0;
    temporary_ = name;
  }
  const int failed = rename_file(temporary_, path_, replace);
  if (failed == 0) temporary_.clear();
  return failed;
}

std::optional<std::uint64_t> free_bytes(const std::string& path) {
  struct statvfs status;
  if (::statvfs(directory_of(path).c_str(), &status) != 0 || status.f_blocks == 0) return std::nullopt;
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

std::optional<std::uint64_t> file_size_limit() {
  struct rlimit limit;
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<std::uint64_t>(limit.rlim_cur);
}

std::string limit_text() {
  const std::optional<std::uint64_t> limit = file_size_limit();
  return limit ? "; no file may have more than " + std::to_string(*limit) + " bytes here (RLIMIT_FSIZE, ulimit -f)"
               : "";
}

std::string errno_text(int code) { return std::generic_category().message(code) + (code == EFBIG ? limit_text() : ""); }

}  // namespace gdnsim
