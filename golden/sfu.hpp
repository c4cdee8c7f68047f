// The approximate functions of an NVIDIA sm_90 GPU in software, exact on every input (docs/arithmetic.md, rules S1-S7).
//
// No tables of results: the hardware evaluates a piecewise quadratic in fixed point with a truncated squarer, and so do we.
// The tests rebuild all 2^23 or 2^24 mantissas of each function and compare the crc32 with the measured ones.
#pragma once

#include <cstdint>

namespace gdnsim::golden {

float rcp_approx_ftz(float x);     // rcp.approx.ftz.f32
float sqrt_approx_ftz(float x);    // sqrt.approx.ftz.f32
float rsqrt_approx_ftz(float x);   // rsqrt.approx.ftz.f32
float ex2_approx_ftz(float x);     // ex2.approx.ftz.f32
float ex2_approx(float x);         // ex2.approx.f32: keeps results below 2^-126
float div_full(float a, float b);  // div.full.f32
float log_libdevice(float x);      // libdevice's f32 log in its flush-to-zero form, as Triton compiles it

/// The mantissa parts alone, as bits of a float: 2^(i/2^23); 1/(1 + i/2^23) for i < 2^23; sqrt and 1/sqrt of the float with
/// bits 0x3F800000 + i for i < 2^24.
std::uint32_t ex2_mantissa(std::uint32_t i);
std::uint32_t rcp_mantissa(std::uint32_t i);
std::uint32_t sqrt_mantissa(std::uint32_t i);
std::uint32_t rsqrt_mantissa(std::uint32_t i);

}  // namespace gdnsim::golden
