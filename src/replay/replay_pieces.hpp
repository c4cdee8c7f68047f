// A replay in pieces: the layers, or with fewer of them than processes some rows of each, and what is found in them put together.
// Private to replay.
#pragma once

#include <memory>
#include <vector>

#include "gdnsim/log.hpp"
#include "gdnsim/spread.hpp"
#include "replay/layer_outcome.hpp"

namespace gdnsim {

class Pieces {
 public:
  /// Without a spread, with layers enough or where rows are not to be parted, a piece is a layer.
  Pieces(PickedStream& stream, const Slice& slice, Spread* spread, bool part_rows);

  std::size_t size() const { return layers_.size() * portions(); }
  /// Is it run by this process?
  bool mine(std::size_t piece) const { return spread_ == nullptr || spread_->takes(piece); }
  int layer(std::size_t piece) const { return layers_[piece / portions()]; }
  /// What its run sees.
  PickedStream& stream(std::size_t piece) { return portions_.empty() ? stream_ : *portions_[piece % portions()]; }
  /// From what the pieces that are mine gave to what all layers gave, on every process.
  std::vector<LayerOutcome> joined(std::vector<LayerOutcome> outcomes, Recording& recording);

 private:
  std::size_t portions() const { return portions_.empty() ? 1 : portions_.size(); }

  PickedStream& stream_;
  const std::vector<int> layers_;
  const std::int64_t first_step_;
  Spread* const spread_;
  std::vector<std::unique_ptr<PickedStream>> portions_;  // empty: rows stay together
};

}  // namespace gdnsim
