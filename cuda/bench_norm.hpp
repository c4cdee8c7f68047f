// What `gdnsim bench` measures of the norm on the device: batches of rows of 128, as a decode step or a prefill has them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gdnsim/bench.hpp"

namespace gdnsim::cuda {

/// What the gated norm of so many rows must move: bf16 x, z and out.
inline double norm_bytes(std::int64_t rows, int width) { return 6.0 * static_cast<double>(rows) * width; }

/// "all bytes at 4250 GB/s, ..."
std::string bytes_at(double rate);

/// Stage "norm": the plain kernel and the fast one, for each batch of the options and for kNormRows rows. `rate`: the memory's,
/// in bytes a second.
void bench_norms(const BenchOptions& options, double rate, std::vector<Measure>& measures);

inline constexpr std::int64_t kNormRows = 262144;  // more than any cache holds

}  // namespace gdnsim::cuda
