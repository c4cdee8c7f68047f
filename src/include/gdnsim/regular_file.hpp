// What is opened to be read has to be a file: a folder cannot be read, and a pipe can be read only once.
#pragma once

#include <string>

namespace gdnsim {

/// Throws Error "PATH: expected a regular file" where a folder, a pipe or a device is. Nothing there is no fault: whoever opens
/// it says so.
void refuse_irregular(const std::string& path);

}  // namespace gdnsim
