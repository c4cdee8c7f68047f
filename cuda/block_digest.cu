// Digests of blocks in the pool, of any shape and type (docs/log-format.md, rules L1-L3). The windows' kernels take theirs from
// the state that they hold; this one is for steps one by one, and for blocks that no step has touched.
#include "block_digest.hpp"
#include "digest.cuh"
#include "launch.cuh"

namespace gdnsim::cuda {
namespace {

constexpr int kLineWarps = 8;  // of a block, which take a group's lines in turn

/// Word number `index` of a line, zeros behind its end. Elements are of two or four bytes, so lines start at even addresses.
__device__ std::uint64_t word_at(const std::byte* line, std::int64_t bytes, std::int64_t index) {
  const std::byte* at = line + 8 * index;
  if (reinterpret_cast<std::uintptr_t>(at) % 8 == 0 && 8 * index + 8 <= bytes)
    return *reinterpret_cast<const std::uint64_t*>(at);
  std::uint64_t word = 0;
  for (int i = 0; i < 4 && 8 * index + 2 * i < bytes; ++i)
    word |= static_cast<std::uint64_t>(reinterpret_cast<const std::uint16_t*>(at)[i]) << (16 * i);
  return word;
}

__global__ void __launch_bounds__(kLineWarps* kWarp) block_digest_kernel(const __grid_constant__ DigestView v) {
  const std::int64_t entry = blockIdx.x, group = entry % v.groups;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t first = (v.block[entry / v.groups] * v.groups + group) * v.lines, words = (v.line_bytes + 7) / 8;
  unsigned long long digest = 0;
  for (std::int64_t line = warp; line < v.lines; line += kLineWarps) {
    const std::byte* bytes = v.blocks + (first + line) * v.line_bytes;
    unsigned long long sum = 0;
    for (std::int64_t i = lane; i < words; i += kWarp) {
      const std::uint64_t word = word_at(bytes, v.line_bytes, i);
      sum += digest_term(static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32), i);
    }
#pragma unroll
    for (int mask = kWarp / 2; mask >= 1; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
    digest += mix(sum + (static_cast<unsigned long long>(line) + 1) * kDigestC);
  }
  if (lane == 0) atomicAdd(v.digests + entry, digest);
}

}  // namespace

void launch_block_digests(const DigestView& view, CUstream_st* stream) {
  const std::int64_t entries = view.count * view.groups;
  if (entries == 0) return;
  GDNSIM_CHECK(entries < std::int64_t{1} << 31);
  block_digest_kernel<<<static_cast<unsigned>(entries), kLineWarps * kWarp, 0, stream>>>(view);
  GDNSIM_CUDA(cudaGetLastError());
}

}  // namespace gdnsim::cuda
