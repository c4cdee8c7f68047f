// The norms of a GDN block, row by row (docs/arithmetic.md, rules N1-N8). The decode step's norm, the gated operator and the plain
// one have one root between them.
#pragma once

#include "crew.hpp"
#include "gdnsim/norm.hpp"
#include "gdnsim/order.hpp"
#include "scalar.hpp"
#include "words.hpp"

namespace gdnsim::golden {

/// What the rows of one launch share.
struct NormRules {
  const Scalar& scalar;
  const Contract& contract;
  const DotOrder& order;
  DType act;
  NormGate gate;
  float eps;
};

/// 1 / sqrt(sum(x*x) / n + eps) in the contract's form (rule N5), as it comes: canonicalise where it is stored.
float rstd_of(const NormRules& rules, const Row& x);
/// One row, widened: `o` becomes the result before its last rounding; returns its rstd. Without `z` nothing is gated (N8).
float norm_row(const NormRules& rules, Row& o, const Row* z, const Row& weight);
/// The widened weight with its offset (rule N7).
Row weight_of(const NormSpec& spec, std::span<const std::byte> words);

/// The operator; `args` have been checked. Threads take whole rows.
void norm_rows(const NormArgs& args, Crew& crew, NormOutputs& outputs);

}  // namespace gdnsim::golden
