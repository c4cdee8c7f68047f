// The fast gated norm's launcher (norm_fast.cu).
#pragma once

#include "device.hpp"
#include "gdnsim/error.hpp"
#include "kernels.hpp"

namespace gdnsim::cuda {

/// Under golden's rules, else Triton's with the step's rstd and lane width.
void launch_norm_fast(const StepView& step, bool golden);

}  // namespace gdnsim::cuda
