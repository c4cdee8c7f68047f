// The digest over every block of a pool, kept up to date from the blocks that changed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gdnsim/digest.hpp"
#include "gdnsim/pool.hpp"

namespace gdnsim {

/// One block's bytes: those of a pool in host memory themselves, else a copy that lasts until the next look.
class BlockLook {
 public:
  void at(const Pool& pool, int layer, std::int32_t block);
  std::span<const std::byte> recurrent() const { return recurrent_; }
  std::span<const std::byte> conv() const { return conv_; }

 private:
  std::span<const std::byte> recurrent_, conv_;
  Bytes recurrent_copy_, conv_copy_;
};

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
  /// The same without a copy where the pool allows it.
  BlockDigest hash(const Pool& pool, int layer, std::int32_t block, BlockLook& look);
  /// A digest that the caller took of the block as it is now.
  void replace(int layer, std::int32_t block, const BlockDigest& digest);
  /// Hashes what was touched since; the digest of the layer's whole pool.
  std::uint64_t digest(const Pool& pool, int layer);
  /// By the digests taken last: the digest of a pool where all but these blocks are zeros.
  std::uint64_t digest_of_only(int layer, std::span<const std::int32_t> blocks);

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
  std::uint64_t zero_;        // digest of a block of zeros
  std::vector<Layer> pools_;  // [layers_]
  BlockLook look_;
};

}  // namespace gdnsim
