// Every f32 input of the library's arithmetic: 2^32 per function. Part of the long suite; a few minutes a function and
// core.
//
//   golden_arith_long                              every function, every input
//   golden_arith_long exp_cr                       one function
//   golden_arith_long exp_cr 0xC2000000 0x1000000  one function, from those bits on, that many inputs
//
// The reference for exp, log and log1p is support/exact.hpp: an enclosure that falls back on MPFR wherever it holds a
// rounding boundary. exact.cpp derives its error bound; the normal suite (arith_test) also compares it with MPFR
// directly.
#include "support/arith_pairs.hpp"
#include "support/long_sweep.hpp"

int main(int argc, char** argv) {
  using namespace gdnsim::second;
  std::vector<Pair> pairs = quick_pairs();
  for (const Pair& pair : conversion_pairs()) pairs.push_back(pair);
  return run_long(pairs, argc, argv);
}
