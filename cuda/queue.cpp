#include "queue.hpp"

#include <utility>

#include "gdnsim/error.hpp"

namespace gdnsim::cuda {

Queue::~Queue() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

cudaStream_t Queue::stream() {
  if (stream_ == nullptr) GDNSIM_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  return stream_;
}

void Queue::wait() { GDNSIM_CUDA(cudaStreamSynchronize(stream())); }

void Queue::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) GDNSIM_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()));
}

void Queue::fill(void* to, int byte, std::size_t bytes) {
  if (bytes > 0) GDNSIM_CUDA(cudaMemsetAsync(to, byte, bytes, stream()));
}

Mark::~Mark() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}
Mark::Mark(Mark&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
Mark& Mark::operator=(Mark&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}

void Mark::set(Queue& queue) {
  if (event_ == nullptr) GDNSIM_CUDA(cudaEventCreate(&event_));
  GDNSIM_CUDA(cudaEventRecord(event_, queue.stream()));
}

void Mark::wait() const { GDNSIM_CUDA(cudaEventSynchronize(event_)); }

double Mark::seconds_since(const Mark& earlier) const {
  float milliseconds = 0;
  wait();
  GDNSIM_CUDA(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
  return 1e-3 * milliseconds;
}

Graph::~Graph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}
Graph::Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(graph_, other.graph_);
  return *this;
}

Graph Graph::record(Queue& queue, const std::function<void()>& work) {
  cudaGraph_t recorded = nullptr;
  GDNSIM_CUDA(cudaStreamBeginCapture(queue.stream(), cudaStreamCaptureModeThreadLocal));
  try {
    work();
  } catch (...) {  // the stream must not stay in recording
    if (cudaStreamEndCapture(queue.stream(), &recorded) == cudaSuccess) cudaGraphDestroy(recorded);
    cudaGetLastError();
    throw;
  }
  GDNSIM_CUDA(cudaStreamEndCapture(queue.stream(), &recorded));
  Graph graph;
  const cudaError_t status = cudaGraphInstantiate(&graph.graph_, recorded, 0);
  cudaGraphDestroy(recorded);
  GDNSIM_CUDA(status);
  return graph;
}

void Graph::launch(Queue& queue) const { GDNSIM_CUDA(cudaGraphLaunch(graph_, queue.stream())); }

HostBuffer::~HostBuffer() { cudaFreeHost(data_); }

void HostBuffer::resize(std::size_t bytes) {
  if (bytes <= capacity_) return;
  GDNSIM_CUDA(cudaFreeHost(std::exchange(data_, nullptr)));
  capacity_ = 0;
  void* memory = nullptr;
  const cudaError_t status = cudaMallocHost(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw error("cuda: the system has no ", bytes >> 20, " MiB of page-locked memory left; take fewer rows");
  }
  GDNSIM_CUDA(status);
  data_ = static_cast<std::byte*>(memory);
  capacity_ = bytes;
}

}  // namespace gdnsim::cuda
