// Gates outside their domain in a recording: a log gate above 0, a factor outside 0..1. Nothing that a decode step computes is
// one, so somebody took one for the other; the recording is still worth explaining, hence words and not an Error.
#pragma once

#include <string>
#include <vector>

#include "gdnsim/trace.hpp"

namespace gdnsim {

/// A line for each of the taps g and decay that has such values in active rows: where the first is, and how many. NaNs are none
/// of them: they come of NaNs that went in. Looks at no more than the first 64 MiB of a tap; data that cannot be read is left
/// to whoever needs it.
std::vector<std::string> gate_warnings(Trace& trace);

}  // namespace gdnsim
