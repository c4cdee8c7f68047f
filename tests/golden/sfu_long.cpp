// Every f32 input of the approximate functions, library against second implementation: 2^32 per function. Long suite.
//
//   golden_sfu_long [function [first [count]]]
#include "support/long_sweep.hpp"
#include "support/sfu_pairs.hpp"

int main(int argc, char** argv) {
  std::vector<gdnsim::second::Pair> pairs = gdnsim::second::sfu_pairs();
  for (const gdnsim::second::Pair& pair : gdnsim::second::div_pairs()) pairs.push_back(pair);
  return gdnsim::second::run_long(pairs, argc, argv);
}
