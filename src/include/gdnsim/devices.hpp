// How many devices the CUDA backend can choose from; defined in cuda/ and joined by linking, like make_cuda.
#pragma once

namespace gdnsim {

/// 0 where there is no device, no driver or no CUDA backend in this build.
int cuda_devices();

}  // namespace gdnsim
