// The state pool in device memory: one allocation per layer and kind.
#pragma once

#include <vector>

#include "block_digests.hpp"
#include "device.hpp"
#include "gdnsim/pool.hpp"
#include "queue.hpp"

namespace gdnsim::cuda {

/// Blocks are zeroed and copied in a queue of the pool's own; whoever is given an address finds that done. Kernels in other
/// queues are waited for by those who launch them (StepRun, WindowRun) before the pool is used again.
class DevicePool final : public Pool {
 public:
  /// Throws Error with the sizes when the device has not the memory.
  DevicePool(const Model& model, std::vector<int> layers, int device);
  ~DevicePool() override;
  void read(int layer, std::int32_t block, std::span<std::byte> recurrent, std::span<std::byte> conv) const override;
  void write(int layer, std::int32_t block, std::span<const std::byte> recurrent,
             std::span<const std::byte> conv) override;
  BlockDigest digest(int layer, std::int32_t block) const override;
  void zero(int layer, std::int32_t block) override;
  void copy(int layer, std::int32_t from, std::int32_t to) override;

  /// Kernels have changed these blocks; -1 is none.
  void changed(int layer, std::span<const std::int32_t> blocks) { digests_[slot(layer)].changed(blocks); }
  /// How often digests were taken, of many blocks at a time: for tests.
  int digest_launches(int layer) const { return digests_[slot(layer)].launches(); }

  int device() const { return device_; }
  // state [num_blocks, HV, V, K], and conv [num_blocks, W-1, dim]
  std::byte* recurrent(int layer) const { return settle(), recurrent_[slot(layer)].data(); }
  std::byte* conv(int layer) const { return settle(), conv_[slot(layer)].data(); }

 private:
  std::byte* recurrent_block(int layer, std::int32_t block) const;
  std::byte* conv_block(int layer, std::int32_t block) const;
  void use() const;     // every entry runs on this pool's device
  void settle() const;  // waits for what the queue still has to do

  const int device_;
  mutable Queue queue_;
  mutable bool pending_ = false;               // zeroed or copied, and not waited for
  std::vector<Buffer> recurrent_, conv_;       // [layers()]
  mutable std::vector<BlockDigests> digests_;  // [layers()]
};

}  // namespace gdnsim::cuda
