// Were two recordings fed the same? Only then can "its inputs are equal" stand in a diff.
#pragma once

#include <string>

#include "gdnsim/recording.hpp"
#include "gdnsim/slice.hpp"

namespace gdnsim {

/// The position in B of A's layer, by the model's own layer number; -1 when B does not hold it.
int layer_in(const Recording& a, const Recording& b, int layer);

/// Empty when both were fed the same in what is looked at; else what a report says of it: that they were not, or that nobody
/// looked. A trace's digest takes reading all of its inputs: of a slice only the slice's own are compared.
std::string fed_apart(Recording& a, Recording& b, const Slice& asked, const Slice& slice);

}  // namespace gdnsim
