// A double-precision oracle of the decode step. It knows no contract and promises no bits: it says how far a contract's
// f32 arithmetic is from the equations. Whole heads are matrices, so nothing here sums in any contract's order.
//
// Stages are separate, so that one stage can be judged on another's recorded inputs. Values differ in the last bits of
// double between machines (libm, SIMD width): compare with a bound, never for equality.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "gdnsim/types.hpp"

namespace gdnsim::golden {

using Doubles = std::vector<double>;

/// Words of `type`, widened.
Doubles widened(std::span<const std::byte> words, DType type);

/// One block, widened: recurrent [HV, V, K], conv [W-1, dim].
struct OracleBlock {
  Doubles recurrent, conv;
};

struct OracleOptions {
  bool round_activations = false;  // conv_out, core_out and norm_out through the model's activation type
  bool round_state = false;        // the recurrent and conv state through their types on store
};

/// What the recurrence of one row gives. Widths as for the taps of the same names.
struct OracleCore {
  Doubles q, k;            // [H, K]
  Doubles beta, g, decay;  // [HV]
  Doubles dot_k, u;        // [HV, V]
  Doubles core_out;        // [HV, V]
};

struct OracleNorm {
  Doubles rstd;      // [HV]
  Doubles norm_out;  // [HV, V]
};

/// One layer. `model` and `params` must outlive it.
class OracleF64 {
 public:
  OracleF64(const Model& model, const LayerParams& params, OracleOptions options = {});

  /// Conv update of one row: x [dim] -> conv_out [dim]; rolls the block's window.
  Doubles conv(std::span<const double> x, OracleBlock& block) const;
  /// Split, q/k norm, gates and recurrence of one row: conv_out [dim], a and b [HV]; updates the block's recurrent
  /// state.
  OracleCore recurrence(std::span<const double> conv_out, std::span<const double> a, std::span<const double> b,
                        OracleBlock& block) const;
  /// Gated norm of one row (rule N2): core_out and z [HV, V]. Needs norm_weight and norm_eps.
  OracleNorm norm(std::span<const double> core_out, std::span<const double> z) const;

 private:
  Doubles heads(std::span<const double> part, double scale) const;  // normalised when the model says so, times scale
  void gates(std::span<const double> a, std::span<const double> b, OracleCore& core) const;

  const Model& model_;
  const OracleOptions options_;
  const Doubles A_log_, dt_bias_, conv_weight_, conv_bias_, norm_weight_;
};

}  // namespace gdnsim::golden
