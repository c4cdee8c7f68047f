// The state pool in device memory: one allocation per layer and kind.
#pragma once

#include <vector>

#include "block_digests.hpp"
#include "device.hpp"
#include "gdnsim/pool.hpp"

namespace gdnsim::cuda {

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
  std::byte* recurrent(int layer) const { return recurrent_[slot(layer)].data(); }  // state [num_blocks, HV, V, K]
  std::byte* conv(int layer) const { return conv_[slot(layer)].data(); }            // conv [num_blocks, W-1, dim]

 private:
  std::byte* recurrent_block(int layer, std::int32_t block) const;
  std::byte* conv_block(int layer, std::int32_t block) const;
  void use() const;  // every entry runs on this pool's device

  const int device_;
  std::vector<Buffer> recurrent_, conv_;       // [layers()]
  mutable std::vector<BlockDigests> digests_;  // [layers()]
};

}  // namespace gdnsim::cuda
