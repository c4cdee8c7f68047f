// The three channels by which something is said to have gone wrong.
//
//   Error          bad input or environment. One line for the user: file, dataset, index, what was expected. Exit code 2.
//   GDNSIM_CHECK   a broken invariant of ours. On in release builds too; aborts with the place.
//   Divergence     (compare.hpp) two runs differ. A value that is returned, never thrown. Exit code 1.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace gdnsim {

/// Bad input or environment. `what()` is one clear line, ready to be shown after "gdnsim: ".
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Builds an Error from streamable pieces: `throw error("trace.h5: /steps/index[", t, "]: ...")`.
template <class... Pieces>
[[nodiscard]] Error error(const Pieces&... pieces) {
  std::ostringstream text;
  (text << ... << pieces);
  return Error(text.str());
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition);

}  // namespace gdnsim

/// Aborts when one of our own invariants does not hold. Never used for what a file or a user can cause.
#define GDNSIM_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::gdnsim::check_failed(__FILE__, __LINE__, #condition))
