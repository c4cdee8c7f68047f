// What a file is, before anything is read from it.
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "file/hdf5_io.hpp"
#include "file/schema.hpp"
#include "file/trial.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/log.hpp"
#include "gdnsim/regular_file.hpp"

namespace gdnsim {
namespace {

// What every HDF5 file opens with (a user block before it is not ours).
constexpr std::string_view kHdf5Magic{"\x89HDF\r\n\x1a\n", 8};

FileKind hdf5_kind(const std::string& path) {
  const h5::File file = h5::File::open(path);
  const h5::Group root = file.root();
  const std::string format = root.has_attribute(schema::kFormat) ? root.string_attribute(schema::kFormat) : "";
  if (format == schema::kTraceFormat) return FileKind::trace;
  if (format == schema::kLogFormat) return FileKind::log;
  if (format == schema::kDriftFormat) throw error(path, ": is the result of a sweep; 'gdnsim drift FILE' shows it");
  throw error(path, ": @format: expected gdnsim-trace or gdnsim-log: an HDF5 file, but not one of ours");
}

}  // namespace

FileKind kind_of_file(const std::string& path) {
  refuse_irregular(path);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw error(path, ": cannot be opened: ", std::strerror(errno));
  char start[64] = {};
  file.read(start, sizeof start);
  const std::string_view head(start, static_cast<std::size_t>(file.gcount()));
  if (head.starts_with(kHdf5Magic)) {
    try_in_child(path, [&] { hdf5_kind(path); });
    return hdf5_kind(path);
  }
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  if (first != head.npos && head[first] == '{') return FileKind::recipe;
  throw error(path, ": expected a trace, a log or a recipe, found neither HDF5 nor JSON");
}

}  // namespace gdnsim
