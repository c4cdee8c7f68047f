// The table is computed once, in integers only. With h = 2^-12 the density obeys exp(-((n+1) h)^2 / 2) = f(n) r(n) and
// r(n+1) = r(n) exp(-h^2), so one constant, exp(-h^2 / 2), makes all of it; the trapezoid rule makes the tail areas.
#include "synth/normal_table.hpp"

#include <vector>

namespace gdnsim {
namespace {

__extension__ using Wide = unsigned __int128;
constexpr int kGridBits = 12;                   // h = 2^-12
constexpr std::size_t kGrid = 8u << kGridBits;  // up to x = 8; the area beyond is 1e-15
constexpr std::uint64_t kOne = std::uint64_t{1} << 62;

std::uint64_t times(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint64_t>(static_cast<Wide>(a) * b >> 62);
}

/// exp(-x^2 / 2) at x = n h, in units of 2^-62.
std::vector<std::uint64_t> density() {
  // exp(-y) for y = h^2 / 2 = 2^-25: 1 - y + y^2 / 2; the next term is below the last bit.
  std::uint64_t ratio = kOne - (kOne >> 25) + (kOne >> 51);
  const std::uint64_t bend = times(ratio, ratio);
  std::vector<std::uint64_t> f(kGrid + 1, kOne);
  for (std::size_t n = 0; n < kGrid; ++n) {
    f[n + 1] = times(f[n], ratio);
    ratio = times(ratio, bend);
  }
  return f;
}

/// Area to the right of x = n h, in units of h 2^-63.
std::vector<Wide> tail_areas(const std::vector<std::uint64_t>& f) {
  std::vector<Wide> area(kGrid + 1, 0);
  for (std::size_t n = kGrid; n-- > 0;) area[n] = area[n + 1] + f[n] + f[n + 1];
  return area;
}

}  // namespace

NormalTable::NormalTable() {
  const std::vector<Wide> area = tail_areas(density());
  std::size_t n = kGrid;  // the grid interval [n, n + 1] that holds the wanted area; x falls as p grows
  for (std::size_t knot = 0; knot < knots_.size(); ++knot) {
    const Wide steps = kSteps + knot % kSteps;  // p = steps 2^(octave - kStepBits - 32)
    const Wide wanted = area[0] * steps >> (32 + kStepBits - knot / kSteps);
    while (n == kGrid || (n > 0 && area[n] < wanted)) --n;
    const Wide inside = area[n] > wanted ? area[n] - wanted : 0;
    const Wide fraction = (inside << (kNormalBits - kGridBits)) / (area[n] - area[n + 1]);
    knots_[knot] = static_cast<std::int32_t>((n << (kNormalBits - kGridBits)) + static_cast<std::size_t>(fraction));
  }
}

const NormalTable& NormalTable::get() {
  static const NormalTable table;
  return table;
}

}  // namespace gdnsim
