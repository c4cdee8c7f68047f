// Which block a sequence gets: the policies of engines over one explicit free list. Private to synth.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "gdnsim/recipe.hpp"

namespace gdnsim {

/// The choice of one of `count` free blocks, where it is drawn.
using Pick = std::function<std::size_t(std::size_t count)>;

/// lifo: what was given back last goes first. fifo: what has been free longest. drawn: any. modulo: the sequence's id decides,
/// whoever has the block - the one that engines had to take back.
class Allocator {
 public:
  /// Blocks lowest .. lowest + blocks - 1 are free, the lowest the first to go. Each sequence has `columns` of them.
  Allocator(Allocation policy, std::int32_t lowest, std::int64_t blocks, int columns);

  bool has(std::size_t count) const;
  /// A block for one column of a sequence.
  std::int32_t take(std::int64_t sequence, int column, const Pick& pick);
  void give(std::int32_t block);
  /// The free blocks, for lifo and fifo in the order in which they go.
  std::vector<std::int32_t> free() const;

 private:
  std::int32_t take_free(const Pick& pick);

  const Allocation policy_;
  const std::int32_t lowest_;
  const std::int64_t blocks_;
  const int columns_;
  std::vector<std::int32_t> free_;  // lifo: the next at the end
  std::size_t first_ = 0;           // fifo: free_[first_] is the next
};

}  // namespace gdnsim
