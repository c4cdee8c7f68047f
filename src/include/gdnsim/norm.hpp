// RMSNorm of rows, gated or plain, as an operator of a backend: the norms of a GDN block (docs/arithmetic.md, rules N1-N8).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gdnsim/contract.hpp"
#include "gdnsim/types.hpp"

namespace gdnsim {

/// What is normalised. Gated: the norm of a GDN head, over V. Plain: the decoder's norm, over the hidden size; in Qwen3-Next its
/// weight is kept zero-centred, so the offset is 1.
struct NormSpec {
  int width = 0;
  DType act = DType::bf16;  // of x, z, weight and out
  bool gated = true;
  NormGate gate = NormGate::silu;
  float eps = 1e-6f;
  float weight_offset = 0;  // rule N7: added to the widened weight in f32; at 0 nothing is added, so that -0 survives
};

/// Raw words. `x` and `z` [rows, width], `weight` [width]; `z` is empty for a plain norm.
struct NormArgs {
  const NormSpec& spec;
  const Contract& contract;
  std::int64_t rows;
  std::span<const std::byte> x, z, weight;
  int timed = 0;  // calls that are measured, besides the one that gives the outputs
};

struct NormOutputs {
  Bytes out;                // act [rows, width]
  std::vector<float> rstd;  // [rows]
  double seconds = 0;       // of one call where calls were measured, the median; on a device without the copies
};

/// "gated norm of 128 bf16, silu", "norm of 2048 bf16, weight + 1"
std::string describe(const NormSpec& spec);
/// Empty when the contract says what this norm's bits are; else one line that says what it needs.
std::string undefined_because(const Contract& contract, const NormSpec& spec);
/// Throws Error with that line, or one that names the operand of a wrong size.
void require_defined(const NormArgs& args);

}  // namespace gdnsim
