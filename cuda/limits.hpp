// For tests: the backend with little memory.
#pragma once

#include <cstddef>
#include <memory>

#include "gdnsim/backend.hpp"

namespace gdnsim::cuda {

/// Held to the resident kernels, with so many bytes of device memory for a window's inputs, outputs and looks.
std::unique_ptr<Backend> make_limited(const BackendOptions& options, std::size_t window_bytes);

}  // namespace gdnsim::cuda
