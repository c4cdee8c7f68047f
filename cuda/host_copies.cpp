#include "host_copies.hpp"

#include <omp.h>

#include <algorithm>
#include <cstring>

namespace gdnsim::cuda {
namespace {

constexpr std::size_t kPiece = 128 << 10;         // bytes
constexpr std::size_t kWorthThreads = 512 << 10;  // of all pieces
constexpr int kThreads = 4;

}  // namespace

void HostCopies::add(void* to, const void* from, std::size_t bytes) {
  bytes_ += bytes;
  for (std::size_t at = 0; at < bytes; at += kPiece)
    pieces_.push_back(
        {static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at, std::min(kPiece, bytes - at)});
}

void HostCopies::run() {
  const int threads = std::min(kThreads, omp_get_max_threads());
#pragma omp parallel for schedule(static) num_threads(threads) if (bytes_ >= kWorthThreads)
  for (std::size_t i = 0; i < pieces_.size(); ++i) std::memcpy(pieces_[i].to, pieces_[i].from, pieces_[i].bytes);
  pieces_.clear(), bytes_ = 0;
}

}  // namespace gdnsim::cuda
