// The digest over every block of a pool, kept up to date from the blocks that changed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gdnsim/digest.hpp"
#include "gdnsim/pool.hpp"

namespace gdnsim {

/// One block's bytes: where they lie if the pool allows it, else a copy that lasts until the next look.
class BlockLook {
 public:
  void at(const Pool& pool, int layer, std::int32_t block);
  std::span<const std::byte> recurrent() const { return bytes_.recurrent; }
  std::span<const std::byte> conv() const { return bytes_.conv; }

 private:
  BlockBytes bytes_;
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
  /// Takes the digest of one block now.
  BlockDigest hash(const Pool& pool, int layer, std::int32_t block);
  /// A digest that the caller took of the block as it is now.
  void replace(int layer, std::int32_t block, const BlockDigest& digest);
  /// What was touched and not hashed since, in no order; may hold blocks that were hashed.
  std::span<const std::int32_t> touched(int layer) { return at(layer).touched; }
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
};

}  // namespace gdnsim
