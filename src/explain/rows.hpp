// Twists about active rows: what is done to the blocks of the rows that a `Where` names. Private to explain.
#pragma once

#include <memory>

#include "explain/kinds.hpp"

namespace gdnsim::explaining {

/// Changes a block's words before they are read, or after they were written. (edit, row, block, words)
using Change = std::function<void(StepEdit&, int, std::int32_t, Words&)>;

/// Before the step the rows' blocks are changed.
Twist changed_before(const Where& where, const Change& change);
/// After the step; `before` are the block's words from before it.
using ChangeAfter = std::function<void(StepEdit&, int, std::int32_t, const Words& before, Words&)>;
Twist changed_after(const Where& where, const ChangeAfter& change);
/// Both: what the rows read is changed, then what they stored.
Twist changed_around(const Where& where, const Change& change, const ChangeAfter& after);

/// Proposes a fault of one row of one step, which can be tried elsewhere too. `block`: what the scope names, -1 for the row's own.
void propose_row(const Scene& scene, Hypotheses& out, const char* id, const RowStep& place, std::int32_t block,
                 const std::string& what, const std::function<Twist(const Where&)>& twist);

}  // namespace gdnsim::explaining
