// Copies within the host's memory, by a few threads where there is much: one thread is slower than the bus.
#pragma once

#include <cstddef>
#include <vector>

namespace gdnsim::cuda {

class HostCopies {
 public:
  void add(void* to, const void* from, std::size_t bytes);
  /// Does all that was added.
  void run();

 private:
  struct Piece {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  std::vector<Piece> pieces_;
  std::size_t bytes_ = 0;
};

}  // namespace gdnsim::cuda
