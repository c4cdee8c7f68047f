// The content digest of a stream: what was computed with, in a canonical order, independent of how a file stores it.
#pragma once

#include <string>

#include "gdnsim/stream.hpp"

namespace gdnsim {

/// XXH3-128 (seed 0) in hex, high word first, over: the model; every layer's parameters; each step's path, rows present, index
/// and sequence; the events; the rows that load events name, in event order; each step's inputs, layer by layer. Recorded
/// outputs and provenance are left out: a log made from a trace matches every recording of the same inputs. Reads all inputs.
std::string content_digest_of(Stream& stream);

}  // namespace gdnsim
