// The paged state pool: for each layer, num_blocks blocks of recurrent state [HV, V, K] and conv state [W-1, dim].
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gdnsim/digest.hpp"
#include "gdnsim/stream.hpp"
#include "gdnsim/types.hpp"

namespace gdnsim {

struct BlockBytes {
  std::span<const std::byte> recurrent, conv;
};

/// State of some layers of a model. Blocks start as zeros. A backend makes the kind of pool that it works on; everything
/// else sees blocks through `read` and `write`, which move raw bytes and never convert.
class Pool {
 public:
  Pool(const Model& model, std::vector<int> layers) : model_(model), layers_(std::move(layers)) {}
  virtual ~Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  const Model& model() const { return model_; }
  const std::vector<int>& layers() const { return layers_; }

  /// Copies one block out of or into the pool. Sizes are exactly model().state_bytes() and model().conv_bytes().
  virtual void read(int layer, std::int32_t block, std::span<std::byte> recurrent, std::span<std::byte> conv) const = 0;
  virtual void write(int layer, std::int32_t block, std::span<const std::byte> recurrent,
                     std::span<const std::byte> conv) = 0;
  /// The bytes of one block where they lie, until the next change; false when they lie where only `read` gets them.
  virtual bool look(int layer, std::int32_t block, BlockBytes& bytes) const {
    return (void)layer, (void)block, (void)bytes, false;
  }
  /// Digest of one block, taken where its bytes are.
  virtual BlockDigest digest(int layer, std::int32_t block) const;
  virtual void zero(int layer, std::int32_t block) = 0;
  virtual void copy(int layer, std::int32_t from, std::int32_t to) = 0;

  /// Applies one event to one layer (the caller has matched event.layer). `free` leaves the contents.
  void apply(const Event& event, int layer, Stream& stream);

 protected:
  std::size_t slot(int layer) const;  // position of `layer` among layers(); checked

 private:
  const Model model_;
  const std::vector<int> layers_;
  Bytes recurrent_, conv_;  // one load row, reused
};

/// Zeros from the system, whose pages take no memory until something is written: most blocks of an engine's pool never are.
class ZeroedBytes {
 public:
  explicit ZeroedBytes(std::size_t size);  // throws std::bad_alloc
  std::byte* data() const { return data_.get(); }

 private:
  struct Unmap {
    std::size_t size;
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Unmap> data_;
};

/// The pool in host memory: one flat allocation per layer and kind.
class HostPool final : public Pool {
 public:
  HostPool(const Model& model, std::vector<int> layers);
  void read(int layer, std::int32_t block, std::span<std::byte> recurrent, std::span<std::byte> conv) const override;
  void write(int layer, std::int32_t block, std::span<const std::byte> recurrent,
             std::span<const std::byte> conv) override;
  bool look(int layer, std::int32_t block, BlockBytes& bytes) const override;
  BlockDigest digest(int layer, std::int32_t block) const override;
  void zero(int layer, std::int32_t block) override;
  void copy(int layer, std::int32_t from, std::int32_t to) override;

  std::span<std::byte> recurrent(int layer, std::int32_t block);
  std::span<const std::byte> recurrent(int layer, std::int32_t block) const;
  std::span<std::byte> conv(int layer, std::int32_t block);
  std::span<const std::byte> conv(int layer, std::int32_t block) const;

 private:
  std::vector<ZeroedBytes> recurrent_, conv_;  // [layers()] each num_blocks blocks
};

}  // namespace gdnsim
