// Work in order on the device: a stream, what is recorded of it, and the memory that copies go through.
#pragma once

#include <functional>

#include "device.hpp"

namespace gdnsim::cuda {

/// A stream of the current device, made when it is first asked for. In order with nothing but itself, so that threads and their
/// backends do not wait for one another: what another queue is to see is waited for.
class Queue {
 public:
  Queue() = default;
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  cudaStream_t stream();
  cudaStream_t made() const { return stream_; }  // nullptr before the first use
  void wait();
  /// Returns before it is done where the host's memory is page-locked, and between places on the device.
  void copy(void* to, const void* from, std::size_t bytes);
  void fill(void* to, int byte, std::size_t bytes);

 private:
  cudaStream_t stream_ = nullptr;
};

/// A place in a queue that one can wait for.
class Mark {
 public:
  Mark() = default;
  ~Mark();
  Mark(Mark&& other) noexcept;
  Mark& operator=(Mark&& other) noexcept;

  void set(Queue& queue);
  void wait() const;
  /// Seconds from `earlier` to here; both are waited for.
  double seconds_since(const Mark& earlier) const;

 private:
  cudaEvent_t event_ = nullptr;
};

/// Work that was put into a queue once and can be put there again in one call. The addresses it names must stay.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;

  /// What `work` puts into the queue; none of it runs.
  static Graph record(Queue& queue, const std::function<void()>& work);
  bool empty() const { return graph_ == nullptr; }
  void launch(Queue& queue) const;

 private:
  cudaGraphExec_t graph_ = nullptr;
};

/// Page-locked host memory: what the device copies from and to by itself. Grows when it must; the contents are lost then.
class HostBuffer {
 public:
  HostBuffer() = default;
  ~HostBuffer();
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  void resize(std::size_t bytes);
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
};

/// Where several arrays lie in one buffer, each at a multiple of 256 bytes, as device memory of its own would.
class Layout {
 public:
  std::size_t add(std::size_t bytes) {
    const std::size_t at = bytes_;
    bytes_ += (bytes + 255) / 256 * 256;
    return at;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

}  // namespace gdnsim::cuda
