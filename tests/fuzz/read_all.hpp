// Reading a file as the commands do, all of it, for the fuzz targets and the sweep over damaged files.
#pragma once

#include <cstdint>
#include <string>

namespace gdnsim::test {

/// How a file was received.
enum class Reception { refused, faulty, incomplete, whole };

struct Reading {
  Reception reception = Reception::refused;
  std::string text;          // the error line, the fault, or a digest of everything that was read
  std::int64_t steps = 0;    // complete ones
  bool untidy_line = false;  // an error of several lines, or one that does not open with the file's name
};

/// Opens the file and reads every value that a command would: plans, inputs, taps, snapshots, load rows, checkpoints, digests.
/// Error is a refusal; any other exception goes through: no reader may throw it.
Reading read_all(const std::string& path);

}  // namespace gdnsim::test
