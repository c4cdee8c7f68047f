// All results of a device's approximate functions, fetched through page-locked memory.
#include "approximate_results.hpp"

#include <cstring>
#include <memory>
#include <utility>

#include "gdnsim/error.hpp"
#include "queue.hpp"

namespace gdnsim {

ApproximateResults approximate_of_device(int device) {
  using namespace cuda;
  open_device(device);
  auto memory = std::make_shared<std::pair<Buffer, HostBuffer>>();
  return [device, memory](Approximate function, std::uint32_t first, std::span<std::uint32_t> results) {
    auto& [there, here] = *memory;
    GDNSIM_CUDA(cudaSetDevice(device));
    there.resize(results.size_bytes()), here.resize(results.size_bytes());
    launch_approximate(function, first, there.as<std::uint32_t>(), static_cast<std::int64_t>(results.size()));
    copy_now(here.data(), there.data(), results.size_bytes());
    std::memcpy(results.data(), here.data(), results.size_bytes());
  };
}

}  // namespace gdnsim
