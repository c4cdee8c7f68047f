// From the model and the contract to what kernels read: the numbers of a StepView, its pointers left to the caller.
#pragma once

#include "gdnsim/contract.hpp"
#include "gdnsim/types.hpp"
#include "kernels.hpp"

namespace gdnsim::cuda {

StepView view_of(const Model& model, const Contract& contract, std::int64_t rows);

}  // namespace gdnsim::cuda
