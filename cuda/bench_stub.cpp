// Stands in for the bench of the CUDA kernels.
#include "gdnsim/bench.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {

std::vector<Measure> bench_cuda(const BenchOptions&) { throw error("cuda: no bench yet"); }

}  // namespace gdnsim
