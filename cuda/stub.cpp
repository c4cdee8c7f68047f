// What stands in for the CUDA backend in a build without nvcc.
#include "gdnsim/approximate.hpp"
#include "gdnsim/backend.hpp"
#include "gdnsim/bench.hpp"
#include "gdnsim/devices.hpp"
#include "gdnsim/error.hpp"
#include "limits.hpp"
#include "variants.hpp"

namespace gdnsim {

std::unique_ptr<Backend> make_cuda(const BackendOptions&) {
  throw error("cuda: this build has no CUDA backend (", GDNSIM_CUDA_ABSENT, ")");
}

int cuda_devices() { return 0; }

std::unique_ptr<Backend> cuda::make_variant(const BackendOptions& options, std::string_view, bool) {
  return make_cuda(options);
}

std::unique_ptr<Backend> cuda::make_limited(const BackendOptions& options, std::size_t) { return make_cuda(options); }

std::vector<Measure> bench_cuda(const BenchOptions& options) {
  return make_cuda(options.backend), std::vector<Measure>();
}

ApproximateResults approximate_of_device(int) { return make_cuda({}), ApproximateResults(); }

}  // namespace gdnsim
