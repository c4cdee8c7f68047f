// How many elements of a norm its roundings leave correctly rounded (docs/check.md, "Accuracy").
#pragma once

#include "gdnsim/norm.hpp"

namespace gdnsim {

/// The shares that are right, ends included; low 0: nothing is expected.
struct Share {
  double low, high;
  const char* why;
};

/// Of a gated norm's elements, of normal rows. Nothing is expected of f32; of a plain norm, whose sum of squares may have
/// thousands of roundings; of an order of sums that no preset has; of a gate that comes first (rule N6). Their words are
/// worked out where they can be (norm_words.hpp).
Share expected_share(const NormSpec& spec, const Contract& contract);

}  // namespace gdnsim
