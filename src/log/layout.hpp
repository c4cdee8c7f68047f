// The shape of a log: which datasets there are, how large, and how an entry's place in the file is found. Writer, reader and
// verification share this one description.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "file/hdf5_io.hpp"
#include "gdnsim/log.hpp"

namespace gdnsim {

/// One dataset that is written with pwrite: contiguous, row-major.
struct Extent {
  std::string_view group;  // "" for the root
  std::string_view name;
  h5::Type type = h5::Type::u64;
  h5::Dims dims;
  std::uint64_t offset = 0;  // of its first byte in the file, once the skeleton is there

  std::string path() const;  // "/out/conv_out"
  std::uint64_t bytes() const;
  /// Bytes of one entry of the first `axes` axes.
  std::size_t entry_bytes(std::size_t axes) const;
  /// File offset of an entry, named by its indices on the first axes.
  std::uint64_t at(std::initializer_list<std::uint64_t> index) const;
};

/// The sections of a step's digests, in the order in which the chain reads them.
enum class Section : std::uint8_t { recurrent, conv, pool, out };
inline constexpr std::size_t kSections = 4;

struct LogLayout {
  std::vector<Tap> taps;                  // in execution order
  std::vector<Extent> out;                // [taps]  [T, L, B, ...]
  std::vector<Extent> state;              // recurrent [S, L, B, HV, V, K] and conv [S, L, B, W-1, dim], or none
  std::vector<Extent> checkpoint;         // recurrent [C, L, N, HV, V, K] and conv [C, L, N, W-1, dim], or none
  std::vector<Extent> events;             // before and after, [E, L] each, or none
  std::array<Extent, kSections> digest;   // [T, L, ...]
  Extent commit;                          // [T, 4]
  std::vector<std::int64_t> kept;         // [S] kept steps, counted from first_step
  std::vector<std::int32_t> kept_blocks;  // [S, B] -1 where no state is kept
  std::vector<std::int64_t> checkpoints;  // [C] steps whose whole pool is kept, counted from first_step
  std::vector<std::size_t> first_event;   // [T + 1] the step's events are [first_event[t], first_event[t + 1])
  std::size_t events_of(std::size_t t) const { return first_event[t + 1] - first_event[t]; }

  std::vector<Extent*> extents();  // all of them, in file order
  std::vector<const Extent*> extents() const;
};

/// Everything but the offsets. Throws Error when the header cannot be a log (no steps, layers unsorted, plans that do not fit).
LogLayout lay_out(const LogHeader& header, const std::string& where);

/// Who took part, as /steps holds it and the header's digest covers it: index and sequence [T, B], rows and path [T].
struct StepColumns {
  std::vector<std::int32_t> index, rows;
  std::vector<std::int64_t> sequence;
  std::vector<std::int8_t> path;
};
StepColumns columns_of(const std::vector<StepPlan>& plans);

/// Block of a row whose step is logged, or -1: inactive, or the step was not executed.
inline std::int32_t logged_block(const StepPlan& plan, std::size_t row) {
  return plan.path == Path::opaque ? -1 : plan.block[row];
}

/// The taps a log can hold: those of a step's outputs.
bool is_output_tap(Tap tap);

}  // namespace gdnsim
