// Plain file access below a log: every short transfer, interrupted call and full disk is seen. No HDF5 here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace gdnsim {

/// Owns one file descriptor. The calls that do work return 0 or an errno value, so that the caller can say what was lost.
class RawFile {
 public:
  enum class Mode { read, write };

  RawFile() = default;
  /// Throws Error with `shown` as the file's name.
  RawFile(const std::string& path, Mode mode, const std::string& shown);
  RawFile(RawFile&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
  RawFile& operator=(RawFile&& other) noexcept;
  ~RawFile();

  bool is_open() const { return descriptor_ >= 0; }
  std::uint64_t size() const;
  [[nodiscard]] int read_at(std::uint64_t offset, std::span<std::byte> out) const;  // a file that ends early is EIO
  [[nodiscard]] int write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  [[nodiscard]] int resize(std::uint64_t bytes);
  /// Makes sure that the disk holds the first `bytes` bytes; a file system that cannot promise it is not an error.
  [[nodiscard]] int reserve(std::uint64_t bytes);
  [[nodiscard]] int sync();  // data and size
  [[nodiscard]] int close();

  /// An open-file-description lock on the whole file: it ends with this descriptor, also by a kill. EAGAIN: someone has it.
  [[nodiscard]] int lock();

 private:
  int descriptor_ = -1;
};

/// A file on its way to `path`. It has no name until `put_in_place`, so a kill leaves nothing; on a file system that has no such
/// files it is called `path`.tmpPID-N meanwhile, and what killed processes left under such names goes when the next one is made.
class NewFile {
 public:
  /// Throws Error: "`path`: cannot be created".
  explicit NewFile(const std::string& path);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();
  /// Opens it for writing.
  RawFile open() const;
  /// Gives it its name; with `replace` false never in place of an existing file (EEXIST). 0 or an errno value.
  [[nodiscard]] int put_in_place(bool replace);

 private:
  const std::string path_;
  int descriptor_ = -1;    // of the file without a name
  std::string temporary_;  // its name when it needs one
};

/// Bytes that an ordinary user may still write where `path` lies; nothing where the file system cannot tell.
std::optional<std::uint64_t> free_bytes(const std::string& path);

/// True when some process, or another descriptor of this one, holds a RawFile lock on the file.
bool is_locked(const std::string& path);
/// Renames; with `replace` false never over an existing file (EEXIST). Syncs the directory. 0 or an errno value.
[[nodiscard]] int rename_file(const std::string& from, const std::string& to, bool replace);
/// A name beside `path` that no other process or call uses.
std::string temporary_name(const std::string& path);
/// RLIMIT_FSIZE, when there is one.
std::optional<std::uint64_t> file_size_limit();
/// "; no file may have more than N bytes here (RLIMIT_FSIZE, ulimit -f)", or nothing: for errors that it may be the cause of.
std::string limit_text();
/// The system's words for an errno value.
std::string errno_text(int code);

}  // namespace gdnsim
