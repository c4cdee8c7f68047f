#include "core/pool_digest.hpp"

#include <algorithm>

#include "gdnsim/error.hpp"

namespace gdnsim {

void BlockLook::at(const Pool& pool, int layer, std::int32_t block) {
  if (pool.look(layer, block, bytes_)) return;
  recurrent_copy_.resize(pool.model().state_bytes());
  conv_copy_.resize(pool.model().conv_bytes());
  pool.read(layer, block, recurrent_copy_, conv_copy_);
  bytes_ = {recurrent_copy_, conv_copy_};
}

PoolDigest::PoolDigest(const Model& model, std::vector<int> layers) : model_(model), layers_(std::move(layers)) {
  zero_ = digest_block(model_, Bytes(model_.state_bytes()), Bytes(model_.conv_bytes())).block;
  Layer fresh;
  fresh.stale.resize(static_cast<std::size_t>(model_.num_blocks));
  fresh.shares.resize(fresh.stale.size());
  for (std::size_t block = 0; block < fresh.shares.size(); ++block) {
    fresh.shares[block] = pool_share(zero_, static_cast<std::int64_t>(block));
    fresh.sum += fresh.shares[block];
  }
  pools_.assign(layers_.size(), fresh);
}

PoolDigest::Layer& PoolDigest::at(int layer) {
  const auto found = std::ranges::lower_bound(layers_, layer);
  GDNSIM_CHECK(found != layers_.end() && *found == layer);
  return pools_[static_cast<std::size_t>(found - layers_.begin())];
}

void PoolDigest::touch(int layer, std::int32_t block) {
  Layer& pool = at(layer);
  const std::size_t at = static_cast<std::size_t>(block);
  if (pool.stale[at]) return;
  pool.stale[at] = true;
  pool.touched.push_back(block);
}

void PoolDigest::touch_all(int layer) {
  for (std::int32_t block = 0; block < model_.num_blocks; ++block) touch(layer, block);
}

BlockDigest PoolDigest::hash(const Pool& pool, int layer, std::int32_t block) {
  BlockDigest digest = pool.digest(layer, block);
  replace(layer, block, digest);
  return digest;
}

void PoolDigest::replace(int layer, std::int32_t block, const BlockDigest& digest) {
  Layer& sums = at(layer);
  std::uint64_t& share = sums.shares[static_cast<std::size_t>(block)];
  sums.sum -= share;
  share = pool_share(digest.block, block);
  sums.sum += share;
  sums.stale[static_cast<std::size_t>(block)] = false;
}

std::uint64_t PoolDigest::digest(const Pool& pool, int layer) {
  Layer& sums = at(layer);
  for (std::int32_t block : sums.touched)
    if (sums.stale[static_cast<std::size_t>(block)]) hash(pool, layer, block);
  sums.touched.clear();
  return sums.sum;
}

std::uint64_t PoolDigest::digest_of_only(int layer, std::span<const std::int32_t> blocks) {
  const Layer& sums = at(layer);
  std::uint64_t sum = 0;
  for (std::int32_t block = 0; block < model_.num_blocks; ++block) sum += pool_share(zero_, block);
  for (std::int32_t block : blocks) sum += sums.shares[static_cast<std::size_t>(block)] - pool_share(zero_, block);
  return sum;
}

}  // namespace gdnsim
