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

/// The token of a row: the words of its address. A sequence that was forked has its parent's tokens up to there; a candidate
/// that is not accepted is another token than the one that takes its place: its position says draft and step instead.
struct Token {
  std::uint32_t sequence = 0;
  std::uint32_t position = 0;
};
constexpr std::uint32_t rejected_position(int draft, std::int64_t step) {
  return static_cast<std::uint32_t>(draft) << 24 | static_cast<std::uint32_t>(step);
}
inline constexpr int kMostDrafts = 63;

/// The whole schedule, [T, B] row-major. A recipe is small and its schedule is played once, when the stream is made.
struct Schedule {
  std::vector<std::int32_t> index;
  std::vector<std::int64_t> sequence;
  std::vector<Token> token;           // undefined for an inactive row
  std::vector<std::int32_t> present;  // [T]
  std::vector<Path> path;             // [T]
  std::vector<Event> events;          // source of a load: load * layers + layer
  std::vector<Load> loads;
  // Launches: empty without any.
  std::vector<std::int8_t> draft;              // [T]
  std::vector<bool> last_draft;                // [T]
  std::vector<std::int32_t> source, accepted;  // [T, B]
  /// The events that load a block: one a layer that the event names, or a zero where states start so.
  void load(const Recipe& recipe, const Event& event, const Load& what);
};

Schedule make_schedule(const Recipe& recipe);
/// The same of a recipe with a script.
Schedule make_script_schedule(const Recipe& recipe);

}  // namespace gdnsim
