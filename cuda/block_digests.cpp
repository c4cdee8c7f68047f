#include "block_digests.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "block_digest.hpp"

namespace gdnsim::cuda {
namespace {

constexpr std::size_t kBatch = 4096;  // blocks at most
constexpr std::int32_t kAhead = 64;   // blocks in order

}  // namespace

void BlockDigests::changed(std::span<const std::int32_t> blocks) {
  std::vector<std::int32_t> now;
  for (const std::int32_t block : blocks)
    if (block >= 0) now.push_back(block), known_.erase(block);
  std::ranges::sort(now);
  std::vector<std::int32_t> all;
  std::ranges::set_union(changed_, now, std::back_inserter(all));
  changed_ = std::move(all);
}

std::vector<std::int32_t> BlockDigests::batch_with(std::int32_t block, std::int64_t num_blocks) {
  std::vector<std::int32_t> batch;
  const auto at = std::ranges::lower_bound(changed_, block);
  if (at != changed_.end() && *at == block) {
    if (changed_.size() <= kBatch)
      batch = changed_;
    else
      batch.assign(at, at + std::min<std::ptrdiff_t>(kBatch, changed_.end() - at));
  } else {
    for (std::int32_t b = block; b < num_blocks && b - block < kAhead; ++b) batch.push_back(b);
  }
  std::vector<std::int32_t> rest;
  std::ranges::set_difference(changed_, batch, std::back_inserter(rest));
  changed_ = std::move(rest);
  return batch;
}

const BlockDigest& BlockDigests::of(const Model& model, const std::byte* recurrent, const std::byte* conv,
                                    std::int32_t block) {
  if (const auto found = known_.find(block); found != known_.end()) return found->second;
  take(model, recurrent, conv, batch_with(block, model.num_blocks));
  return known_.at(block);
}

void BlockDigests::take(const Model& m, const std::byte* recurrent, const std::byte* conv,
                        const std::vector<std::int32_t>& batch) {
  const std::size_t count = batch.size(), HV = static_cast<std::size_t>(m.HV), word = sizeof(std::uint64_t);
  Layout layout;
  layout.add(count * sizeof(std::int32_t));  // the blocks' numbers come first
  const std::size_t heads_at = layout.add(count * HV * word), convs_at = layout.add(count * word);
  device_.resize(layout.bytes()), host_.resize(layout.bytes());
  std::memcpy(host_.data(), batch.data(), count * sizeof(std::int32_t));
  queue_.copy(device_.data(), host_.data(), count * sizeof(std::int32_t));
  queue_.fill(device_.data() + heads_at, 0, layout.bytes() - heads_at);
  const auto n = static_cast<std::int64_t>(count), state = static_cast<std::int64_t>(size_of(m.state_dtype)),
             window = static_cast<std::int64_t>(size_of(m.conv_state_dtype));
  const auto sums = [&](std::size_t at) { return reinterpret_cast<unsigned long long*>(device_.data() + at); };
  const auto* block = device_.as<const std::int32_t>();
  launch_block_digests({recurrent, block, n, m.HV, m.V, m.K * state, sums(heads_at)}, queue_.stream());
  launch_block_digests({conv, block, n, 1, m.W - 1, m.dim() * window, sums(convs_at)}, queue_.stream());
  queue_.copy(host_.data() + heads_at, device_.data() + heads_at, layout.bytes() - heads_at);
  queue_.wait();
  ++launches_;
  const auto words = [&](std::size_t at) { return reinterpret_cast<const std::uint64_t*>(host_.data() + at); };
  keep(batch, words(heads_at), words(convs_at), HV);
}

void BlockDigests::keep(const std::vector<std::int32_t>& batch, const std::uint64_t* heads, const std::uint64_t* convs,
                        std::size_t HV) {
  known_.clear();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    BlockDigest& digest = known_[batch[i]];
    digest.heads.assign(heads + i * HV, heads + (i + 1) * HV);
    digest.conv = convs[i];
    digest.block = join_block(digest.heads, digest.conv);
  }
}

}  // namespace gdnsim::cuda
