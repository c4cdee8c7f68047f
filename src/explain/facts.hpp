// What the recorded bits say by themselves, without a hypothesis. Private to explain.
#pragma once

#include "explain/kinds.hpp"

namespace gdnsim::explaining {

/// Do all words of a wrong unit part as roundings do (class `rounding`)? True for a unit without words.
bool rounding_apart(const WrongUnit& wrong, DType type);

/// The first NaN of a layer's replay whose operation read no NaN: `nan-born`. Only where a NaN was recorded.
std::optional<Mechanism> born_nan(const Bench& bench, const std::vector<Twist>& twists);

/// Stores that equal their loads although the decay is below 1: `decay-lost`, when more than half of them do.
std::optional<Mechanism> lost_decay(const Bench& bench, const std::vector<Twist>& twists);

/// Nothing explains it: `algorithm-order` when everything is rounding from a widespread start, state included; else
/// `unexplained` with size, growth and pattern. `out_of_time`: the search did not end, so nothing is said of what was not tried.
Mechanism pattern_of(const Scene& scene, bool out_of_time);

}  // namespace gdnsim::explaining
