// The golden decode step: conv update, q/k norm, gates, recurrence, gated norm, one statement per equation, for any contract.
// Eigen does the element-wise work, which is exact per element; every sum goes through gdnsim::dot, whose order is the contract's.
#pragma once

#include <Eigen/Core>

#include "gdnsim/backend.hpp"
#include "gdnsim/order.hpp"
#include "scalar.hpp"
#include "words.hpp"

namespace gdnsim::golden {

/// One layer's parameters, widened once.
struct Weights {
  Row A_log, dt_bias;    // [HV]
  Eigen::ArrayXXf conv;  // [dim, W], column j is tap j
  Row conv_bias;         // [dim], or empty
  Row norm;              // [V], or empty
};
Weights widen_params(const Model& model, const LayerParams& params);

/// Every value of one step between the inputs and the outputs, f32, row-major as in `shape_of`.
struct Values {
  Row conv_acc;              // [B, dim]
  Row q, k;                  // [B, H, K]
  Row beta, g, decay, rstd;  // [B, HV]
  Row dot_k, u;              // [B, HV, V]
  Bytes conv_out;            // act [B, dim]
  Bytes core_out, norm_out;  // act [B, HV, V]
  void resize(const Model& model, std::int64_t rows);
};

/// What one step of one layer needs besides the pool.
struct StepContext {
  StepContext(const Model& model, const Weights& weights, const Contract& contract, const StepPlan& plan,
              const StepInputs& inputs);
  const Model& model;
  const Weights& weights;
  const Contract& contract;
  const StepPlan& plan;
  const StepInputs& inputs;
  const Scalar scalar;
  const DotOrder qk_order, state_order, sequential_k_order, norm_order;
};

/// Conv update of channels [begin, end) of an active row: conv_acc, conv_out, and the window `conv` [W-1, dim] rolled.
void conv_update(const StepContext& context, int row, std::int64_t begin, std::int64_t end, std::byte* conv,
                 Values& values);
/// q and k of one key head, from conv_out.
void normalise_head(const StepContext& context, int row, int head, Values& values);
/// beta, g and decay of one value head.
void gates(const StepContext& context, int row, int head, Values& values);
/// Does a store round the state? Then a launch of several drafts goes on from what the kernel holds, not from what it stored.
bool store_rounds(const Model& model, const Contract& contract);
/// One head's state as the kernel holds it within a launch of several drafts (rule A9): f32 [V, K].
struct HeldState {
  float* S = nullptr;  // null: nothing is held
  bool read = false;   // the draft before left it there
  bool write = false;  // another draft follows
};
/// The recurrence of one value head on its state [V, K]: dot_k, u, core_out, and the state stored.
void recurrent_head(const StepContext& context, int row, int head, std::byte* state, const HeldState& held,
                    Values& values);
/// Gated norm of one value head, active or not (rule N1).
void gated_norm(const StepContext& context, int row, int head, Values& values);

}  // namespace gdnsim::golden
