// What the backend hands to the vector kernels, and the table of kernels of each level. Plain data and raw pointers: this is
// all that the two sides share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gdnsim/contract.hpp"
#include "gdnsim/order.hpp"
#include "gdnsim/types.hpp"

namespace gdnsim::golden {

/// Correctly rounded functions for the few lanes that double precision does not decide (rules R4-R6). Pointers, so that the
/// kernels bring no copy of their own.
struct Slow {
  float (*exp)(float);
  float (*log)(float);
  float (*log1p)(float);
};

/// How one step rounds.
struct Rules {
  const Model* model;
  const Contract* contract;
  const Slow* slow;
  DotOrder qk_order, state_order, norm_order;
  float norm_eps;  // 0 without one
};

/// One active row's conv at one step of a chain.
struct ConvStep {
  const Rules* rules;
  const std::byte* x;  // act [dim]
  float* acc;          // [dim], or null
  std::byte* out;      // act [dim]
  std::byte* window;   // [W-1, dim] a copy of the window after the step, or null
};
/// Channels [begin, end) of one block through its steps.
struct ConvJob {
  std::int64_t dim, begin, end;
  const float* weight;  // [W, dim]
  const float* bias;    // [dim], or null
  std::byte* window;    // [W-1, dim] the block's
  const ConvStep* step;
  int steps;
};

/// q or k of some heads of one row.
struct QkJob {
  const Rules* rules;
  bool is_q;
  int heads;               // at most `width`
  const std::byte* words;  // act [heads, K], from conv_out
  float* out;              // [heads, K]
  float* scratch;
};

/// Gates of all heads of one row.
struct GatesJob {
  const Rules* rules;
  int heads;
  const std::byte *a, *b;        // act [heads]
  const float *A_log, *dt_bias;  // [heads]
  float *beta, *g, *decay;       // [heads], g may be null
};

/// One value head at one step of a chain.
struct HeadStep {
  const Rules* rules;
  const float *q, *k;  // [K]
  float decay, beta;
  const std::byte* v;     // act [V]
  std::byte* out;         // act [V] core_out
  float *dot_k, *u;       // [V], or null
  std::byte* state;       // [V, K] a copy of the state after the step, or null
  std::uint64_t* digest;  // where the digest of these V rows goes, or null
};
/// Rows [first, first + rows) of one head's state through its steps.
struct HeadJob {
  DType state_dtype;
  int K, first, rows;         // rows: any number; whole pairs of `width` are the fastest
  std::byte* state;           // [V, K] the head's
  const std::uint64_t* keys;  // of the digest's words: ceil(K * word / 8)
  const HeadStep* step;
  int steps;
  float* scratch;
};

/// Gated norm of some (row, head) pairs that lie one after another.
struct NormJob {
  const Rules* rules;
  int heads;               // at most `width`
  const std::byte *o, *z;  // act [heads, V]
  const float* weight;     // [V]
  float* rstd;             // [heads], or null
  std::byte* out;          // act [heads, V], or null
  float* scratch;
};

/// One scalar function on a row of floats, for tests: each over all of f32.
enum class Function { exp_exact, log_exact, log1p_exact, ex2, rcp, sqrt, rsqrt, log_libdevice };

struct Kernels {
  int width;  // lanes: heads of a QkJob or a NormJob
  /// Floats of scratch that a job needs, 64-byte aligned.
  std::int64_t (*scratch)(const Rules&);
  void (*conv)(const ConvJob&);
  void (*qk)(const QkJob&);
  void (*gates)(const GatesJob&);
  void (*head)(const HeadJob&);
  void (*norm)(const NormJob&);
  void (*apply)(Function, const Slow&, const float* x, float* y, std::int64_t count);
  /// Independent chains of f32 vector instructions, `count` of each kind; returns how many instructions that were.
  std::int64_t (*peak)(std::int64_t count);
};

const Kernels& kernels_sse2();
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();

}  // namespace gdnsim::golden
