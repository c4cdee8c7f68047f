#include "device.hpp"

#include <utility>

#include "gdnsim/devices.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/source_place.hpp"
#include "kernels.hpp"

namespace gdnsim::cuda {
namespace {

/// What the user can do about it.
const char* advice(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "free memory on the device, or take fewer layers, blocks or rows";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      return "this build has no code for this GPU; build it with its architecture, or use golden";
    case cudaErrorInsufficientDriver:
      return "update the NVIDIA driver, or use golden";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
      return "a kernel broke; the device is lost to this process; please report this, and use golden";
    case cudaErrorECCUncorrectable:
    case cudaErrorDevicesUnavailable:
    case cudaErrorHardwareStackError:
    case cudaErrorNvlinkUncorrectable:
      return "the device is lost to this process; see nvidia-smi, then run again with --resume";
    default:
      return "see whether nvidia-smi shows the device in order, or use golden";
  }
}

/// Why there is nothing to count, when cudaGetDeviceCount fails.
[[noreturn]] void throw_no_device(cudaError_t status) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) throw error("cuda: no NVIDIA driver was found on this machine (libcuda.so.1)");
  if (status == cudaErrorInsufficientDriver)
    throw error("cuda: the NVIDIA driver supports CUDA ", driver / 1000, ".", driver % 1000 / 10, ", this build needs ",
                runtime / 1000, ".0 or newer; update the driver");
  if (status == cudaErrorNoDevice)
    throw error("cuda: the NVIDIA driver sees no device (is CUDA_VISIBLE_DEVICES empty?)");
  throw error("cuda: the devices cannot be listed: ", cudaGetErrorString(status));
}

void require_number(int number) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) throw_no_device(status);
  if (count == 0) throw_no_device(cudaErrorNoDevice);
  if (number < 0 || number >= count)
    throw error("cuda: device ", number, ": expected 0 to ", count - 1, " (", count,
                count == 1 ? " device" : " devices", ")");
}

}  // namespace

void check(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // an error that can be recovered from is told once
  const std::string expression(call);
  throw error("cuda: ", expression.substr(0, expression.find('(')), " failed at ", source_place(file), ":", line, ": ",
              cudaGetErrorString(status), " (", cudaGetErrorName(status), "); ", advice(status));
}

DeviceInfo open_device(int number) {
  require_number(number);
  GDNSIM_CUDA(cudaSetDevice(number));
  cudaDeviceProp properties;
  GDNSIM_CUDA(cudaGetDeviceProperties(&properties, number));
  DeviceInfo device{.number = number,
                    .name = properties.name,
                    .major = properties.major,
                    .minor = properties.minor,
                    .multiprocessors = properties.multiProcessorCount,
                    .memory = properties.totalGlobalMem,
                    .cache = static_cast<std::size_t>(properties.l2CacheSize)};
  GDNSIM_CUDA(cudaDriverGetVersion(&device.driver));
  if (!has_kernel_image())
    throw error("cuda: ", describe(device), ": this build has no code for it, only ", GDNSIM_CUDA_CODE, "; use golden");
  return device;
}

std::string describe(const DeviceInfo& device) {
  std::ostringstream text;
  text << device.name << " (device " << device.number << ", sm_" << device.major << device.minor << ", "
       << device.multiprocessors << " multiprocessors, " << (device.memory >> 30) << " GiB), driver for CUDA "
       << device.driver / 1000 << "." << device.driver % 1000 / 10;
  return text.str();
}

void copy_now(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  GDNSIM_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamPerThread));
  GDNSIM_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
}

Buffer::~Buffer() { cudaFree(data_); }

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

void Buffer::resize(std::size_t bytes) {
  if (bytes <= capacity_) return;
  GDNSIM_CUDA(cudaFree(std::exchange(data_, nullptr)));
  capacity_ = 0;
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw error("cuda: the device has no ", bytes >> 20, " MiB left for a step's buffer; ", advice(status));
  }
  GDNSIM_CUDA(status);
  data_ = static_cast<std::byte*>(memory);
  capacity_ = bytes;
}

void Buffer::upload(std::span<const std::byte> words) {
  resize(words.size());
  copy_now(data_, words.data(), words.size());
}

void Buffer::zero(std::size_t bytes) {
  resize(bytes);
  if (bytes == 0) return;
  GDNSIM_CUDA(cudaMemsetAsync(data_, 0, bytes, cudaStreamPerThread));
  GDNSIM_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
}

void Buffer::download(Bytes& to, std::size_t bytes) const {
  GDNSIM_CHECK(bytes <= capacity_);
  to.resize(bytes);
  copy_now(to.data(), data_, bytes);
}

}  // namespace gdnsim::cuda

int gdnsim::cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // who wants a device is told why there is none
  return 0;
}
