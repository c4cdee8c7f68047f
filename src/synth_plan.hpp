// The schedule of a synthetic stream: which sequence sits in which row and block at each step, and the events between steps.
#pragma once

#include <cstdint>
#include <vector>

#include "gdnsim/recipe.hpp"

namespace gdnsim {

/// What one load row holds: the state of `sequence` at its start (resumed = 0) or after being dropped `resumed` times.
struct Load {
  std::uint32_t sequence = 0;
  std::uint32_t resumed = 0;
};

/// The whole schedule, [T, B] row-major. A recipe is small and its schedule is played once, when the stream is made.
struct Schedule {
  std::vector<std::int32_t> index;
  std::vector<std::int64_t> sequence;
  std::vector<std::uint32_t> position;  // of the token in its sequence; undefined for an inactive row
  std::vector<std::int32_t> present;    // [T]
  std::vector<Path> path;               // [T]
  std::vector<Event> events;            // source of a load: load * layers + layer
  std::vector<Load> loads;
};

Schedule make_schedule(const Recipe& recipe);

}  // namespace gdnsim
