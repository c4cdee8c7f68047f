// A file in memory for HDF5 to lay out a skeleton in. HDF5 does not survive a full disk (a failed close leaves the file half
// open in the library, and later calls crash), so it never writes to one: the skeleton is made here, where bulk data is a
// hole that costs nothing, and copied out by RawFile, which sees every failure. (A limit on file sizes reaches memory files
// too: HDF5 then fails here, and hdf5_io says so.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "file/raw_file.hpp"

namespace gdnsim {

/// Bytes that belong at an offset of a file.
struct Patch {
  std::uint64_t offset = 0;
  std::vector<std::byte> bytes;
};

class MemoryFile {
 public:
  /// Throws Error with `shown` as the file's name.
  explicit MemoryFile(const std::string& shown);
  MemoryFile(MemoryFile&& other) noexcept : descriptor_(other.descriptor_), shown_(std::move(other.shown_)) {
    other.descriptor_ = -1;
  }
  MemoryFile& operator=(MemoryFile&& other) noexcept;
  ~MemoryFile();

  /// A name that opens it, in this process only.
  std::string path() const;
  std::uint64_t size() const;
  /// Everything but the holes, in order.
  std::vector<Patch> contents() const;

 private:
  std::uint64_t seek(std::uint64_t from, int whence, std::uint64_t otherwise) const;
  int descriptor_ = -1;
  std::string shown_;
};

/// What turns `before` into `after`, two contents with the same holes: only the bytes that differ.
std::vector<Patch> difference(const std::vector<Patch>& before, const std::vector<Patch>& after);

}  // namespace gdnsim
