// The variants of the kernels, in one table: what each accepts, and why it refuses the rest. All give the same bits.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "gdnsim/backend.hpp"

namespace gdnsim::cuda {

/// Which preset a contract is, as far as a kernel reads it.
enum class Preset { other, golden, triton, triton_mixed };
Preset step_preset(const Contract& contract);  // conv, norms of q and k, gates, recurrence
Preset norm_preset(const Contract& contract);  // the gated norm: golden, or triton with any rstd and lanes it has

struct Variant {
  std::string_view name;
  std::string_view what;
  /// Empty, or why this variant cannot run the contract on this model: "K is 33; it has 32, 64, 128 and 256".
  std::string (*refuses)(const Contract&, const Model&);
};

/// plain, fused, streamed, resident; the fast norm goes with every variant but plain.
std::span<const Variant> variants();
const Variant& variant(std::string_view name);  // throws Error listing the names

/// Why the fast gated norm cannot run, or empty.
std::string fast_norm_refuses(const Contract& contract, const Model& model);

/// For tests and measurements: the backend held to one variant; what that refuses throws Error with the reason. With
/// `poison`, outputs are filled with ones beforehand and what lies beyond them is watched.
std::unique_ptr<Backend> make_variant(const BackendOptions& options, std::string_view name, bool poison);

}  // namespace gdnsim::cuda
