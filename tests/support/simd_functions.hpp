// The vector functions beside their scalar forms: one list for the normal and the long test.
#pragma once

#include "gdnsim/arith.hpp"
#include "golden/sfu.hpp"
#include "golden/simd.hpp"

namespace gdnsim::test {

struct ScalarFunction {
  golden::Function function;
  const char* name;
  float (*scalar)(float);
};
inline constexpr ScalarFunction kScalarFunctions[] = {
    {golden::Function::exp_exact, "exp", exp_cr},
    {golden::Function::log_exact, "log", log_cr},
    {golden::Function::log1p_exact, "log1p", log1p_cr},
    {golden::Function::ex2, "ex2", golden::ex2_approx},
    {golden::Function::rcp, "rcp", golden::rcp_approx_ftz},
    {golden::Function::sqrt, "sqrt", golden::sqrt_approx_ftz},
    {golden::Function::rsqrt, "rsqrt", golden::rsqrt_approx_ftz},
    {golden::Function::log_libdevice, "log_libdevice", golden::log_libdevice}};
inline constexpr golden::Slow kSlow{exp_cr, log_cr, log1p_cr};

}  // namespace gdnsim::test
