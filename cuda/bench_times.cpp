#include "bench_times.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

namespace gdnsim::cuda {
namespace {

constexpr double kRecorded = 1e-2, kSample = 2e-3;  // seconds of a graph at most and of a sample at least, about
constexpr std::size_t kFewest = 3;

Times times_from(std::vector<double> samples) {
  std::ranges::sort(samples);
  return {samples[samples.size() / 2], samples.front()};
}

}  // namespace

Times graph_times(Queue& queue, double seconds, int calls, const std::function<void(int)>& call) {
  call(0);  // the kernels are loaded
  Mark begin, end;
  begin.set(queue);
  for (int i = 0; i < calls; ++i) call(i);  // the caches are filled
  end.set(queue);
  const double all = end.seconds_since(begin);
  const int recorded = std::clamp(static_cast<int>(kRecorded / all * calls), std::min(calls, 2), calls);
  const Graph graph = Graph::record(queue, [&] {
    for (int i = 0; i < recorded; ++i) call(i);
  });
  std::vector<double> samples;
  int replays = 1;
  double spent = 0;
  for (bool first = true; first || samples.size() < kFewest || spent < seconds; first = false) {
    begin.set(queue);
    for (int i = 0; i < replays; ++i) graph.launch(queue);
    end.set(queue);
    const double sample = end.seconds_since(begin);
    if (first)
      replays = std::clamp(static_cast<int>(kSample / sample), 1, 200);
    else
      samples.push_back(sample / replays / recorded);
    spent += sample;
  }
  return times_from(std::move(samples));
}

Times call_times(double seconds, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < 3; ++i) call();  // memory grows, kernels are loaded, what repeats is recorded
  std::vector<double> samples;
  const auto start = Clock::now();
  for (auto begin = start;
       samples.size() < kFewest || std::chrono::duration<double>(begin - start).count() < seconds;) {
    call();
    const auto end = Clock::now();
    samples.push_back(std::chrono::duration<double>(end - begin).count());
    begin = end;
  }
  return times_from(std::move(samples));
}

}  // namespace gdnsim::cuda
