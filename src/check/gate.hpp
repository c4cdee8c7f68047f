// A gate while it is being asked: what is compared is counted, and the first difference kept.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "gdnsim/check.hpp"
#include "gdnsim/words.hpp"

namespace gdnsim {

CheckStage stage_of(Tap tap);

class Tally {
 public:
  Tally(CheckStage stage, Battery battery, std::string name, std::string shape);
  /// Compares one row's words of a tap.
  void compare(Tap tap, const TapShape& shape, std::span<const std::byte> want, std::span<const std::byte> got,
               const std::string& between, std::int64_t row);
  /// Counts elements that a digest of them all said to be the same.
  void agree(std::uint64_t elements) { gate_.compared += elements; }
  void count_launches(std::uint64_t launches) { gate_.launches += launches; }
  bool differs() const { return gate_.first.has_value(); }
  CheckStage stage() const { return gate_.stage; }
  /// Sets another first violation, as narrowed.
  void narrow(const Violation& first) { gate_.first = first; }
  void note(const std::string& note) { gate_.note = note; }
  /// Its verdict by what was compared.
  Gate finish() const;

 private:
  Gate gate_;
};

Gate skipped_gate(CheckStage stage, Battery battery, std::string name, std::string shape, std::string why);

/// Two neighbours: `good` agrees, `bad` does not, and nothing lies between (they may be one above the other either way).
struct Neighbours {
  std::int64_t good, bad;
};
/// By bisection; `agrees` is asked about sizes strictly between the two.
Neighbours narrow_down(Neighbours apart, const std::function<bool(std::int64_t)>& agrees);
/// "264 and 265 rows", the smaller first.
std::string between_sizes(const Neighbours& sizes);

}  // namespace gdnsim
