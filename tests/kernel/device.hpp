// The device of a kernel test: a machine without one skips the case; a device that is there and cannot be used fails it.
#pragma once

#include <doctest/doctest.h>

#include <gdnsim/backend.hpp>
#include <gdnsim/devices.hpp>
#include <gdnsim/error.hpp>

#include <memory>
#include <string>
#include <string_view>

#include "cuda/variants.hpp"
#include "support/skip.hpp"

namespace gdnsim::test {

/// Notes a skip for want of a device. With a device there, whatever `reason` says is a failure.
inline void skip_or_fail(const std::string& reason) {
  if (cuda_devices() > 0) FAIL("a device is there, but: ", reason);
  if (reason.find("no CUDA backend") != std::string::npos) return skip("built without CUDA");
  MESSAGE(reason);
  skip(kNoGpu);
}

/// The backend, or nullptr and why not.
inline std::unique_ptr<Backend> try_cuda(std::string& reason) {
  try {
    return make_cuda({});
  } catch (const Error& problem) {
    reason = problem.what();
    return nullptr;
  }
}

/// The backend held to a variant; nullptr where there is no device, and of a variant that is not for the one that is there.
inline std::unique_ptr<Backend> try_variant(std::string_view name, bool poison) {
  try {
    return cuda::make_variant({}, name, poison);
  } catch (const Error& problem) {
    const std::string reason = problem.what();
    if (reason.find("expected a device of sm_90 or later") == std::string::npos) skip_or_fail(reason);
    MESSAGE(reason);
    return nullptr;
  }
}

/// Leaves the case unless there is a device. What is missing is told; the allowed reason is the plain one.
#define CUDA_OR_SKIP(name)                                   \
  std::string name##_reason;                                 \
  const auto name = ::gdnsim::test::try_cuda(name##_reason); \
  if (name == nullptr) {                                     \
    ::gdnsim::test::skip_or_fail(name##_reason);             \
    return;                                                  \
  }

}  // namespace gdnsim::test
