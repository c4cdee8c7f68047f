// What the memory gives a kernel that does nothing but pass it by: the measure for all the others.
#include <algorithm>

#include "launch.cuh"

namespace gdnsim::cuda {
namespace {

constexpr int kEach = 4;  // vectors of a thread on their way at once

__global__ void __launch_bounds__(512) change_kernel(uint4* words, std::int64_t vectors) {
  const std::int64_t first = 1LL * blockIdx.x * blockDim.x * kEach + threadIdx.x;
  uint4 x[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (first + i * blockDim.x < vectors) x[i] = __ldcs(words + first + i * blockDim.x);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    x[i].x ^= 1;
    if (first + i * blockDim.x < vectors) __stcs(words + first + i * blockDim.x, x[i]);
  }
}

}  // namespace

void launch_change(void* words, std::size_t bytes, CUstream_st* stream) {
  const auto vectors = static_cast<std::int64_t>(bytes / sizeof(uint4));
  const std::int64_t each = 512 * kEach;
  change_kernel<<<static_cast<unsigned>((vectors + each - 1) / each), 512, 0, stream>>>(static_cast<uint4*>(words),
                                                                                        vectors);
  GDNSIM_CUDA(cudaGetLastError());
}

}  // namespace gdnsim::cuda
