#include "file/memory_file.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "gdnsim/error.hpp"

namespace gdnsim {

MemoryFile::MemoryFile(const std::string& shown) : descriptor_(::memfd_create("gdnsim", MFD_CLOEXEC)), shown_(shown) {
  if (descriptor_ < 0) throw error(shown, ": no memory for the skeleton: ", errno_text(errno));
}

MemoryFile& MemoryFile::operator=(MemoryFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(shown_, other.shown_);
  return *this;
}

MemoryFile::~MemoryFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string MemoryFile::path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

std::uint64_t MemoryFile::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) throw error(shown_, ": the skeleton cannot be read: ", errno_text(errno));
  return static_cast<std::uint64_t>(status.st_size);
}

/// Where the next data or hole begins; `otherwise` where there is none, or where the kernel cannot tell.
std::uint64_t MemoryFile::seek(std::uint64_t from, int whence, std::uint64_t otherwise) const {
  const off_t found = ::lseek(descriptor_, static_cast<off_t>(from), whence);
  return found < 0 ? otherwise : static_cast<std::uint64_t>(found);
}

std::vector<Patch> MemoryFile::contents() const {
  const std::uint64_t end = size();
  const bool knows_holes = ::lseek(descriptor_, 0, SEEK_HOLE) >= 0;
  std::vector<Patch> found;
  for (std::uint64_t at = 0; at < end;) {
    at = knows_holes ? seek(at, SEEK_DATA, end) : at;
    if (at >= end) break;
    const std::uint64_t stop = knows_holes ? seek(at, SEEK_HOLE, end) : end;
    Patch patch{at, std::vector<std::byte>(static_cast<std::size_t>(stop - at))};
    for (std::size_t done = 0; done < patch.bytes.size();) {
      const ssize_t got =
          ::pread(descriptor_, patch.bytes.data() + done, patch.bytes.size() - done, static_cast<off_t>(at + done));
      if (got <= 0) throw error(shown_, ": the skeleton cannot be read: ", errno_text(got < 0 ? errno : EIO));
      done += static_cast<std::size_t>(got);
    }
    found.push_back(std::move(patch));
    at = stop;
  }
  return found;
}

std::vector<Patch> difference(const std::vector<Patch>& before, const std::vector<Patch>& after) {
  GDNSIM_CHECK(before.size() == after.size());
  std::vector<Patch> changed;
  for (std::size_t p = 0; p < before.size(); ++p) {
    const std::vector<std::byte>&old = before[p].bytes, &now = after[p].bytes;
    GDNSIM_CHECK(before[p].offset == after[p].offset && old.size() == now.size());
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (old[i] == now[i]) continue;
      const std::uint64_t offset = before[p].offset + i;
      const bool continues = !changed.empty() && changed.back().offset + changed.back().bytes.size() == offset;
      if (!continues) changed.push_back({offset, {}});
      changed.back().bytes.push_back(now[i]);
    }
  }
  return changed;
}

}  // namespace gdnsim
