// A norm's words as its rules give them, worked out a second time: in double precision, each rounding written out.
#pragma once

#include "gdnsim/norm.hpp"

namespace gdnsim {

/// False where the contract takes a GPU's approximate functions, or fuses a product into a sum: that is not written out
/// here.
bool is_written_out(const NormSpec& spec, const Contract& contract);

/// rstd and out of any rows; NaNs are the canonical one.
NormOutputs written_out(const NormArgs& args);

}  // namespace gdnsim
