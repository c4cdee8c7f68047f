#include "replay/replay_pieces.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/pool_digest.hpp"
#include "gdnsim/error.hpp"
#include "replay/spread_rows.hpp"

namespace gdnsim {
namespace {

/// The pool's digests, from what each portion's blocks add to that of a pool of zeros. They are compared as one process does it.
void join_pool_sums(std::span<const std::vector<PoolSum>* const> sums, PickedStream& stream, std::int64_t first_step,
                    Log& log, int layer, Comparison& to) {
  const std::uint64_t zeros = PoolDigest(stream.model(), {layer}).digest_of_only(layer, {});
  LayerComparer comparer(stream.model(), layer, true);
  comparer.cells_from(first_step);
  for (std::size_t i = 0; i < sums.front()->size(); ++i) {
    const std::int64_t step = (*sums.front())[i].step;
    std::uint64_t digest = zeros;
    for (const std::vector<PoolSum>* portion : sums) {
      GDNSIM_CHECK(portion->size() == sums.front()->size() && (*portion)[i].step == step);
      digest += (*portion)[i].digest - zeros;
    }
    comparer.pool_digest(stream.plan(step), digest, log.digest_pool(step, layer));
  }
  to.add(comparer);
}

}  // namespace

Pieces::Pieces(PickedStream& stream, const Slice& slice, Spread* spread, bool part_rows)
    : stream_(stream), layers_(slice.layers), first_step_(slice.first_step), spread_(spread) {
  const int layers = static_cast<int>(layers_.size()), ranks = spread == nullptr ? 1 : spread->ranks();
  if (ranks <= layers || !part_rows) return;
  auto portions = portions_of(stream, slice.last_step, ranks / std::gcd(ranks, layers));  // equally many pieces a rank
  if (portions.size() == 1) return;
  for (auto& portion : portions) {
    Slice part = slice;
    part.pick.portion = std::move(portion);
    portions_.push_back(std::make_unique<PickedStream>(stream, part));
  }
}

std::vector<LayerOutcome> Pieces::joined(std::vector<LayerOutcome> outcomes, Recording& recording) {
  if (spread_ != nullptr) share(*spread_, outcomes);
  if (portions() == 1) return outcomes;
  std::vector<LayerOutcome> layers(layers_.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    LayerOutcome& layer = layers[i];
    std::vector<const std::vector<PoolSum>*> carried, local;
    for (std::size_t piece = i * portions(); piece < (i + 1) * portions(); ++piece) {
      layer.carried.add(outcomes[piece].carried);
      layer.local.add(outcomes[piece].local);
      layer.reran |= outcomes[piece].reran;
      carried.push_back(&outcomes[piece].carried_pool);
      local.push_back(&outcomes[piece].local_pool);
    }
    if (auto* log = dynamic_cast<Log*>(&recording)) {
      if (layer.carried.done) join_pool_sums(carried, stream_, first_step_, *log, layers_[i], layer.carried);
      if (layer.local.done) join_pool_sums(local, stream_, first_step_, *log, layers_[i], layer.local);
    }
  }
  return layers;
}

}  // namespace gdnsim
