// What the backend (compiled for the CPU) and the kernels (compiled by nvcc) agree on: one layer of one step as device
// pointers and numbers, and the launchers. Shapes in comments are row-major.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gdnsim/contract.hpp"
#include "gdnsim/order.hpp"
#include "gdnsim/types.hpp"

struct CUstream_st;  // what cudaStream_t points to

namespace gdnsim::cuda {

/// The words of a contract that device code switches on (Contract itself holds a string).
struct Rules {
  ConvProduct conv_product;
  ConvTaps conv_taps;
  ConvBias conv_bias;
  ConvSum conv_sum;
  Exp exp;
  Div div;
  Sqrt sqrt;
  Negate negate;
  Softplus softplus;
  Beta beta;
  Params params;
  Decay decay;
  QkNorm qk_norm;
  QkEps qk_eps;
  Scale scale;
  Update update;
  StateStore state_store;
  HeadMap head_map;
  Norm norm;
  Rstd rstd;
};

struct Shape {
  int H, HV, K, V, W;
  std::int64_t dim, rows;  // rows: B
  float scale, norm_eps;
  bool silu, qk_l2norm, gate_silu;
  DType state_type, conv_type, act_type;
};

/// Raw words unless a type is given; nullptr where the layer has none.
struct ParamPointers {
  const float* A_log;       // [HV]
  const float* dt_bias;     // [HV]
  const void* conv_weight;  // act [dim, W]
  const void* conv_bias;    // act [dim]
  const void* norm_weight;  // act [V]
};

struct InputPointers {
  const std::int32_t* block;  // [B], -1 for an inactive row
  const void* mixed_qkv;      // act [B, dim]
  const void* a;              // act [B, HV]
  const void* b;              // act [B, HV]
  const void* z;              // act [B, HV, V]
};

/// One layer of the pool.
struct PoolPointers {
  void* recurrent;  // state [num_blocks, HV, V, K]
  void* conv;       // conv [num_blocks, W-1, dim]
};

/// Zeros before the first kernel, so that inactive rows hold what rule A7 says.
struct TapPointers {
  float* conv_acc;                 // [B, dim]
  void* conv_out;                  // act [B, dim]
  float *q, *k;                    // [B, H, K]
  float *beta, *g, *decay, *rstd;  // [B, HV]
  float *dot_k, *u;                // [B, HV, V]
  void* core_out;                  // act [B, HV, V]
  void* norm_out;                  // act [B, HV, V]
};

/// What a launch of several drafts whose stores round holds from one draft to the next (rule A9): f32 [B, HV, V, K].
struct HeldState {
  float* S;    // nullptr: nothing is held
  bool read;   // the draft before left it there
  bool write;  // another draft follows
  bool operator==(const HeldState&) const = default;
};

struct StepView {
  Shape shape;
  Rules rules;
  DotOrder qk_order, state_order, norm_order;
  ParamPointers params;
  InputPointers in;
  PoolPointers pool;
  TapPointers out;
  HeldState held{};               // of the plain kernels alone
  CUstream_st* stream = nullptr;  // where the launches go
};

/// Rows to normalise, all alike: the gated norm of a step, or the operator (norm.hpp). Raw words; z is nullptr without a gate.
struct NormView {
  std::int64_t rows;
  int width;
  DType act_type;
  bool gate_silu;
  float eps, weight_offset;
  Rules rules;
  DotOrder order;
  const void *x, *z, *weight;  // act [rows, width], [rows, width], [width]
  void* out;                   // act [rows, width]
  float* rstd;                 // [rows], or nullptr
  CUstream_st* stream;
};

// One launch each, in this order, on the current device. They throw Error when a launch is refused.
void launch_conv(const StepView& step);       // conv_acc, conv_out; rolls the active rows' windows
void launch_qk_norm(const StepView& step);    // q, k
void launch_gates(const StepView& step);      // beta, g, decay
void launch_recurrent(const StepView& step);  // dot_k, u, core_out; updates the active rows' states
void launch_norm(const StepView& step);       // rstd, norm_out, of every row (rule N1)

/// Any contract and width.
void launch_norm_rows(const NormView& norm);

/// Reads and writes every word of `bytes` (a multiple of 16) once: the rate of the memory, for measurements.
void launch_change(void* words, std::size_t bytes, CUstream_st* stream);

/// True when this build has machine code or PTX that the current device can run.
bool has_kernel_image();

/// How the current device computes its approximate functions: a digest each over all mantissas (approximate.cu).
struct Fingerprint {
  std::uint64_t ex2, rcp, sqrt, rsqrt;
  bool operator==(const Fingerprint&) const = default;
};
Fingerprint approximate_fingerprint();
/// What sm_90 gives and the contracts mean; tests/golden/fingerprint_test.cpp computes the same numbers on the CPU.
inline constexpr Fingerprint kMeasured{0xA6DC87399FCAD309, 0x442CA39F3E5FEEDA, 0x28446B5CC50626B7, 0x0D0F1E4AD508F801};

}  // namespace gdnsim::cuda
