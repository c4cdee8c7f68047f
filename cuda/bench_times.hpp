// How the bench of the CUDA backend times a call.
#pragma once

#include <functional>

#include "queue.hpp"

namespace gdnsim::cuda {

/// Seconds of one call.
struct Times {
  double median, best;
};

/// On the device alone: a graph of at most so many calls, fewer where they are long, replayed for about so many seconds. A call
/// is given its number.
Times graph_times(Queue& queue, double seconds, int calls, const std::function<void(int)>& call);

/// As a caller sees it.
Times call_times(double seconds, const std::function<void()>& call);

}  // namespace gdnsim::cuda
