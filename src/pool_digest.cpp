#include "pool_digest.hpp"

#include <algorithm>

#include "gdnsim/error.hpp"

namespace gdnsim {

PoolDigest::PoolDigest(const Model& model, std::vector<int> layers)
    : model_(model), layers_(std::move(layers)), recurrent_(model.state_bytes()), conv_(model.conv_bytes()) {
  const std::uint64_t zero = digest_block(model_, recurrent_, conv_).block;
  Layer fresh;
  fresh.stale.resize(static_cast<std::size_t>(model_.num_blocks));
  fresh.shares.resize(fresh.stale.size());
  for (std::size_t block = 0; block < fresh.shares.size(); ++block) {
    fresh.shares[block] = pool_share(zero, static_cast<std::int64_t>(block));
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

BlockDigest PoolDigest::hash(const Pool& pool, int layer, std::int32_t block, Bytes& recurrent, Bytes& conv) {
  recurrent.resize(model_.state_bytes());
  conv.resize(model_.conv_bytes());
  pool.read(layer, block, recurrent, conv);
  BlockDigest digest = digest_block(model_, recurrent, conv);
  Layer& sums = at(layer);
  std::uint64_t& share = sums.shares[static_cast<std::size_t>(block)];
  sums.sum -= share;
  share = pool_share(digest.block, block);
  sums.sum += share;
  sums.stale[static_cast<std::size_t>(block)] = false;
  return digest;
}

std::uint64_t PoolDigest::digest(const Pool& pool, int layer) {
  Layer& sums = at(layer);
  for (std::int32_t block : sums.touched)
    if (sums.stale[static_cast<std::size_t>(block)]) hash(pool, layer, block, recurrent_, conv_);
  sums.touched.clear();
  return sums.sum;
}

}  // namespace gdnsim
