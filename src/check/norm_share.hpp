// How many elements of a norm its roundings leave correctly rounded (docs/check.md, "Accuracy").
#pragma once

#include <cstdint>

#include "gdnsim/norm.hpp"

namespace gdnsim {

/// The shares that are right, ends included.
struct Share {
  double low, high;
  const char* why;
};

/// Of `elements` elements of normal rows. Nothing is expected of f32: low 0.
Share expected_share(const NormSpec& spec, const Contract& contract, std::uint64_t elements);

/// Share of a plain norm's elements that a chain of f32 operations, rounded once at its end, makes another word than
/// the nearest.
double expected_misses(const NormSpec& spec, const Contract& contract);

}  // namespace gdnsim
