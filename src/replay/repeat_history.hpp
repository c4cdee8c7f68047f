// What a block holds, told by how it came about: where its content started and every step since. Private to repeats.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "gdnsim/stream.hpp"

namespace gdnsim {

/// XXH3-128. Equal digests are taken for equal content.
using Digest128 = std::array<std::uint64_t, 2>;
Digest128 joined(std::initializer_list<Digest128> parts);

/// Digests of load rows, each read once.
class LoadDigests {
 public:
  explicit LoadDigests(Stream& stream) : stream_(stream) {}
  Digest128 zeros();
  Digest128 row(std::int32_t source);

 private:
  Digest128 content() const;
  Stream& stream_;
  std::map<std::int32_t, Digest128> known_;  // load row (-1: zeros)
  Bytes recurrent_, conv_;
};

struct History {
  Digest128 root;      // where it started: loaded content, or nobody knows what
  Digest128 values;    // root and the row's inputs since
  Digest128 launches;  // root and everything in the launches since
};

/// The histories of one layer's blocks; the caller adds the steps' own part.
class Histories {
 public:
  /// `from_zero`: blocks start as zeros; else each as something of its own that is not known.
  Histories(Stream& stream, LoadDigests& loads, int layer, bool from_zero)
      : stream_(stream), loads_(loads), layer_(layer), from_zero_(from_zero) {}

  /// Applies the events before a step.
  void events_before(std::int64_t step);
  /// Rows that move take their history along: a rollback, not a new start.
  void move_rows(const StepPlan& plan);
  /// The step changed its blocks in a way that is not known.
  void lose(const StepPlan& plan);
  History& of(std::int32_t block);
  /// How many blocks began with this content, by event or copy.
  int starts(const Digest128& root) const;

 private:
  void apply(const Event& event);
  void start(std::int32_t block, const Digest128& root);
  void start_unknown(std::int32_t block, std::int64_t step);

  Stream& stream_;
  LoadDigests& loads_;
  const int layer_;
  const bool from_zero_;
  std::size_t next_event_ = 0;
  std::unordered_map<std::int32_t, History> blocks_;  // those that something was said of
  std::map<Digest128, int> starts_;
};

}  // namespace gdnsim
