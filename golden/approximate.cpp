// The approximate functions in software, many inputs at a time.
#include "gdnsim/approximate.hpp"

#include "gdnsim/arith.hpp"
#include "sfu.hpp"

namespace gdnsim {
namespace {

template <class Function>
void fill(const Function& function, std::uint32_t first, std::span<std::uint32_t> results) {
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < results.size(); ++i)
    results[i] = bits_of(canonical(function(float_of(first + static_cast<std::uint32_t>(i)))));
}

}  // namespace

void approximate_meant(Approximate function, std::uint32_t first, std::span<std::uint32_t> results) {
  switch (function) {
    case Approximate::ex2:
      return fill(golden::ex2_approx, first, results);
    case Approximate::rcp:
      return fill(golden::rcp_approx_ftz, first, results);
    case Approximate::sqrt:
      return fill(golden::sqrt_approx_ftz, first, results);
    case Approximate::rsqrt:
      return fill(golden::rsqrt_approx_ftz, first, results);
  }
}

}  // namespace gdnsim
