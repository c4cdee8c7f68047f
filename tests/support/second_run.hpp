// A whole trace by the second implementation: where its words part from a recording.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "support/mutation.hpp"
#include "support/second_step.hpp"

namespace gdnsim::test {

/// Runs one layer with the second implementation and finds the first word that differs from the recording.
class SecondRun {
 public:
  /// `mixed`: the rules of steps that share their launch with a prefill.
  SecondRun(MemoryStream& stream, MemoryRecording& recording, second::Rules decode, second::Rules mixed)
      : stream_(stream), recording_(recording), decode_(decode), mixed_(mixed) {}
  /// Starts before `from`, with the blocks that the unmutated stream gives there.
  std::optional<Change> first_difference(MutatedStream& stream, int layer, std::int64_t from);
  /// How many recorded words the unmutated stream does not give.
  std::uint64_t differing();

 private:
  /// One layer's blocks, and what a kernel holds between the drafts of a launch.
  struct Blocks {
    std::vector<second::Block> all;
    second::Held held;
    second::Block& at(std::int32_t block) { return all.at(static_cast<std::size_t>(block)); }
  };
  std::vector<Change> step(Stream& stream, int layer, std::int64_t step, Blocks& blocks);
  const Blocks& before(int layer, std::int64_t step);
  void apply_events(Stream& stream, int layer, std::int64_t step, Blocks& blocks) const;

  MemoryStream& stream_;
  MemoryRecording& recording_;
  const second::Rules decode_, mixed_;
  std::map<std::pair<int, std::int64_t>, Blocks> before_;  // (layer, step)
  std::uint64_t differing_ = 0;                            // in the steps run for `before_`
};

}  // namespace gdnsim::test
