// The fused decode step's launcher and the numbers that choose how it cuts a head (decode_step_fused.cu).
#pragma once

#include "device.hpp"
#include "gdnsim/error.hpp"
#include "kernels.hpp"

namespace gdnsim::cuda {

inline constexpr int kFusedGroups = 16;  // of rows, in a block at most

/// Rows of the state that a warp takes at a time: 32 words a thread.
constexpr int fused_group(int K) { return 1024 / K; }

struct FusedView {
  StepView step;
  bool golden;           // else triton-sm90 or its mixed twin
  bool mixed;            // triton-sm90-mixed
  int tile, tiles;       // rows of the state a block takes, blocks a value head
  unsigned sharers;      // blocks that read one key head's window
  unsigned* arrived;     // [B, H, 2] zeros, and left so
  std::int64_t staying;  // value heads of the step, the first ones, whose state should stay in the cache
  bool windows_stay;     // the conv windows are so few that they should
  int sharing;           // streamed: value heads of a key head
  int tile_bits;         // streamed: log2 of the blocks of a value head
};

/// Tile, tiles and sharers for the rows of a step on a device with that many multiprocessors; 0 chooses.
void cut_heads(FusedView& view, int multiprocessors, int tile = 0);
/// How many value heads should stay in a cache of that many bytes: all, or none.
std::int64_t staying_heads(const Shape& shape, std::size_t cache_bytes);
void launch_fused(const FusedView& view);

/// Two launches (decode_step_streamed.cu), for what `streams` says; q, k, u (which hold what waits for the second), decay and
/// beta of the step's outputs are written over.
bool streams(const Shape& shape, int major);
inline constexpr std::int64_t kMostStreamed = 65535;  // rows: a grid has no more
/// The step's conv windows are at most an eighth of a cache of that many bytes.
bool windows_stay(const Shape& shape, std::size_t cache_bytes);
void launch_streamed(const FusedView& view);

}  // namespace gdnsim::cuda
