// An Error that finds nothing wrong: a kernel, a backend or a contract says of these shapes that they are not for it.
#pragma once

#include "gdnsim/error.hpp"

namespace gdnsim {

/// Thrown only where that is said. What a backend finds out about its own kernels is a plain Error.
class Refused : public Error {
 public:
  using Error::Error;
};

}  // namespace gdnsim
