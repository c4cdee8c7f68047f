// State on its way between device memory and shared memory in bulk: one thread asks for kilobytes, an mbarrier says when
// they are there, and nothing waits in registers. GPUs before sm_90 have no bulk copies: there all threads take part.
//
// Also the early start of a grid: the next one of a stream may begin while the last blocks of this one run, and reads what
// this one writes only after `wait_for_previous_grid`.
#pragma once

#include <cstdint>

#include "device.hpp"

namespace gdnsim::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define GDNSIM_HAS_BULK 1
#else
#define GDNSIM_HAS_BULK 0
#endif

/// What the cache should do with what a bulk copy touches.
__device__ inline std::uint64_t cache_policy(bool staying) {
  std::uint64_t policy = 0;
#if GDNSIM_HAS_BULK
  if (staying)
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  else
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

__device__ inline std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

/// For one arrival, of the thread that asks.
__device__ inline void init_barrier(std::uint64_t* barrier) {
#if GDNSIM_HAS_BULK
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
#endif
}
/// After the last `init_barrier`, before the first copy.
__device__ inline void barriers_ready() {
#if GDNSIM_HAS_BULK
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/// Asks for `bytes` (a multiple of 16); one thread calls it.
__device__ inline void bulk_load(void* to, const void* from, std::uint32_t bytes, std::uint64_t* barrier,
                                 std::uint64_t policy) {
#if GDNSIM_HAS_BULK
  const std::uint32_t at = shared_address(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(at), "l"(policy)
      : "memory");
#else
  (void)to, (void)from, (void)bytes, (void)barrier, (void)policy;
#endif
}

/// Waits until the bytes of a barrier's use are there; `phase` is 0 for its first use, then 1, 0, ...
__device__ inline void wait_loaded(std::uint64_t* barrier, unsigned phase = 0) {
#if GDNSIM_HAS_BULK
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(phase)
      : "memory");
#else
  (void)barrier, (void)phase;
#endif
}

/// What this thread wrote to shared memory may leave in bulk once the warp has met.
__device__ inline void ready_to_leave() {
#if GDNSIM_HAS_BULK
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// A warp's bytes from shared memory to device memory; the warp has met after `ready_to_leave`.
__device__ inline void bulk_store(void* to, const void* from, std::uint32_t bytes, std::uint64_t policy) {
  const std::uint32_t lane = threadIdx.x % 32;
#if GDNSIM_HAS_BULK
  if (lane == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(shared_address(from)), "r"(bytes), "l"(policy)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
#else
  (void)policy;
  for (std::uint32_t i = lane; i < bytes / 16; i += 32) static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
#endif
}

/// Before a block ends: shared memory must outlive the copies out of it.
__device__ inline void wait_stored() {
#if GDNSIM_HAS_BULK
  if (threadIdx.x % 32 == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

/// Counts as a store for `wait_stored_but_last`.
__device__ inline void store_nothing() {
#if GDNSIM_HAS_BULK
  if (threadIdx.x % 32 == 0) asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
/// Before the place of the store before the last is filled again.
__device__ inline void wait_stored_but_last() {
#if GDNSIM_HAS_BULK
  if (threadIdx.x % 32 == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
#endif
}

/// Adds one, after what this warp has read before; gives what was there.
__device__ inline unsigned count_release(unsigned* counter) {
  unsigned before;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(counter))
               : "memory");
  return before;
}

__device__ inline void wait_for_previous_grid() {
#if GDNSIM_HAS_BULK
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void let_next_grid_begin() {
#if GDNSIM_HAS_BULK
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Launches a kernel that calls `wait_for_previous_grid` before it touches what the kernel before it touches.
template <class Argument>
void launch_early(void (*kernel)(Argument), dim3 grid, int threads, std::size_t shared, CUstream_st* stream,
                  const Argument& argument) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  GDNSIM_CUDA(cudaLaunchKernelEx(&config, kernel, argument));
}
template <class Argument>
void launch_early(void (*kernel)(Argument), std::int64_t blocks, int threads, std::size_t shared, CUstream_st* stream,
                  const Argument& argument) {
  launch_early(kernel, dim3(static_cast<unsigned>(blocks)), threads, shared, stream, argument);
}

}  // namespace gdnsim::cuda
