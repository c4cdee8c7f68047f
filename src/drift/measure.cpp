#include "drift/measure.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "gdnsim/arith.hpp"
#include "gdnsim/clones.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

constexpr std::size_t kLanes = 8;

/// The sums of one array, element i in lane i mod 8.
struct Lanes {
  double difference[kLanes] = {}, reference[kLanes] = {}, max_abs[kLanes] = {};
  std::uint64_t differing[kLanes] = {}, nonfinite[kLanes] = {};
};

template <class A, class B>
GDNSIM_INLINE void add_pair(A reference, B other, std::size_t lane, Lanes& lanes) {
  const double a = reference, b = other;
  const bool finite = a - a == 0 && b - b == 0;
  const double difference = finite ? b - a : 0, known = finite ? a : 0,
               size = difference < 0 ? -difference : difference;
  lanes.difference[lane] += difference * difference;
  lanes.reference[lane] += known * known;
  lanes.max_abs[lane] = lanes.max_abs[lane] < size ? size : lanes.max_abs[lane];
  lanes.differing[lane] += std::bit_cast<std::uint32_t>(static_cast<float>(reference)) !=
                           std::bit_cast<std::uint32_t>(static_cast<float>(other));
  lanes.nonfinite[lane] += !finite;
}

template <class A, class B>
GDNSIM_INLINE void add_all(const A* reference, const B* other, std::size_t count, Lanes& lanes) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) add_pair(reference[i + lane], other[i + lane], lane, lanes);
  for (; i < count; ++i) add_pair(reference[i], other[i], i % kLanes, lanes);
}

/// How many pairs differ in their bits, and how many are not finite on either side: 32-bit counts, for at most 2^31 pairs.
GDNSIM_CLONES void count_single(const float* reference, const float* other, std::size_t count, std::uint32_t& differing,
                                std::uint32_t& nonfinite) {
  std::uint32_t unequal = 0, infinite = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto a = std::bit_cast<std::uint32_t>(reference[i]), b = std::bit_cast<std::uint32_t>(other[i]);
    unequal += a != b;
    infinite += ((a & 0x7F800000u) == 0x7F800000u) | ((b & 0x7F800000u) == 0x7F800000u);
  }
  differing = unequal, nonfinite = infinite;
}

/// The sums of add_all over whole groups of lanes, all finite.
GDNSIM_CLONES void add_finite(const float* reference, const float* other, std::size_t count, Lanes& lanes) {
  Lanes sums = lanes;
  for (std::size_t i = 0; i < count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const double a = reference[i + lane], difference = static_cast<double>(other[i + lane]) - a,
                   size = difference < 0 ? -difference : difference;
      sums.difference[lane] += difference * difference;
      sums.reference[lane] += a * a;
      sums.max_abs[lane] = sums.max_abs[lane] < size ? size : sums.max_abs[lane];
    }
  lanes = sums;
}

constexpr std::size_t kBlock = 4096;  // a multiple of the lanes

void add_single(const float* reference, const float* other, std::size_t count, Lanes& lanes) {
  std::size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    std::uint32_t differing = 0, nonfinite = 0;
    count_single(reference + i, other + i, kBlock, differing, nonfinite);
    if (nonfinite > 0) {
      add_all(reference + i, other + i, kBlock, lanes);
      continue;
    }
    add_finite(reference + i, other + i, kBlock, lanes);
    lanes.differing[0] += differing;
  }
  add_all(reference + i, other + i, count - i, lanes);
}

void join(const Lanes& lanes, std::size_t count, PairSums& sums) {
  sums.pairs += count;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    sums.difference += lanes.difference[lane];
    sums.reference += lanes.reference[lane];
    sums.max_abs = std::max(sums.max_abs, lanes.max_abs[lane]);
    sums.differing += lanes.differing[lane];
    sums.nonfinite += lanes.nonfinite[lane];
  }
}

GDNSIM_CLONES void widen_bf16(const std::uint16_t* words, std::size_t count, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(words[i]) << 16);
}

template <class T>
GDNSIM_INLINE void add_kept_of(const T* before, const T* after, std::size_t count, KeptSums& sums) {
  std::uint64_t nonzero = 0, kept = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool counts = before[i] != 0 && before[i] - before[i] == 0;
    nonzero += counts;
    kept += counts && before[i] == after[i];
  }
  sums.nonzero += nonzero;
  sums.kept += kept;
}

/// The same in 32-bit counts, for at most 2^31 elements.
GDNSIM_CLONES void count_kept(const float* before, const float* after, std::size_t count, std::uint32_t& nonzero,
                              std::uint32_t& kept) {
  std::uint32_t counted = 0, same = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto a = std::bit_cast<std::uint32_t>(before[i]), b = std::bit_cast<std::uint32_t>(after[i]);
    const std::uint32_t counts = static_cast<std::uint32_t>((a & 0x7FFFFFFFu) != 0) &
                                 static_cast<std::uint32_t>((a & 0x7F800000u) != 0x7F800000u);
    counted += counts;
    same += counts & static_cast<std::uint32_t>(a == b);
  }
  nonzero = counted, kept = same;
}

void add_kept_single(const float* before, const float* after, std::size_t count, KeptSums& sums) {
  for (std::size_t i = 0; i < count; i += kBlock) {
    std::uint32_t nonzero = 0, kept = 0;
    count_kept(before + i, after + i, std::min(kBlock, count - i), nonzero, kept);
    sums.nonzero += nonzero;
    sums.kept += kept;
  }
}

std::uint16_t bf16_of(std::span<const std::byte> words, DType type, std::size_t i) {
  std::uint16_t half;
  if (type != DType::f32) {
    std::memcpy(&half, words.data() + 2 * i, 2);
    return type == DType::bf16 ? half : bf16_from_f32(f32_from_f16(half));
  }
  float single;
  std::memcpy(&single, words.data() + 4 * i, 4);
  return bf16_from_f32(single);
}

}  // namespace

void Numbers::assign(std::span<const std::byte> words, DType type) {
  wide.clear();
  single.resize(words.size() / size_of(type));
  if (type == DType::f32) {
    std::memcpy(single.data(), words.data(), words.size());
  } else if (type == DType::bf16) {
    widen_bf16(reinterpret_cast<const std::uint16_t*>(words.data()), single.size(), single.data());
  } else {
    for (std::size_t i = 0; i < single.size(); ++i) {
      std::uint16_t half;
      std::memcpy(&half, words.data() + 2 * i, 2);
      single[i] = f32_from_f16(half);
    }
  }
}

void Numbers::assign(std::span<const double> values) {
  single.clear();
  wide.assign(values.begin(), values.end());
}

double PairSums::relative() const { return difference == 0 ? 0 : std::sqrt(difference) / std::sqrt(reference); }

double PairSums::norm() const { return std::sqrt(reference); }

void add_pairs(const Numbers& reference, const Numbers& other, PairSums& sums) {
  const std::size_t count = reference.size();
  GDNSIM_CHECK(other.size() == count);
  Lanes lanes;
  if (reference.wide.empty() && other.wide.empty())
    add_single(reference.single.data(), other.single.data(), count, lanes);
  else if (reference.wide.empty())
    add_all(reference.single.data(), other.wide.data(), count, lanes);
  else if (other.wide.empty())
    add_all(reference.wide.data(), other.single.data(), count, lanes);
  else
    add_all(reference.wide.data(), other.wide.data(), count, lanes);
  join(lanes, count, sums);
}

void add_words(std::span<const std::byte> reference, std::span<const std::byte> other, DType type, WordSums& sums) {
  GDNSIM_CHECK(reference.size() == other.size());
  const std::size_t count = reference.size() / size_of(type);
  sums.pairs += count;
  if (std::memcmp(reference.data(), other.data(), reference.size()) == 0) return;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i * size_of(type);
    if (std::memcmp(reference.data() + at, other.data() + at, size_of(type)) == 0) continue;
    ++sums.differing;
    sums.bf16_changed += bf16_of(reference, type, i) != bf16_of(other, type, i);
  }
}

void add_kept(const Numbers& before, const Numbers& after, std::span<const double> decay, KeptSums& sums) {
  GDNSIM_CHECK(before.size() == after.size() && before.wide.size() == after.wide.size());
  const std::size_t each = before.size() / decay.size();
  for (std::size_t head = 0; head < decay.size(); ++head) {
    if (!(decay[head] < 1)) continue;
    if (before.wide.empty())
      add_kept_single(before.single.data() + head * each, after.single.data() + head * each, each, sums);
    else
      add_kept_of(before.wide.data() + head * each, after.wide.data() + head * each, each, sums);
  }
}

}  // namespace gdnsim
