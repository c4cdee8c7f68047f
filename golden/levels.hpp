// The variants of the golden step: the plain one, and the vector one at each instruction set. One table that the backend, the
// tests and the bench read.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "simd.hpp"

namespace gdnsim::golden {

enum class Level { plain, sse2, avx2, avx512 };

struct Variant {
  Level level;
  std::string_view name;   // as --cpu-level spells it
  bool available;          // this build has it and this CPU can run it
  const Kernels* kernels;  // null for plain, and where it is not available
};

/// Every variant, plain first, then from the narrowest to the widest. All give the same bits for every contract and shape.
std::span<const Variant> variants();
std::string_view name_of(Level level);
std::optional<Level> level_from(std::string_view name);
/// The widest that this CPU can run.
Level best_level();
/// By name, or the best for an empty one; throws Error for an unknown name and for a level that the CPU lacks.
const Variant& choose_variant(const std::string& name);

}  // namespace gdnsim::golden
