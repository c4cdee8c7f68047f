// Digests of blocks where they lie: the launcher (block_digest.cu).
#pragma once

#include <cstddef>
#include <cstdint>

#include "device.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim::cuda {

/// Blocks as lines of bytes: a head's V rows of the state, or the columns of a conv state.
struct DigestView {
  const std::byte* blocks;      // [num_blocks, groups, lines, line_bytes]
  const std::int32_t* block;    // [count] which of them
  std::int64_t count, groups;   // groups: digests of one block
  std::int64_t lines;           // of a group
  std::int64_t line_bytes;      // even
  unsigned long long* digests;  // [count, groups] zeros before
};

void launch_block_digests(const DigestView& view, CUstream_st* stream);

}  // namespace gdnsim::cuda
