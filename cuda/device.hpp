// The device: every CUDA call checked, device memory that frees itself, and what there is to run on.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gdnsim/types.hpp"

namespace gdnsim::cuda {

/// Throws Error naming the call, its place, what the runtime said and what to do, unless `status` is success.
void check(cudaError_t status, const char* call, const char* file, int line);
#define GDNSIM_CUDA(call) ::gdnsim::cuda::check((call), #call, __FILE__, __LINE__)

/// What a usable device is called and has.
struct DeviceInfo {
  int number = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::size_t memory = 0;  // bytes
  std::size_t cache = 0;   // bytes of L2
  int driver = 0;          // CUDA version the driver supports, 1000 * major + 10 * minor
};

/// Makes device `number` current and describes it. Throws Error when there is no driver, no device or no such number,
/// or when this build has no code for it.
DeviceInfo open_device(int number);
/// "NVIDIA H200 (device 0, sm_90, 132 multiprocessors, 139 GiB), driver for CUDA 13.0"
std::string describe(const DeviceInfo& device);

/// Copies at once, by a stream that is this thread's alone: it waits for no other work, so whoever reads what kernels wrote has
/// waited for them.
void copy_now(void* to, const void* from, std::size_t bytes);

/// Device memory. Grows when it must, never shrinks; the contents are lost when it grows.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes) { resize(bytes); }
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  /// At least `bytes`, on the current device.
  void resize(std::size_t bytes);
  /// Resizes to the words and copies them in; none gives nullptr.
  void upload(std::span<const std::byte> words);
  template <class T>
  void upload(const std::vector<T>& values) {
    upload(std::as_bytes(std::span(values)));
  }
  /// Resizes and fills with zeros, which are there when it returns.
  void zero(std::size_t bytes);
  /// Copies the first `bytes` out at once (`copy_now`).
  void download(Bytes& to, std::size_t bytes) const;

  std::byte* data() const { return data_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
};

}  // namespace gdnsim::cuda
