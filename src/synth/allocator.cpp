#include "synth/allocator.hpp"

#include <algorithm>
#include <utility>

#include "gdnsim/error.hpp"

namespace gdnsim {

Allocator::Allocator(Allocation policy, std::int32_t lowest, std::int64_t blocks, int columns)
    : policy_(policy), lowest_(lowest), blocks_(blocks), columns_(columns) {
  GDNSIM_CHECK(blocks >= 1 && columns >= 1);
  for (std::int64_t i = 0; i < blocks; ++i) free_.push_back(lowest + static_cast<std::int32_t>(i));
  if (policy == Allocation::lifo) std::ranges::reverse(free_);
}

/// Under modulo nobody asks what is free.
bool Allocator::has(std::size_t count) const { return policy_ == Allocation::modulo || free_.size() - first_ >= count; }

std::int32_t Allocator::take(std::int64_t sequence, int column, const Pick& pick) {
  if (policy_ != Allocation::modulo) return take_free(pick);
  const std::int64_t capacity = blocks_ / columns_;
  const auto block = lowest_ + static_cast<std::int32_t>(sequence % capacity * columns_ + column);
  std::erase(free_, block);
  return block;
}

std::int32_t Allocator::take_free(const Pick& pick) {
  GDNSIM_CHECK(has(1));
  if (policy_ == Allocation::fifo) {
    const std::int32_t block = free_[first_++];
    if (first_ * 2 > free_.size()) {
      free_.erase(free_.begin(), free_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
    return block;
  }
  if (policy_ == Allocation::drawn) std::swap(free_[pick(free_.size())], free_.back());
  const std::int32_t block = free_.back();
  free_.pop_back();
  return block;
}

void Allocator::give(std::int32_t block) { free_.push_back(block); }

std::vector<std::int32_t> Allocator::free() const {
  std::vector<std::int32_t> blocks(free_.begin() + static_cast<std::ptrdiff_t>(first_), free_.end());
  if (policy_ == Allocation::lifo) std::ranges::reverse(blocks);
  return blocks;
}

}  // namespace gdnsim
