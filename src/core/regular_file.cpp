#include "gdnsim/regular_file.hpp"

#include <filesystem>

#include "gdnsim/error.hpp"

namespace gdnsim {

void refuse_irregular(const std::string& path) {
  std::error_code missing;
  if (std::filesystem::exists(path, missing) && !std::filesystem::is_regular_file(path, missing))
    throw error(path, ": expected a regular file");
}

}  // namespace gdnsim
