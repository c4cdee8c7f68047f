#include "raw_file.hpp"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

struct flock whole_file() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

/// Makes a rename durable. What cannot be synced loses nothing but that, so failures are not reported.
void sync_directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
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
  return path + ".tmp" + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

std::string errno_text(int code) { return std::generic_category().message(code); }

}  // namespace gdnsim
