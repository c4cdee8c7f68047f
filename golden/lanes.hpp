// A vector of floats as wide as the level allows (4, 8 or 16), and the few operations that the compiler's vector extension
// lacks. Only decode_step_simd.cpp includes this, once for each level, each time with other instructions: so everything here
// lives in an unnamed namespace, and nothing with external inline functions is used. A linker keeps one copy of an inline
// function; were it the one that was compiled for AVX-512, an older CPU would meet it.
//
// Every operation is exact per lane, so the width cannot be seen in the bits.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#define GDNSIM_LANE inline __attribute__((always_inline))
#define GDNSIM_LEAF __attribute__((always_inline))  // after a lambda's parameters

namespace gdnsim::golden {
namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

typedef float F __attribute__((vector_size(4 * kWidth)));
typedef std::int32_t I __attribute__((vector_size(4 * kWidth)));  // also what comparisons give: 0 or -1
typedef std::uint32_t U __attribute__((vector_size(4 * kWidth)));
typedef double D __attribute__((vector_size(4 * kWidth)));  // half as many lanes
typedef std::uint64_t L __attribute__((vector_size(4 * kWidth)));
typedef std::int64_t M __attribute__((vector_size(4 * kWidth)));  // what comparisons of D and L give

/// All lanes as doubles: the first half and the second.
struct Wide {
  D low, high;
};

#if defined(__AVX512F__)
GDNSIM_LANE F all(float x) { return _mm512_set1_ps(x); }
GDNSIM_LANE U all(std::uint32_t x) { return (U)_mm512_set1_epi32(static_cast<int>(x)); }
GDNSIM_LANE D all(double x) { return _mm512_set1_pd(x); }
GDNSIM_LANE L all(std::uint64_t x) { return (L)_mm512_set1_epi64(static_cast<long long>(x)); }
GDNSIM_LANE F all_fours(const float* x) { return _mm512_broadcast_f32x4(_mm_loadu_ps(x)); }
GDNSIM_LANE bool any(I mask) { return _mm512_movepi32_mask((__m512i)mask) != 0; }
GDNSIM_LANE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
GDNSIM_LANE F near_fma(F a, F b, F c) { return fma(a, b, c); }
GDNSIM_LANE D near_fma(D a, D b, D c) { return _mm512_fmadd_pd(a, b, c); }
GDNSIM_LANE F root(F x) { return _mm512_sqrt_ps(x); }
GDNSIM_LANE __m512i look_up_32(const std::int32_t* table, U index) {
  return _mm512_permutex2var_epi32(_mm512_load_si512(table), (__m512i)index, _mm512_load_si512(table + 16));
}
/// table[index], the table 64-byte aligned: permutations of its vectors are faster than a gather.
template <int kRows>
GDNSIM_LANE U look_up(const std::int32_t (&table)[kRows], U index) {
  static_assert(kRows == 64 || kRows == 128);
  const __mmask16 odd = _mm512_test_epi32_mask((__m512i)index, _mm512_set1_epi32(32));
  const auto of_64 = [&](const std::int32_t* from) GDNSIM_LEAF {
    return _mm512_mask_blend_epi32(odd, look_up_32(from, index), look_up_32(from + 32, index));
  };
  const __m512i low = of_64(table);
  if constexpr (kRows == 64) return (U)low;
  const __mmask16 upper = _mm512_test_epi32_mask((__m512i)index, _mm512_set1_epi32(64));
  return (U)_mm512_mask_blend_epi32(upper, low, of_64(table + kRows - 64));
}
GDNSIM_LANE F from_int(I x) { return _mm512_cvtepi32_ps((__m512i)x); }
GDNSIM_LANE I to_int(F x) { return (I)_mm512_cvttps_epi32(x); }
GDNSIM_LANE Wide widen(F x) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(x)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1))};
}
GDNSIM_LANE F narrow(Wide x) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(x.low)), _mm512_cvtpd_ps(x.high), 1);
}
GDNSIM_LANE Wide widen(I x) {
  const __m512i i = (__m512i)x;
  return {_mm512_cvtepi32_pd(_mm512_castsi512_si256(i)), _mm512_cvtepi32_pd(_mm512_extracti32x8_epi32(i, 1))};
}
GDNSIM_LANE I truncate(Wide x) {
  return (I)_mm512_inserti32x8(_mm512_castsi256_si512(_mm512_cvttpd_epi32(x.low)), _mm512_cvttpd_epi32(x.high), 1);
}
GDNSIM_LANE U load16(const void* words) {
  return (U)_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(words)));
}
GDNSIM_LANE void store16(void* words, U x) {
  _mm256_storeu_si256(static_cast<__m256i*>(words), _mm512_cvtepi32_epi16((__m512i)x));
}
/// The product of the low halves of each 64-bit lane.
GDNSIM_LANE L multiply_low(L a, L b) { return (L)_mm512_mul_epu32((__m512i)a, (__m512i)b); }
/// The product of the low halves of each lane, as signed numbers. One upper half of the two must be 0.
GDNSIM_LANE U multiply_16(U a, U b) { return (U)_mm512_madd_epi16((__m512i)a, (__m512i)b); }
/// sum + x where y has the bit
GDNSIM_LANE U add_where(U y, std::uint32_t bit, U sum, U x) {
  const __mmask16 mask = _mm512_test_epi32_mask((__m512i)y, (__m512i)all(bit));
  return (U)_mm512_mask_add_epi32((__m512i)sum, mask, (__m512i)sum, (__m512i)x);
}
GDNSIM_LANE F first_of_two(F a, F b) { return _mm512_unpacklo_ps(a, b); }
GDNSIM_LANE F last_of_two(F a, F b) { return _mm512_unpackhi_ps(a, b); }
GDNSIM_LANE F first_pairs(F a, F b) { return (F)_mm512_unpacklo_pd((__m512d)a, (__m512d)b); }
GDNSIM_LANE F last_pairs(F a, F b) { return (F)_mm512_unpackhi_pd((__m512d)a, (__m512d)b); }
#elif defined(__AVX2__)
GDNSIM_LANE F all(float x) { return _mm256_set1_ps(x); }
GDNSIM_LANE U all(std::uint32_t x) { return (U)_mm256_set1_epi32(static_cast<int>(x)); }
GDNSIM_LANE D all(double x) { return _mm256_set1_pd(x); }
GDNSIM_LANE L all(std::uint64_t x) { return (L)_mm256_set1_epi64x(static_cast<long long>(x)); }
GDNSIM_LANE F all_fours(const float* x) { return _mm256_set_m128(_mm_loadu_ps(x), _mm_loadu_ps(x)); }
GDNSIM_LANE bool any(I mask) { return _mm256_movemask_ps((__m256)mask) != 0; }
GDNSIM_LANE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
GDNSIM_LANE F near_fma(F a, F b, F c) { return fma(a, b, c); }
GDNSIM_LANE D near_fma(D a, D b, D c) { return _mm256_fmadd_pd(a, b, c); }
GDNSIM_LANE F root(F x) { return _mm256_sqrt_ps(x); }
template <int kRows>
GDNSIM_LANE U look_up(const std::int32_t (&table)[kRows], U index) {
  return (U)_mm256_i32gather_epi32(table, (__m256i)index, 4);
}
GDNSIM_LANE F from_int(I x) { return _mm256_cvtepi32_ps((__m256i)x); }
GDNSIM_LANE I to_int(F x) { return (I)_mm256_cvttps_epi32(x); }
GDNSIM_LANE Wide widen(F x) {
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))};
}
GDNSIM_LANE F narrow(Wide x) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(x.low)), _mm256_cvtpd_ps(x.high), 1);
}
GDNSIM_LANE Wide widen(I x) {
  const __m256i i = (__m256i)x;
  return {_mm256_cvtepi32_pd(_mm256_castsi256_si128(i)), _mm256_cvtepi32_pd(_mm256_extracti128_si256(i, 1))};
}
GDNSIM_LANE I truncate(Wide x) {
  return (I)_mm256_inserti128_si256(_mm256_castsi128_si256(_mm256_cvttpd_epi32(x.low)), _mm256_cvttpd_epi32(x.high), 1);
}
GDNSIM_LANE U load16(const void* words) {
  return (U)_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(words)));
}
GDNSIM_LANE void store16(void* words, U x) {
  const __m256i i = (__m256i)x, packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(i, i), 0x08);
  _mm_storeu_si128(static_cast<__m128i*>(words), _mm256_castsi256_si128(packed));
}
GDNSIM_LANE L multiply_low(L a, L b) { return (L)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
GDNSIM_LANE U multiply_16(U a, U b) { return (U)_mm256_madd_epi16((__m256i)a, (__m256i)b); }
GDNSIM_LANE U add_where(U y, std::uint32_t bit, U sum, U x) { return sum + ((y & all(bit)) != U{} ? x : U{}); }
GDNSIM_LANE F first_of_two(F a, F b) { return _mm256_unpacklo_ps(a, b); }
GDNSIM_LANE F last_of_two(F a, F b) { return _mm256_unpackhi_ps(a, b); }
GDNSIM_LANE F first_pairs(F a, F b) { return (F)_mm256_unpacklo_pd((__m256d)a, (__m256d)b); }
GDNSIM_LANE F last_pairs(F a, F b) { return (F)_mm256_unpackhi_pd((__m256d)a, (__m256d)b); }
#else
GDNSIM_LANE F all(float x) { return _mm_set1_ps(x); }
GDNSIM_LANE U all(std::uint32_t x) { return (U)_mm_set1_epi32(static_cast<int>(x)); }
GDNSIM_LANE D all(double x) { return _mm_set1_pd(x); }
GDNSIM_LANE L all(std::uint64_t x) { return (L)_mm_set1_epi64x(static_cast<long long>(x)); }
GDNSIM_LANE F all_fours(const float* x) { return _mm_loadu_ps(x); }
GDNSIM_LANE bool any(I mask) { return _mm_movemask_ps((__m128)mask) != 0; }
GDNSIM_LANE F fma(F a, F b, F c) {  // SSE2 has none: the library's, lane by lane
  for (int i = 0; i < kWidth; ++i) a[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return a;
}
GDNSIM_LANE F near_fma(F a, F b, F c) { return a * b + c; }
GDNSIM_LANE D near_fma(D a, D b, D c) { return a * b + c; }
GDNSIM_LANE F root(F x) { return _mm_sqrt_ps(x); }
template <int kRows>
GDNSIM_LANE U look_up(const std::int32_t (&table)[kRows], U index) {
  for (int i = 0; i < kWidth; ++i) index[i] = static_cast<std::uint32_t>(table[index[i]]);
  return index;
}
GDNSIM_LANE F from_int(I x) { return _mm_cvtepi32_ps((__m128i)x); }
GDNSIM_LANE I to_int(F x) { return (I)_mm_cvttps_epi32(x); }
GDNSIM_LANE Wide widen(F x) { return {_mm_cvtps_pd(x), _mm_cvtps_pd(_mm_movehl_ps(x, x))}; }
GDNSIM_LANE F narrow(Wide x) { return _mm_movelh_ps(_mm_cvtpd_ps(x.low), _mm_cvtpd_ps(x.high)); }
GDNSIM_LANE Wide widen(I x) {
  const __m128i i = (__m128i)x;
  return {_mm_cvtepi32_pd(i), _mm_cvtepi32_pd(_mm_unpackhi_epi64(i, i))};
}
GDNSIM_LANE I truncate(Wide x) { return (I)_mm_unpacklo_epi64(_mm_cvttpd_epi32(x.low), _mm_cvttpd_epi32(x.high)); }
GDNSIM_LANE U load16(const void* words) {
  return (U)_mm_unpacklo_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(words)), _mm_setzero_si128());
}
GDNSIM_LANE void store16(void* words, U x) {  // sign-extended first, because SSE2 packs signed words alone
  const __m128i i = _mm_srai_epi32(_mm_slli_epi32((__m128i)x, 16), 16);
  _mm_storel_epi64(static_cast<__m128i*>(words), _mm_packs_epi32(i, i));
}
GDNSIM_LANE L multiply_low(L a, L b) { return (L)_mm_mul_epu32((__m128i)a, (__m128i)b); }
GDNSIM_LANE U multiply_16(U a, U b) { return (U)_mm_madd_epi16((__m128i)a, (__m128i)b); }
GDNSIM_LANE U add_where(U y, std::uint32_t bit, U sum, U x) { return sum + ((y & all(bit)) != U{} ? x : U{}); }
GDNSIM_LANE F first_of_two(F a, F b) { return _mm_unpacklo_ps(a, b); }
GDNSIM_LANE F last_of_two(F a, F b) { return _mm_unpackhi_ps(a, b); }
GDNSIM_LANE F first_pairs(F a, F b) { return (F)_mm_unpacklo_pd((__m128d)a, (__m128d)b); }
GDNSIM_LANE F last_pairs(F a, F b) { return (F)_mm_unpackhi_pd((__m128d)a, (__m128d)b); }
#endif

// ---- the same at every width ----

GDNSIM_LANE U bits(F x) { return (U)x; }
GDNSIM_LANE F float_bits(U x) { return (F)x; }
GDNSIM_LANE F load(const float* from) {
  F x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}
GDNSIM_LANE void store(float* to, F x) { __builtin_memcpy(to, &x, sizeof x); }
GDNSIM_LANE F magnitude(F x) { return float_bits(bits(x) & all(0x7FFFFFFFu)); }
GDNSIM_LANE F negated(F x) { return float_bits(bits(x) ^ all(0x80000000u)); }
GDNSIM_LANE D double_bits(L x) { return (D)x; }
GDNSIM_LANE L bits(D x) { return (L)x; }

/// NaNs become 0x7FFFFFFF (rule R3).
GDNSIM_LANE F canonical(F x) { return x != x ? float_bits(all(0x7FFFFFFFu)) : x; }

template <int kDistance, int... i>
GDNSIM_LANE F join_of(F a, F b, std::integer_sequence<int, i...>) {
  const F near = __builtin_shufflevector(a, b, ((i & kDistance) != 0 ? kWidth + i : i)...);
  return near + __builtin_shufflevector(a, b, ((i & kDistance) != 0 ? kWidth + i - kDistance : i + kDistance)...);
}
/// The exchange over kDistance lanes of a butterfly, of two vectors at once: lanes whose number has that bit clear get a's sums,
/// the others b's.
template <int kDistance>
GDNSIM_LANE F join(F a, F b) {
  return join_of<kDistance>(a, b, std::make_integer_sequence<int, kWidth>());
}

template <int kDistance, int... i>
GDNSIM_LANE F across_of(F x, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(x, x, (i ^ kDistance)...);
}
/// Lanes kDistance apart change places.
template <int kDistance>
GDNSIM_LANE F across(F x) {
  return across_of<kDistance>(x, std::make_integer_sequence<int, kWidth>());
}
template <int kElement, int... i>
GDNSIM_LANE F spread_of(F x, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(x, x, (i / 4 * 4 + kElement)...);
}
/// Element kElement of every four lanes in all of them.
template <int kElement>
GDNSIM_LANE F spread(F x) {
  return spread_of<kElement>(x, std::make_integer_sequence<int, kWidth>());
}

/// Within every four lanes rows become columns: lane j of row i goes to lane i of row j.
GDNSIM_LANE void transpose_fours(F (&rows)[4]) {
  const F low = first_of_two(rows[0], rows[1]), low2 = first_of_two(rows[2], rows[3]);
  const F high = last_of_two(rows[0], rows[1]), high2 = last_of_two(rows[2], rows[3]);
  rows[0] = first_pairs(low, low2);
  rows[1] = last_pairs(low, low2);
  rows[2] = first_pairs(high, high2);
  rows[3] = last_pairs(high, high2);
}

/// Rows become columns: lane j of row i goes to lane i of row j.
GDNSIM_LANE void transpose(F (&rows)[kWidth]) {
  F pairs[kWidth], fours[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; i += 2) {
    pairs[i] = first_of_two(rows[i], rows[i + 1]);
    pairs[i + 1] = last_of_two(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; i += 4) {
    fours[i] = first_pairs(pairs[i], pairs[i + 2]);
    fours[i + 1] = last_pairs(pairs[i], pairs[i + 2]);
    fours[i + 2] = first_pairs(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = last_pairs(pairs[i + 1], pairs[i + 3]);
  }
  // fours[4g + j], 128-bit lane l: column 4l + j of rows 4g to 4g + 3.
#pragma GCC unroll 16
  for (int j = 0; j < 4; ++j) {
#if defined(__AVX512F__)
    const F even = _mm512_shuffle_f32x4(fours[j], fours[j + 4], 0x88);
    const F odd = _mm512_shuffle_f32x4(fours[j], fours[j + 4], 0xDD);
    const F even2 = _mm512_shuffle_f32x4(fours[j + 8], fours[j + 12], 0x88);
    const F odd2 = _mm512_shuffle_f32x4(fours[j + 8], fours[j + 12], 0xDD);
    rows[j] = _mm512_shuffle_f32x4(even, even2, 0x88);
    rows[j + 4] = _mm512_shuffle_f32x4(odd, odd2, 0x88);
    rows[j + 8] = _mm512_shuffle_f32x4(even, even2, 0xDD);
    rows[j + 12] = _mm512_shuffle_f32x4(odd, odd2, 0xDD);
#elif defined(__AVX2__)
    rows[j] = _mm256_permute2f128_ps(fours[j], fours[j + 4], 0x20);
    rows[j + 4] = _mm256_permute2f128_ps(fours[j], fours[j + 4], 0x31);
#else
    rows[j] = fours[j];
#endif
  }
}

}  // namespace
}  // namespace gdnsim::golden
