// How fast the vector kernels are beside what the CPU can do. For `gdnsim bench`; never a test.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "gdnsim/contract.hpp"
#include "levels.hpp"

namespace gdnsim::golden {

struct Times {
  double median, best;
};

/// How long a call takes: many of them, for about `seconds` altogether, and `between` two of them something that is not timed.
/// The first call warms up and is not counted.
template <class Call, class Between>
Times times_of(double seconds, const Call& call, const Between& between) {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kFewest = 3;
  call();
  std::vector<double> times;
  const auto start = Clock::now();
  for (auto begin = start; times.size() < kFewest || std::chrono::duration<double>(begin - start).count() < seconds;) {
    between();
    begin = Clock::now();
    call();
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::ranges::sort(times);
  return {times[times.size() / 2], times.front()};
}
template <class Call>
Times times_of(double seconds, const Call& call) {
  return times_of(seconds, call, [] {});
}

/// Vector f32 instructions a second that one thread can issue: the best of many runs of independent multiplies and adds.
double peak_rate(const Variant& variant, double seconds);

/// F32 instructions that the equations need for one vector of state elements and one step (A2.5): decay, two products and two
/// sums, and the update make 7; 4 where the contract fuses all but the decay.
int instructions_a_vector(const Contract& contract);
/// State vectors of a model, each of the variant's width.
double state_vectors(const Variant& variant, const Model& model);

/// The recurrence alone: one thread, one head, its state at hand for many steps. What one step of all heads of `model` takes
/// like that; and the peak rate between these calls, so that whatever else the machine does slows both.
struct Recurrence {
  Times times;
  double peak;
};
Recurrence recurrence_times(const Variant& variant, const Contract& contract, const Model& model, double seconds);

}  // namespace gdnsim::golden
