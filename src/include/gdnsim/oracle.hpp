// The double-precision oracle as a backend: the equations without a contract, carried like any run. It promises no bits - values
// differ in the last bits of double between machines (libm, vector width) - so it stands for the truth, never for a recording.
#pragma once

#include <memory>
#include <span>

#include "gdnsim/backend.hpp"

namespace gdnsim {

/// Blocks in double. `read` gives them rounded to the model's types; what was written or loaded is widened.
class OraclePool : public Pool {
 public:
  using Pool::Pool;
  /// [HV, V, K], until the next change.
  virtual std::span<const double> recurrent(int layer, std::int32_t block) const = 0;
};

/// Takes no notice of the contract it is given. Outputs: core_out, norm_out (rounded to the model's activation type) and decay.
class OracleBackend : public Backend {
 public:
  /// The same of the last step before rounding: [B, HV, V], decay [B, HV]; empty where there is no gated norm.
  virtual std::span<const double> wide(Tap tap) const = 0;
};

/// `round_activations`: conv_out, core_out and norm_out go through the model's activation type within a step, as engines have
/// it; the states stay double in any case. Defined in golden/ and joined by linking.
std::unique_ptr<OracleBackend> make_oracle(bool round_activations);

}  // namespace gdnsim
