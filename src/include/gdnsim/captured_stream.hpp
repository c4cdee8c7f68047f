// A long stream made from a short recording: the inputs of its longest sequences, over and over or followed by fresh tokens of
// the same statistics. Once captured everything is in memory, so streams made of it may run side by side in many threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gdnsim/stream.hpp"

namespace gdnsim {

/// What comes after a sequence's last recorded token: its first one again, or normal draws with the mean and deviation that
/// each channel of each layer has in the recording.
enum class Extend : std::uint8_t { loop, fresh };
std::string_view name_of(Extend value);
std::optional<Extend> extend_from(std::string_view name);

struct CaptureOptions {
  std::vector<int> layers{};  // whose inputs are kept, ascending; empty: all
  int rows = 0;               // sequences, the longest first; 0: as many as the recording has rows
};

/// Sequences of a stream, with what their blocks were loaded with (docs/drift.md).
class Captured;

/// Reads what is needed, once. Throws Error where a launch has several tokens, or there are fewer sequences than asked for.
/// `where` opens the line.
std::shared_ptr<const Captured> capture(Stream& stream, const CaptureOptions& options, const std::string& where);

/// Rows 0 .. B-1 are sequences 0 .. B-1 on blocks 1 .. B, all active in each step, every step on the decode path. They start
/// from the recorded starting state, or zeros. With `loop`, seed 0 begins at the first recorded token and any other at a token
/// that it picks for each sequence; with `fresh` all begin at the first, and the seed makes what comes after the last.
/// Inputs exist for the captured layers alone.
std::unique_ptr<Stream> make_captured_stream(std::shared_ptr<const Captured> captured, Extend extend,
                                             std::int64_t steps, std::uint64_t seed);

}  // namespace gdnsim
