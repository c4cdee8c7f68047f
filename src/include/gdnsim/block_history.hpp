// Who held each block of the pool, from when to when, and what was put into it: for `info` and for people.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gdnsim/stream.hpp"

namespace gdnsim {

/// One sequence's time with one block.
struct Tenure {
  std::int32_t block = 0;
  std::int64_t sequence = -1;                  // -1: not known
  std::int64_t first_step = 0, last_step = 0;  // held from before the first to before the last, or to the end
  std::int64_t began = -1, ended = -1;         // events of the stream that say so; -1: it follows from the rows alone
  std::vector<std::int64_t> fills;             // events that reset, loaded or copied into it
  std::int64_t rows = 0, first_row = -1, last_row = -1;  // steps with a row on it: how many, the first, the last
  bool operator==(const Tenure&) const = default;
};

/// Ordered by block, then time. Where the stream says whose blocks are (allocate events), by that; else by the rows' sequences: a
/// block is a sequence's from what was put into it before its first row there, or from that row on, until another comes or it
/// is freed. Events of any layer count.
std::vector<Tenure> block_history(const Stream& stream);
/// The same of what a log holds: its events and the plans of its steps first .. last - 1.
std::vector<Tenure> block_history(std::span<const Event> events, std::int64_t first_step, std::int64_t last_step,
                                  const std::function<StepPlan(std::int64_t)>& plan);

/// "block 3: sequence 7, steps 0:12: allocated by event 0 (start), zero by event 1, 12 rows in steps 0 to 11, freed by event 9
/// (finish)"
std::string describe(const Tenure& tenure, std::span<const Event> events);

}  // namespace gdnsim
