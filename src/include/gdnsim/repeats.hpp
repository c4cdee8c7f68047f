// The noise floor: where a recording repeats a step, the repeats must agree to the bit. If they do not, its provider is not
// repeatable there, and no comparison with anything else can blame a choice or a fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "gdnsim/recording.hpp"
#include "gdnsim/replay.hpp"

namespace gdnsim {

/// One row of one step.
struct RepeatPlace {
  std::int64_t step = -1;
  int row = -1;
  std::int32_t block = -1;
  bool operator==(const RepeatPlace&) const = default;
};

/// Two rows that were given the same and came out different.
///
/// The same: inputs (mixed_qkv, a, b, z), path, rows of the launch, and the whole history of the block - what it was loaded or
/// zeroed with, and every step since. Row and block numbers may differ, and so may the rows around them. Where z alone differs
/// all but rstd and norm_out is compared.
struct Repeat {
  RepeatPlace first, second;  // first is the earlier one in step, then row
  int layer = -1;
  Tap tap = Tap::conv_acc;
  std::int64_t head = -1, element = -1;  // as in Divergence
  DType type = DType::f32;
  std::uint32_t first_word = 0, second_word = 0;  // raw
  /// Both launches, and all before them since the state's start, held the same rows in the same places and as many tokens
  /// (StepPlan::launch_tokens): noise. Otherwise the result may depend on the row's place or on what is around it, each time in
  /// the same way. A mixed step whose tokens are not known is no other's launch: its prefill may have been another.
  bool same_batch = false;
};

struct RepeatCheck {
  std::uint64_t repeats = 0;     // rows that repeat an earlier one
  std::uint64_t same_batch = 0;  // of those, in the same launch throughout
  std::uint64_t other_z = 0;     // of those, with another z: compared but for the norm
  std::uint64_t snapshots = 0;   // states after a repeat that were recorded for both
  std::uint64_t compared = 0;    // elements
  std::uint64_t differing = 0;
  std::uint64_t forgotten = 0;  // times that a row left the window: above 0, some repeats may not have been found
  /// The first in execution order of the later row; one in the same batch goes before all others.
  std::optional<Repeat> first;
};

/// Rows of a layer that are remembered.
inline constexpr std::size_t kRepeatWindow = std::size_t{1} << 18;

/// Compares every repeat in the slice with the row it repeats. Inputs are read only for blocks that started from the same
/// content as another, outputs only of repeats. A block that no event started holds, in a trace, nobody knows what, and so
/// does one that a step of Path::opaque named; a log's blocks start from zeros. Inactive rows repeat nothing.
RepeatCheck check_repeats(Stream& stream, Recording& recording, const Slice& slice, std::size_t window = kRepeatWindow);

/// Its `first`.
std::optional<Repeat> find_unrepeatable(Stream& stream, Recording& recording, const Slice& slice);

}  // namespace gdnsim
