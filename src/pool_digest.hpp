// The digest over every block of a pool, kept up to date from the blocks that changed.
#pragma once

#include <cstdint>
#include <vector>

#include "gdnsim/digest.hpp"
#include "gdnsim/pool.hpp"

namespace gdnsim {

/// Blocks are named when they change and hashed only when a digest is asked for, so skipped steps cost nothing.
class PoolDigest {
 public:
  /// A pool of zeros.
  explicit PoolDigest(const Pool& pool) : PoolDigest(pool.model(), pool.layers()) {}
  PoolDigest(const Model& model, std::vector<int> layers);

  void touch(int layer, std::int32_t block);
  void touch_all(int layer);
  /// Hashes one block now; `recurrent` and `conv` keep its bytes for the caller.
  BlockDigest hash(const Pool& pool, int layer, std::int32_t block, Bytes& recurrent, Bytes& conv);
  /// Hashes what was touched since; the digest of the layer's whole pool.
  std::uint64_t digest(const Pool& pool, int layer);

 private:
  struct Layer {
    std::vector<std::uint64_t> shares;  // [num_blocks]
    std::vector<bool> stale;            // [num_blocks]
    std::vector<std::int32_t> touched;  // each stale block once
    std::uint64_t sum = 0;
  };
  Layer& at(int layer);

  const Model model_;
  const std::vector<int> layers_;
  std::vector<Layer> pools_;  // [layers_]
  Bytes recurrent_, conv_;    // one block, reused
};

}  // namespace gdnsim
