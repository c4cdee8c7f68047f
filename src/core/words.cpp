#include "gdnsim/words.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "gdnsim/arith.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

std::uint32_t sign_bit(DType type) { return type == DType::f32 ? 0x80000000u : 0x8000u; }
std::uint32_t infinity_bits(DType type) {
  return type == DType::f32 ? 0x7F800000u : type == DType::bf16 ? 0x7F80u : 0x7C00u;
}
std::uint32_t magnitude(DType type, std::uint32_t word) { return word & ~sign_bit(type); }
bool is_nan(DType type, std::uint32_t word) { return magnitude(type, word) > infinity_bits(type); }

/// Places the words of a type on one line: ..., -denormal, -0, +0, +denormal, ...
std::int64_t ordered(DType type, std::uint32_t word) {
  const std::int64_t size = magnitude(type, word);
  return (word & sign_bit(type)) != 0 ? -size - 1 : size;
}

int precision(DType type) { return type == DType::f32 ? 24 : type == DType::f16 ? 11 : 8; }

/// Largest finite magnitude of a run of words.
double largest(DType type, std::span<const std::byte> words) {
  double most = 0;
  for (std::size_t i = 0; i < words.size() / size_of(type); ++i) {
    const double x = std::fabs(value_of(type, word_at(type, words, i)));
    if (std::isfinite(x)) most = std::max(most, x);
  }
  return most;
}

/// One head of a tap while it is compared; the size of its values is worked out when it is first needed.
class HeadWords {
 public:
  HeadWords(Tap tap, DType type, std::span<const std::byte> got, std::span<const std::byte> want)
      : computed_(is_computed(tap)), type_(type), got_(got), want_(want) {}

  DiffClass kind(std::uint32_t a, std::uint32_t b) {
    if (computed_ && (is_foreign_nan(type_, a) || is_foreign_nan(type_, b))) return DiffClass::poison;
    const DiffClass alone = classify(type_, a, b);
    if (alone != DiffClass::value) return alone;
    if (scale_ < 0) scale_ = std::min(largest(type_, got_), largest(type_, want_));
    return classify(type_, a, b, scale_);
  }

 private:
  const bool computed_;
  const DType type_;
  const std::span<const std::byte> got_, want_;
  double scale_ = -1;
};

void count_pair(TapCount& count, WordRun& run, DType type, std::uint32_t got, std::uint32_t want, DiffClass kind) {
  ++count.differing, ++run.differing;
  ++count.classes[static_cast<std::size_t>(kind)];
  const auto ulp = ulp_distance(type, got, want);
  if (!ulp) return;
  run.max_ulp = std::max(run.max_ulp, *ulp);
  ++count.ulps[static_cast<std::size_t>(std::bit_width(*ulp)) - 1];
  count.max_abs = std::max(count.max_abs, std::fabs(value_of(type, got) - value_of(type, want)));
}

}  // namespace

std::string_view name_of(DiffClass value) {
  constexpr std::string_view words[] = {"rounding", "signed-zero", "nan-payload", "nan",
                                        "inf",      "digest",      "value",       "poison"};
  static_assert(std::size(words) == kDiffClasses);
  return words[static_cast<std::size_t>(value)];
}

std::uint32_t word_at(DType type, std::span<const std::byte> words, std::size_t i) {
  if (type == DType::f32) {
    std::uint32_t word;
    std::memcpy(&word, words.data() + 4 * i, 4);
    return word;
  }
  std::uint16_t word;
  std::memcpy(&word, words.data() + 2 * i, 2);
  return word;
}

double value_of(DType type, std::uint32_t word) {
  switch (type) {
    case DType::f32:
      return float_of(word);
    case DType::bf16:
      return f32_from_bf16(static_cast<std::uint16_t>(word));
    case DType::f16:
      return f32_from_f16(static_cast<std::uint16_t>(word));
  }
  return 0;
}

std::optional<std::uint64_t> ulp_distance(DType type, std::uint32_t a, std::uint32_t b) {
  if (is_nan(type, a) || is_nan(type, b)) return std::nullopt;
  const std::int64_t distance = ordered(type, a) - ordered(type, b);
  return static_cast<std::uint64_t>(distance < 0 ? -distance : distance);
}

DiffClass classify(DType type, std::uint32_t a, std::uint32_t b, double scale) {
  if (is_nan(type, a) && is_nan(type, b)) return DiffClass::nan_payload;
  if (is_nan(type, a) || is_nan(type, b)) return DiffClass::nan;
  if (magnitude(type, a) == infinity_bits(type) || magnitude(type, b) == infinity_bits(type)) return DiffClass::inf;
  if (magnitude(type, a | b) == 0) return DiffClass::signed_zero;
  const bool same_side = ((a ^ b) & sign_bit(type)) == 0;
  if (same_side && *ulp_distance(type, a, b) <= std::uint64_t{1} << (precision(type) / 2)) return DiffClass::rounding;
  const bool cancelled = std::fabs(value_of(type, a) - value_of(type, b)) <= std::ldexp(scale, -18);
  return cancelled ? DiffClass::rounding : DiffClass::value;
}

bool is_foreign_nan(DType type, std::uint32_t word) {
  return is_nan(type, word) && word != (type == DType::f32 ? kNaNBits : std::uint32_t{kNaN16});
}

bool is_computed(Tap tap) { return tap != Tap::conv_state && tap != Tap::k; }

void TapCount::add(const TapCount& other) {
  compared += other.compared;
  differing += other.differing;
  not_compared += other.not_compared;
  max_ulp = std::max(max_ulp, other.max_ulp);
  max_abs = std::max(max_abs, other.max_abs);
  for (std::size_t i = 0; i < kUlpBuckets; ++i) ulps[i] += other.ulps[i];
  for (std::size_t i = 0; i < kDiffClasses; ++i) classes[i] += other.classes[i];
}

WordRun compare_words(Tap tap, const TapShape& shape, std::span<const std::byte> got, std::span<const std::byte> want,
                      TapCount& count) {
  GDNSIM_CHECK(got.size() == want.size() && got.size() == shape.bytes());
  WordRun run;
  run.compared = static_cast<std::uint64_t>(shape.elements());
  count.compared += run.compared;
  const std::size_t n = static_cast<std::size_t>(shape.per_head), bytes = n * size_of(shape.type);
  for (std::size_t head = 0; head < static_cast<std::size_t>(shape.heads); ++head) {
    const auto ours = got.subspan(head * bytes, bytes), theirs = want.subspan(head * bytes, bytes);
    if (std::memcmp(ours.data(), theirs.data(), bytes) == 0) continue;
    HeadWords words(tap, shape.type, ours, theirs);
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t a = word_at(shape.type, ours, i), b = word_at(shape.type, theirs, i);
      if (a == b) continue;
      const DiffClass kind = words.kind(a, b);
      if (run.first < 0) run.first = static_cast<std::int64_t>(head * n + i), run.kind = kind;
      count_pair(count, run, shape.type, a, b, kind);
    }
  }
  count.max_ulp = std::max(count.max_ulp, run.max_ulp);
  return run;
}

}  // namespace gdnsim
