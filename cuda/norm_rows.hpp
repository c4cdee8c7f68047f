// The norm by itself on the device: rows in, the fastest kernel that has the contract's bits, rows out.
#pragma once

#include <string>
#include <string_view>

#include "gdnsim/norm.hpp"
#include "kernels.hpp"
#include "queue.hpp"

namespace gdnsim::cuda {

class NormRun {
 public:
  /// `held_to` and `poison` as StepRun has them.
  NormRun(std::string_view held_to, bool poison) : held_to_(held_to), poison_(poison) {}
  /// `args` have been checked.
  void run(const NormArgs& args, NormOutputs& outputs);

 private:
  NormView view(const NormArgs& args, cudaStream_t stream) const;
  void launch(const NormArgs& args, cudaStream_t stream) const;
  void check_guards(const NormArgs& args);

  const std::string held_to_;
  const bool poison_;
  Queue queue_;
  Buffer x_, z_, weight_, out_, rstd_;
};

/// Bytes a second, read and written together, of a kernel that changes two gigabytes in place.
double measured_memory_rate();

}  // namespace gdnsim::cuda
