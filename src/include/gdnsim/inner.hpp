// The values inside the step of the first divergence, at its place: what the replay computed on the way there, whether the
// trace recorded it or not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gdnsim/replay.hpp"

namespace gdnsim {

/// One of them. Names are those of the taps, and
///   x               the conv's input channel                    window_before   its window before the step, oldest first
///   state_before    the element of the state before the step    q_norm, k_norm  Euclidean length of the head's q, k (f64)
struct InnerValue {
  std::string name;
  std::int64_t head = -1;             // -1: the conv's values have none
  std::int64_t element = -1;          // within the head, -1 for the whole head
  DType type = DType::f32;            // of the word
  std::optional<std::uint32_t> word;  // absent for a length
  double value = 0;
  std::optional<std::uint32_t> recorded;  // the recorded word, where the trace has the tap
};

/// Runs the layer of the result's first divergence again up to its step, as the result was made (carried, or local where
/// nothing was carried), and picks the values at its place. Empty when there is none, or when it has no row.
std::vector<InnerValue> inner_values(Stream& stream, Recording& recording, Backend& backend,
                                     const ReplayResult& result);

/// Who wrote last what the operation of a divergence read.
struct LastWriter {
  std::int32_t block = -1;  // that it read
  std::int64_t step = -1;   // the write: before this step (an event) or in it (a row); -1: nobody had written it
  std::int64_t event = -1;  // an event of the stream, or
  std::int64_t row = -1;    // a row of that step, and its
  std::int64_t sequence = -1;
  std::string says;  // "block 3, which the row went on from, was last written by row 0 of step 4, sequence 7"
};
/// By the stream's plans and events, in the layer of the divergence. Nothing where it names no block.
std::optional<LastWriter> last_writer(const Stream& stream, const Divergence& at);

}  // namespace gdnsim
