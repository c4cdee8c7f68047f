// What /model says wrongly: a number or a switch of the model under which every recorded bit comes out.
#pragma once

#include <optional>

#include "gdnsim/explain.hpp"

namespace gdnsim::explaining {

/// Does everything differ from the start: in the first step of the slice that names a block, every row of every layer?
bool differs_throughout(Stream& stream, Recording& recording, Backend& backend, const ReplayResult& found);

struct OtherModel {
  Mechanism mechanism;
  ContractChoice contract;  // under which everything comes out
};

/// Tries the usual scales, eps, activations and gates in place of those of the file, each with the contract that then fits best
/// when none is given. That q and k are not normalised is for the contract to say (`qk-norm-missing`).
std::optional<OtherModel> other_model(Stream& stream, Recording& recording, Backend& backend,
                                      const ReplayOptions& options, const ReplayResult& found);

}  // namespace gdnsim::explaining
