// A user's own test, bisected over the steps of a file; the answers are kept in a session file.
#pragma once

#include <string>

#include "cli.hpp"

namespace gdnsim::tools {

struct CheckOptions {
  std::string file, command, session;
  SliceOptions slice;
  OutputOptions output;
};

/// Exit code: 1 a first bad step was found, 0 none is bad, 2 the command could not be run or nothing could be tested.
int run_check(const CheckOptions& options);

}  // namespace gdnsim::tools
