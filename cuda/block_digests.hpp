// Digests of a pool's blocks, taken on the device many at a time and handed out one by one.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "gdnsim/digest.hpp"
#include "gdnsim/types.hpp"
#include "queue.hpp"

namespace gdnsim::cuda {

/// Of one layer. Whoever wants the digest of a block that a step has changed will want those of the step's other blocks too;
/// whoever wants another's goes through the pool in order.
class BlockDigests {
 public:
  /// The blocks are about to change, or have changed.
  void changed(std::span<const std::int32_t> blocks);
  const BlockDigest& of(const Model& model, const std::byte* recurrent, const std::byte* conv, std::int32_t block);
  int launches() const { return launches_; }

 private:
  std::vector<std::int32_t> batch_with(std::int32_t block, std::int64_t num_blocks);
  void take(const Model& model, const std::byte* recurrent, const std::byte* conv,
            const std::vector<std::int32_t>& batch);
  void keep(const std::vector<std::int32_t>& batch, const std::uint64_t* heads, const std::uint64_t* convs,
            std::size_t HV);

  std::map<std::int32_t, BlockDigest> known_;  // the last batch
  std::vector<std::int32_t> changed_;          // since then, each once, sorted
  int launches_ = 0;
  Queue queue_;
  Buffer device_;
  HostBuffer host_;
};

}  // namespace gdnsim::cuda
