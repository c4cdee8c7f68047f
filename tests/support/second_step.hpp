// A second, deliberately plain implementation of one decode step: scalar loops over the equations of
// docs/arithmetic.md, for the contracts `golden`, `triton-sm90`, `triton-sm90-mixed` and `triton-sm90-mixed-gating` alone. It shares no arithmetic
// with the library; exp and log1p come from MPFR, the approximate functions from the tables. Slow is fine.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "gdnsim/stream.hpp"
#include "gdnsim/types.hpp"

namespace gdnsim::second {

enum class Rules { golden, triton_sm90, triton_sm90_mixed, triton_sm90_mixed_gating };
/// One step of the equations done wrong, as engines did it.
enum class Mistake { none, no_qk_norm, log_as_factor, factor_as_log, no_decay };

/// One block of the pool: recurrent [HV, V, K] in state_dtype, conv [W-1, dim] in conv_state_dtype.
struct Block {
  Bytes recurrent, conv;
  bool operator==(const Block&) const = default;
};

/// All taps, [B, ...] each, inactive rows +0 (their norm is that of zeros); `state` and `conv_state` are each row's
/// block after the step. `rstd` and `norm_out` are empty without z, norm weight or eps.
struct Taps {
  std::array<Bytes, kTaps> bytes;
  Bytes& operator[](Tap tap) { return bytes[static_cast<std::size_t>(tap)]; }
  const Bytes& operator[](Tap tap) const { return bytes[static_cast<std::size_t>(tap)]; }
};

/// Each row's recurrent state as the kernel holds it between the drafts of one launch: f32 [HV, V, K], by row.
using Held = std::map<std::size_t, Bytes>;

/// Runs one layer of one step on `blocks` (the whole pool of that layer, by block number).
Taps step(const Model& model, const LayerParams& params, Rules rules, const StepPlan& plan, const StepInputs& inputs,
          std::vector<Block>& blocks, Mistake mistake = Mistake::none, Held* held = nullptr);

}  // namespace gdnsim::second
