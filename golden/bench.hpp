// How fast the vector kernels are beside what the CPU can do. For `gdnsim bench`; never a test.
#pragma once

#include "gdnsim/contract.hpp"
#include "levels.hpp"

namespace gdnsim::golden {

/// Vector f32 instructions a second that one thread can issue: the best of several runs of independent multiplies and adds.
double peak_rate(const Variant& variant);

struct RecurrenceRate {
  double vectors;       // vectors of state elements (variant.kernels->width of them) through one step, a second
  double instructions;  // the same in the f32 instructions that the equations need
};
/// The recurrence alone, one thread, a tile's state at hand for many steps (A2.5): decay, two products and two sums, and the
/// update make 7 instructions a vector, 4 where the contract fuses all but the decay.
RecurrenceRate recurrence_rate(const Variant& variant, const Contract& contract, DType state_dtype, int K);

}  // namespace gdnsim::golden
