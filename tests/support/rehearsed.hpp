// Ranks without processes: each is run in turn until all have heard what the others say.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <gdnsim/spread.hpp>

namespace gdnsim::test {

/// Ranks one after another in one process: what a rank says is written down in a first round, and read out in the second.
class Rehearsed final : public Spread {
 public:
  struct Said {};  // thrown in the first round, when a rank has said something new
  Rehearsed(int rank, int ranks, std::vector<std::vector<std::string>>& rounds)
      : rank_(rank), ranks_(ranks), rounds_(rounds) {}
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::vector<std::string> exchange(const std::string& mine) override {
    if (round_ == rounds_.size()) rounds_.emplace_back(static_cast<std::size_t>(ranks_));
    std::string& place = rounds_[round_][static_cast<std::size_t>(rank_)];
    if (place.empty()) {
      place = mine;
      throw Said();
    }
    CHECK(place == mine);
    return rounds_[round_++];
  }

 private:
  const int rank_, ranks_;
  std::vector<std::vector<std::string>>& rounds_;
  std::size_t round_ = 0;
};

/// Runs `rank` for every rank until all have heard all.
inline void rehearse(int ranks, const std::function<void(Spread&)>& rank) {
  std::vector<std::vector<std::string>> rounds;
  for (int said = ranks; said > 0;) {
    said = 0;
    for (int r = 0; r < ranks; ++r) {
      Rehearsed spread(r, ranks, rounds);
      try {
        rank(spread);
      } catch (const Rehearsed::Said&) {
        ++said;
      }
    }
  }
}

}  // namespace gdnsim::test
