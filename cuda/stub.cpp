// What stands in for the CUDA backend in a build without nvcc.
#include "gdnsim/backend.hpp"
#include "gdnsim/error.hpp"
#include "variants.hpp"

namespace gdnsim {

std::unique_ptr<Backend> make_cuda(const BackendOptions&) {
  throw error("cuda: this build has no CUDA backend (", GDNSIM_CUDA_ABSENT, ")");
}

std::unique_ptr<Backend> cuda::make_variant(const BackendOptions& options, std::string_view, bool) {
  return make_cuda(options);
}

}  // namespace gdnsim
