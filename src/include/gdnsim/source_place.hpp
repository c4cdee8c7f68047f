// Where in the project a source file is, without the folders of the machine that compiled it.
#pragma once

#include <string_view>

namespace gdnsim {

/// "cuda/device.cpp" of "/usr/src/gdnsim/cuda/device.cpp", as __FILE__ may have it: from the last of the project's folders on.
constexpr std::string_view source_place(std::string_view path) {
  for (std::size_t at = path.size(); at-- > 0;) {
    if (at > 0 && path[at - 1] != '/') continue;
    for (const std::string_view folder : {"cuda/", "golden/", "src/", "tools/"})
      if (path.substr(at).starts_with(folder)) return path.substr(at);
  }
  return path;
}

}  // namespace gdnsim
