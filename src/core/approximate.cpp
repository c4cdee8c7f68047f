#include "gdnsim/approximate.hpp"

#include <algorithm>
#include <vector>

#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

constexpr std::uint64_t kAtOnce = std::uint64_t{1} << 21;  // both sides stay in the cache

}  // namespace

std::string_view name_of(Approximate function) {
  switch (function) {
    case Approximate::ex2:
      return "ex2.approx.f32";
    case Approximate::rcp:
      return "rcp.approx.ftz.f32";
    case Approximate::sqrt:
      return "sqrt.approx.ftz.f32";
    case Approximate::rsqrt:
      return "rsqrt.approx.ftz.f32";
  }
  return "";
}

ApproximateCheck check_approximate(Approximate function, const ApproximateResults& of_device, std::uint64_t first,
                                   std::uint64_t count, const std::function<void(std::uint64_t)>& done) {
  GDNSIM_CHECK(first + count <= kAllInputs);
  ApproximateCheck check;
  std::vector<std::uint32_t> got, meant;
  while (check.inputs < count) {
    const auto from = static_cast<std::uint32_t>(first + check.inputs);
    const std::size_t here = static_cast<std::size_t>(std::min(kAtOnce, count - check.inputs));
    got.resize(here), meant.resize(here);
    of_device(function, from, got);
    approximate_meant(function, from, meant);
    const bool same = got == meant;
    for (std::size_t i = 0; i < here && !same; ++i) {
      if (got[i] == meant[i]) continue;
      if (check.differing++ == 0)
        check.first_input = from + static_cast<std::uint32_t>(i), check.got = got[i], check.meant = meant[i];
    }
    check.inputs += here;
    if (done) done(check.inputs);
  }
  return check;
}

}  // namespace gdnsim
