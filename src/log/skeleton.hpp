// The HDF5 side of a log: everything that is known before the first step, written once and read back by the same file.
#pragma once

#include <string>

#include "file/raw_file.hpp"
#include "gdnsim/log.hpp"
#include "log/layout.hpp"

namespace gdnsim {

/// Makes an empty file a log of its final size: header and provenance filled in, data datasets empty. Returns the layout with
/// offsets. `shown` names the file in error lines.
LogLayout write_skeleton(RawFile out, const std::string& shown, const LogHeader& header);

struct LogSkeleton {
  LogHeader header;
  LogLayout layout;
  std::uint64_t file_bytes = 0;
};
/// Reads and checks everything but the data: format, every attribute, every dimension, plans, and the header's digests.
LogSkeleton read_skeleton(const std::string& path);

}  // namespace gdnsim
