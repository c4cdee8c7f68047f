#include "gdnsim/pool.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "gdnsim/error.hpp"

namespace gdnsim {

std::size_t Pool::slot(int layer) const {
  const auto found = std::lower_bound(layers_.begin(), layers_.end(), layer);
  GDNSIM_CHECK(found != layers_.end() && *found == layer);
  return static_cast<std::size_t>(found - layers_.begin());
}

void Pool::apply(const Event& event, int layer, Stream& stream) {
  switch (event.kind) {
    case EventKind::zero:
      return zero(layer, event.block);
    case EventKind::copy:
      return copy(layer, event.source, event.block);
    case EventKind::allocate:
    case EventKind::free:
      return;
    case EventKind::load:
      stream.load_row(event.source, recurrent_, conv_);
      return write(layer, event.block, recurrent_, conv_);
  }
}

BlockDigest Pool::digest(int layer, std::int32_t block) const {
  Bytes recurrent(model_.state_bytes()), conv(model_.conv_bytes());
  read(layer, block, recurrent, conv);
  return digest_block(model_, recurrent, conv);
}

/// A toy model's pools come and go thousands of times in a search: below this, mapping pages takes longer than writing zeros.
constexpr std::size_t kWorthMapping = 1 << 20;

/// Straight from the system: calloc may write the zeros itself (with MALLOC_PERTURB_ set it does).
ZeroedBytes::ZeroedBytes(std::size_t size) : data_(nullptr, Unmap{size}) {
  if (size < kWorthMapping) {
    data_.reset(new std::byte[size]());
    return;
  }
  void* const data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  data_.reset(static_cast<std::byte*>(data));
}

void ZeroedBytes::Unmap::operator()(std::byte* data) const {
  if (size < kWorthMapping)
    delete[] data;
  else
    ::munmap(data, size);
}

HostPool::HostPool(const Model& model, std::vector<int> layers) : Pool(model, std::move(layers)) {
  const std::size_t blocks = static_cast<std::size_t>(model.num_blocks), count = this->layers().size();
  try {
    for (std::size_t i = 0; i < count; ++i) {
      recurrent_.emplace_back(blocks * model.state_bytes());
      conv_.emplace_back(blocks * model.conv_bytes());
    }
  } catch (const std::bad_alloc&) {
    const std::size_t bytes = count * blocks * (model.state_bytes() + model.conv_bytes());
    throw error("state pool: ", count, " layers x ", blocks, " blocks need ", bytes >> 20,
                " MiB, more than there is; try fewer --layers");
  }
}

std::span<std::byte> HostPool::recurrent(int layer, std::int32_t block) {
  GDNSIM_CHECK(block >= 0 && block < model().num_blocks);
  const std::size_t bytes = model().state_bytes();
  return {recurrent_[slot(layer)].data() + static_cast<std::size_t>(block) * bytes, bytes};
}
std::span<const std::byte> HostPool::recurrent(int layer, std::int32_t block) const {
  return const_cast<HostPool*>(this)->recurrent(layer, block);
}
std::span<std::byte> HostPool::conv(int layer, std::int32_t block) {
  GDNSIM_CHECK(block >= 0 && block < model().num_blocks);
  const std::size_t bytes = model().conv_bytes();
  return {conv_[slot(layer)].data() + static_cast<std::size_t>(block) * bytes, bytes};
}
std::span<const std::byte> HostPool::conv(int layer, std::int32_t block) const {
  return const_cast<HostPool*>(this)->conv(layer, block);
}

void HostPool::read(int layer, std::int32_t block, std::span<std::byte> recurrent, std::span<std::byte> conv) const {
  std::ranges::copy(this->recurrent(layer, block), recurrent.begin());
  std::ranges::copy(this->conv(layer, block), conv.begin());
}

bool HostPool::look(int layer, std::int32_t block, BlockBytes& bytes) const {
  bytes = {recurrent(layer, block), conv(layer, block)};
  return true;
}

BlockDigest HostPool::digest(int layer, std::int32_t block) const {
  return digest_block(model(), recurrent(layer, block), conv(layer, block));
}

void HostPool::write(int layer, std::int32_t block, std::span<const std::byte> recurrent,
                     std::span<const std::byte> conv) {
  GDNSIM_CHECK(recurrent.size() == model().state_bytes() && conv.size() == model().conv_bytes());
  std::ranges::copy(recurrent, this->recurrent(layer, block).begin());
  std::ranges::copy(conv, this->conv(layer, block).begin());
}

void HostPool::zero(int layer, std::int32_t block) {
  std::ranges::fill(recurrent(layer, block), std::byte{0});
  std::ranges::fill(conv(layer, block), std::byte{0});
}

void HostPool::copy(int layer, std::int32_t from, std::int32_t to) {
  if (from == to) return;
  std::ranges::copy(std::as_const(*this).recurrent(layer, from), recurrent(layer, to).begin());
  std::ranges::copy(std::as_const(*this).conv(layer, from), conv(layer, to).begin());
}

}  // namespace gdnsim
