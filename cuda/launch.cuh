// Launching: grid sizes, and the loop that hands out tasks to threads or warps.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device.hpp"
#include "dot.cuh"

namespace gdnsim::cuda {

inline constexpr int kThreads = 256;                   // of a block whose threads work alone
inline constexpr std::int64_t kMaxBlocks = 1 << 20;    // of a grid; tasks beyond it are taken in further rounds
inline constexpr std::size_t kPlainShared = 48 << 10;  // bytes of shared memory that need no asking

__device__ inline std::int64_t first_thread() { return 1LL * blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline std::int64_t all_threads() { return 1LL * gridDim.x * blockDim.x; }
__device__ inline std::int64_t first_warp() { return first_thread() / kWarp; }
__device__ inline std::int64_t all_warps() { return all_threads() / kWarp; }
/// This warp's part of the block's dynamic shared memory, for one dot at a time.
__device__ inline float* warp_scratch(const DotOrder& order) {
  extern __shared__ float shared[];
  return shared + static_cast<int>(threadIdx.x) / kWarp * dot_scratch(order);
}

inline unsigned blocks_for(std::int64_t tasks, int tasks_per_block) {
  return static_cast<unsigned>(std::min((tasks + tasks_per_block - 1) / tasks_per_block, kMaxBlocks));
}

/// One thread a task.
inline void launch_threads(void (*kernel)(StepView), std::int64_t tasks, const StepView& step) {
  if (tasks == 0) return;
  kernel<<<blocks_for(tasks, kThreads), kThreads, 0, step.stream>>>(step);
  GDNSIM_CUDA(cudaGetLastError());
}

/// One warp a task; each warp has the shared memory that `order` needs. Long rows leave room for fewer warps a block.
template <class View>
void launch_warps(void (*kernel)(View), std::int64_t tasks, const DotOrder& order, const View& view) {
  if (tasks == 0) return;
  const std::size_t each = static_cast<std::size_t>(dot_scratch(order)) * sizeof(float);
  const int warps = static_cast<int>(std::clamp<std::size_t>(kPlainShared / each, 1, kThreads / kWarp));
  const std::size_t shared = each * static_cast<std::size_t>(warps);
  if (shared > kPlainShared)
    GDNSIM_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  kernel<<<blocks_for(tasks, warps), warps * kWarp, shared, view.stream>>>(view);
  GDNSIM_CUDA(cudaGetLastError());
}

}  // namespace gdnsim::cuda
