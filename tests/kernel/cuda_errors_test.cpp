// What a failing CUDA call says: the call, its place, the runtime's words, what to do, on one line. Needs no device.
#include <doctest/doctest.h>

#include <gdnsim/error.hpp>

#include <string>

#include "cuda/device.hpp"

using namespace gdnsim;

namespace {

/// What the checking function makes of an error.
std::string said(cudaError_t status) {
  try {
    cuda::check(status, "cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream())", "../../a/b/cuda/queue.cpp",
                27);
    return "";
  } catch (const Error& problem) {
    return problem.what();
  }
}

}  // namespace

TEST_CASE("cuda errors: success says nothing") { CHECK(said(cudaSuccess).empty()); }

TEST_CASE("cuda errors: the call, file and line, the runtime's words and what to do, on one line") {
  struct Expected {
    cudaError_t status;
    const char *name, *advice;
  };
  for (const Expected& each :
       {Expected{cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "free memory on the device, or take fewer"},
        Expected{cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "the device is lost to this process"},
        Expected{cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "the device is lost to this process"},
        Expected{cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "run again with --resume"},
        Expected{cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "run again with --resume"},
        Expected{cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice", "build it with its architecture"},
        Expected{cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "update the NVIDIA driver"},
        Expected{cudaErrorUnknown, "cudaErrorUnknown", "nvidia-smi"}}) {
    CAPTURE(each.name);
    const std::string text = said(each.status);
    CAPTURE(text);
    CHECK(text.starts_with("cuda: cudaMemcpyAsync failed at cuda/queue.cpp:27: "));
    CHECK(text.find(cudaGetErrorString(each.status)) != std::string::npos);
    CHECK(text.find("(" + std::string(each.name) + ")") != std::string::npos);
    CHECK(text.find(each.advice) != std::string::npos);
    CHECK(text.find('\n') == std::string::npos);
  }
}
