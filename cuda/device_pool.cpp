#include "device_pool.hpp"

#include <utility>

#include "gdnsim/error.hpp"

namespace gdnsim::cuda {
namespace {

/// Throws Error before anything is allocated when the whole pool cannot fit.
void require_room(const Model& model, std::size_t layers, int device) {
  std::size_t free = 0, total = 0;
  GDNSIM_CUDA(cudaMemGetInfo(&free, &total));
  const double blocks = static_cast<double>(layers) * static_cast<double>(model.num_blocks);
  const double bytes = blocks * static_cast<double>(model.state_bytes() + model.conv_bytes());
  if (bytes <= static_cast<double>(free)) return;
  throw error("cuda: the state pool (", layers, layers == 1 ? " layer x " : " layers x ", model.num_blocks,
              " blocks) needs ", static_cast<std::size_t>(bytes) >> 20, " MiB, device ", device, " has ", free >> 20,
              " MiB free of ", total >> 20, " MiB; try fewer --layers, or golden");
}

}  // namespace

DevicePool::DevicePool(const Model& model, std::vector<int> layers, int device)
    : Pool(model, std::move(layers)), device_(device), digests_(this->layers().size()) {
  use();
  require_room(model, this->layers().size(), device);
  const auto blocks = static_cast<std::size_t>(model.num_blocks);
  for (std::size_t i = 0; i < this->layers().size(); ++i) {
    recurrent_.emplace_back().zero(blocks * model.state_bytes());
    conv_.emplace_back().zero(blocks * model.conv_bytes());
  }
}

DevicePool::~DevicePool() {
  cudaSetDevice(device_);
  if (queue_.made() != nullptr) cudaStreamSynchronize(queue_.made());  // before the memory is given back
}

void DevicePool::use() const { GDNSIM_CUDA(cudaSetDevice(device_)); }

void DevicePool::settle() const {
  if (!pending_) return;
  queue_.wait();
  pending_ = false;
}

std::byte* DevicePool::recurrent_block(int layer, std::int32_t block) const {
  GDNSIM_CHECK(block >= 0 && block < model().num_blocks);
  return recurrent_[slot(layer)].data() + static_cast<std::size_t>(block) * model().state_bytes();
}

std::byte* DevicePool::conv_block(int layer, std::int32_t block) const {
  GDNSIM_CHECK(block >= 0 && block < model().num_blocks);
  return conv_[slot(layer)].data() + static_cast<std::size_t>(block) * model().conv_bytes();
}

void DevicePool::read(int layer, std::int32_t block, std::span<std::byte> recurrent, std::span<std::byte> conv) const {
  GDNSIM_CHECK(recurrent.size() == model().state_bytes() && conv.size() == model().conv_bytes());
  use();
  queue_.copy(recurrent.data(), recurrent_block(layer, block), recurrent.size());
  queue_.copy(conv.data(), conv_block(layer, block), conv.size());
  queue_.wait(), pending_ = false;
}

BlockDigest DevicePool::digest(int layer, std::int32_t block) const {
  GDNSIM_CHECK(block >= 0 && block < model().num_blocks);
  use();
  return digests_[slot(layer)].of(model(), recurrent(layer), conv(layer), block);
}

void DevicePool::write(int layer, std::int32_t block, std::span<const std::byte> recurrent,
                       std::span<const std::byte> conv) {
  GDNSIM_CHECK(recurrent.size() == model().state_bytes() && conv.size() == model().conv_bytes());
  use();
  changed(layer, {&block, 1});
  queue_.copy(recurrent_block(layer, block), recurrent.data(), recurrent.size());
  queue_.copy(conv_block(layer, block), conv.data(), conv.size());
  queue_.wait(), pending_ = false;  // the words are the caller's
}

void DevicePool::zero(int layer, std::int32_t block) {
  use();
  changed(layer, {&block, 1});
  queue_.fill(recurrent_block(layer, block), 0, model().state_bytes());
  queue_.fill(conv_block(layer, block), 0, model().conv_bytes());
  pending_ = true;
}

void DevicePool::copy(int layer, std::int32_t from, std::int32_t to) {
  if (from == to) return;
  use();
  changed(layer, {&to, 1});
  queue_.copy(recurrent_block(layer, to), recurrent_block(layer, from), model().state_bytes());
  queue_.copy(conv_block(layer, to), conv_block(layer, from), model().conv_bytes());
  pending_ = true;
}

}  // namespace gdnsim::cuda
