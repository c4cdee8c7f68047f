// Stored words in bulk: 16 bytes at a time, bf16 in pairs, with the hardware's own conversions (which give the bits of
// arith.hpp: round to nearest even, a NaN becomes 7FFF).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gdnsim/arith.hpp"
#include "gdnsim/types.hpp"

namespace gdnsim::cuda {

/// Two numbers rounded to bf16, the first in the low half.
__device__ inline std::uint32_t bf16_pair(float first, float second) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
__device__ inline std::uint16_t bf16_word(float x) { return static_cast<std::uint16_t>(bf16_pair(x, 0.0f)); }
__device__ inline float bf16_low(std::uint32_t pair) { return float_of(pair << 16); }
__device__ inline float bf16_high(std::uint32_t pair) { return float_of(pair & 0xFFFF0000u); }
/// x through bf16 and back.
__device__ inline float through_bf16(float x) { return float_of(bf16_pair(x, 0.0f) << 16); }

/// The largest unit that N neighbouring words can be moved in.
template <int N, class Word>
using Chunk =
    std::conditional_t<N * sizeof(Word) % 16 == 0, uint4,
                       std::conditional_t<N * sizeof(Word) == 8, uint2,
                                          std::conditional_t<N * sizeof(Word) == 4, std::uint32_t, std::uint16_t>>>;

/// N neighbouring words of device memory (N a power of two; aligned to them all, or to 16 bytes).
template <int N, class Word>
__device__ inline void load_words(const Word* from, Word (&to)[N]) {
  constexpr int kEach = sizeof(Chunk<N, Word>) / sizeof(Word);
#pragma unroll
  for (int i = 0; i < N / kEach; ++i) {
    const Chunk<N, Word> chunk = __ldcg(reinterpret_cast<const Chunk<N, Word>*>(from) + i);
    memcpy(&to[i * kEach], &chunk, sizeof chunk);
  }
}
template <int N, class Word>
__device__ inline void store_words(Word* to, const Word (&from)[N]) {
  constexpr int kEach = sizeof(Chunk<N, Word>) / sizeof(Word);
#pragma unroll
  for (int i = 0; i < N / kEach; ++i) {
    Chunk<N, Word> chunk;
    memcpy(&chunk, &from[i * kEach], sizeof chunk);
    __stcg(reinterpret_cast<Chunk<N, Word>*>(to) + i, chunk);  // written out: else the compiler stores word by word
  }
}

// ---- words that the next kernel takes: they should stay in the cache, whatever else passes through it ----

__device__ inline std::uint64_t staying_policy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline uint4 load_staying(const uint4* from, std::uint64_t policy) {
  uint4 w;
  asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
               : "l"(__cvta_generic_to_global(from)), "l"(policy)
               : "memory");
  return w;
}
__device__ inline uint2 load_staying(const uint2* from, std::uint64_t policy) {
  uint2 w;
  asm volatile("ld.global.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
               : "=r"(w.x), "=r"(w.y)
               : "l"(__cvta_generic_to_global(from)), "l"(policy)
               : "memory");
  return w;
}
__device__ inline void store_staying(uint4* to, const uint4& w, std::uint64_t policy) {
  asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(__cvta_generic_to_global(to)),
               "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w), "l"(policy)
               : "memory");
}
__device__ inline void store_staying(uint2* to, const uint2& w, std::uint64_t policy) {
  asm volatile("st.global.L2::cache_hint.v2.u32 [%0], {%1, %2}, %3;" ::"l"(__cvta_generic_to_global(to)), "r"(w.x),
               "r"(w.y), "l"(policy)
               : "memory");
}

/// Elements in 16 bytes.
template <DType type>
inline constexpr int kVector = type == DType::f32 ? 4 : 8;

/// 16 bytes of f32 or bf16, widened.
template <DType type>
__device__ inline void unpack(const uint4& words, float (&x)[kVector<type>]) {
  static_assert(type != DType::f16);
  const std::uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (type == DType::f32) {
      x[i] = float_of(word[i]);
    } else {
      x[2 * i] = bf16_low(word[i]);
      x[2 * i + 1] = bf16_high(word[i]);
    }
  }
}

/// The reverse, rounded. The numbers came out of arithmetic.
template <DType type>
__device__ inline uint4 pack(const float (&x)[kVector<type>]) {
  static_assert(type != DType::f16);
  if constexpr (type == DType::f32)
    return {bits_of(x[0]), bits_of(x[1]), bits_of(x[2]), bits_of(x[3])};
  else
    return {bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]), bf16_pair(x[4], x[5]), bf16_pair(x[6], x[7])};
}

}  // namespace gdnsim::cuda
