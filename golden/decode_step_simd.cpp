// The decode step in vectors: decode_step.cpp's bits at several times its speed. Compiled once for each level
// (-DGDNSIM_LEVEL=avx2 with the flags that go with it); the dispatcher in levels.cpp picks a table at run time.
//
// Nothing here may be visible to the linker but that table (see lanes.hpp); a test looks at the object files.
#include "simd_layers.hpp"
#include "simd_recurrent.hpp"

namespace gdnsim::golden {
namespace {

std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

std::int64_t scratch_floats(const Rules& rules) {
  const Model& model = *rules.model;
  const std::int64_t qk = model.K + dot_scratch(rules.qk_order), norm = 2LL * model.V + dot_scratch(rules.norm_order);
  return (larger(recurrent_scratch(rules), larger(qk, norm)) + 1) * kWidth;
}

template <class Function_>
void each(const float* x, float* y, std::int64_t count, Function_ function) {
  for (std::int64_t i = 0; i < count; i += kWidth) {
    const F value = function(load(x + i, count - i));
    __builtin_memcpy(y + i, &value, 4 * static_cast<std::size_t>(count - i < kWidth ? count - i : kWidth));
  }
}

void apply(Function function, const Slow& slow, const float* x, float* y, std::int64_t count) {
  switch (function) {
    case Function::exp_exact:
      return each(x, y, count, [&slow](F v) GDNSIM_LEAF { return exp_exact(v, slow); });
    case Function::log_exact:
      return each(x, y, count, [&slow](F v) GDNSIM_LEAF { return log_exact(v, slow); });
    case Function::log1p_exact:
      return each(x, y, count, [&slow](F v) GDNSIM_LEAF { return log1p_exact(v, slow); });
    case Function::ex2:
      return each(x, y, count, [](F v) GDNSIM_LEAF { return ex2(v); });
    case Function::rcp:
      return each(x, y, count, [](F v) GDNSIM_LEAF { return rcp(v); });
    case Function::sqrt:
      return each(x, y, count, [](F v) GDNSIM_LEAF { return sqrt_approx(v); });
    case Function::rsqrt:
      return each(x, y, count, [](F v) GDNSIM_LEAF { return rsqrt_approx(v); });
    case Function::log_libdevice:
      return each(x, y, count, [](F v) GDNSIM_LEAF { return log_libdevice(v); });
  }
}

/// Six chains each of multiplies and adds: more than latency times ports, and no more than there are registers.
std::int64_t peak(std::int64_t count) {
  constexpr int kChains = 6;
  F sums[kChains], products[kChains];
  F one = all(1.0f), small = all(0x1p-30f);
  asm volatile("" : "+m"(one), "+m"(small));
  for (int i = 0; i < kChains; ++i) sums[i] = products[i] = one;
  for (std::int64_t n = 0; n < count; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) {
      sums[i] += small;
      products[i] *= one;
    }
  }
  for (int i = 0; i < kChains; ++i) asm volatile("" : : "m"(sums[i]), "m"(products[i]));
  return count * 2 * kChains;
}

constexpr Kernels kKernels{kWidth, scratch_floats, run_conv, run_qk, run_gates, run_head, run_norm, apply, peak};

}  // namespace

#define GDNSIM_JOIN(a, b) a##b
#define GDNSIM_KERNELS(level) GDNSIM_JOIN(kernels_, level)
const Kernels& GDNSIM_KERNELS(GDNSIM_LEVEL)() { return kKernels; }

}  // namespace gdnsim::golden
