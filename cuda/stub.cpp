// What stands in for the CUDA backend in a build without nvcc.
#include "gdnsim/backend.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {

std::unique_ptr<Backend> make_cuda(const BackendOptions&) {
  throw error("cuda: this build has no CUDA backend (", GDNSIM_CUDA_ABSENT, ")");
}

}  // namespace gdnsim
