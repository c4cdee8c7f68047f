// The kinds of hypotheses: each function proposes what may have happened around a divergence. Private to explain.
#pragma once

#include <set>
#include <vector>

#include "explain/trial.hpp"

namespace gdnsim::explaining {

/// What is known where the first wrong unit is.
struct Scene {
  const Bench& bench;
  Trials& trials;
  Outcome found;        // under what was accepted before
  Unit at;              // the first wrong unit
  std::int64_t anchor;  // before this step the block's state is vouched for: a load, a zero, an equal snapshot
  Checkpoint from;      // the pool before `anchor`
  History history;      // states around the window
  std::set<std::int32_t> blocks;  // named by a row or an event up to at.step, or wrong somewhere
  std::vector<StepPlan> plans;    // steps 0 .. last of what is kept: plans[step]

  const Model& model() const { return bench.stream.model(); }
  const StepPlan& plan(std::int64_t step) const { return plans[static_cast<std::size_t>(step)]; }
  bool in_conv() const { return at.tap <= Tap::conv_state; }
  /// The parts of a block's state that may be at fault, given where the first wrong unit is.
  std::vector<Part> parts() const;
  Scope scope(std::int64_t step, int row, std::int32_t block) const {
    return {step, step, bench.layer, row, block, -1};
  }
};
Scene make_scene(Trials& trials, Outcome found);

/// A row of a step that names a block.
struct RowStep {
  std::int64_t step;
  int row;
};
/// Rows that name the block in [first, last], the latest first.
std::vector<RowStep> rows_of_block(const Scene& scene, std::int32_t block, std::int64_t first, std::int64_t last);

/// Rows that made the state of `at.block` what it is, the latest first, back to step `first`: through copies and through rows
/// that went on from another block.
std::vector<RowStep> rows_of_state(const Scene& scene, std::int64_t first);
inline std::vector<RowStep> rows_of_state(const Scene& scene) { return rows_of_state(scene, scene.anchor); }
/// Events that did, the latest first, back to the anchor: places in the stream's events.
std::vector<std::int64_t> events_of_state(const Scene& scene);
/// (step, block): tokens that the block's state has seen after the step, since its last zero or load, for rows of the step.
std::map<std::pair<std::int64_t, std::int32_t>, std::int64_t> tokens_of_states(const Scene& scene);

using Hypotheses = std::vector<Hypothesis>;

void propose_wrong_blocks(const Scene& scene, Hypotheses& out);  // wrong-block
void propose_swaps(const Scene& scene, Hypotheses& out);         // the same of two rows at once: each took the other's
void propose_columns(const Scene& scene, Hypotheses& out);    // the wrong candidate of a launch taken for the accepted
void propose_positions(const Scene& scene, Hypotheses& out);  // wrong-position
void propose_missing_writes(const Scene& scene, Hypotheses& out);  // write-missing
void propose_windows(const Scene& scene, Hypotheses& out);         // conv-window-shift
void propose_contents(const Scene& scene, Hypotheses& out);  // kv-transposed, poison-read, state-store-bf16 of one read
void propose_events(const Scene& scene, Hypotheses& out);    // reset-missing, and what else an event can do wrong
void propose_late_events(const Scene& scene, Hypotheses& out);       // reset-missing: after the step's rows
void propose_padded_rows(const Scene& scene, Hypotheses& out);       // padded-row-wrote, stale-tail
void propose_roundings(const Scene& scene, Hypotheses& out);         // contract choices of the whole layer
void propose_orders(const Scene& scene, Hypotheses& out);            // the same with every order of summing
void propose_roundings_here(const Scene& scene, Hypotheses& out);    // from the step on, in it alone, in one row
void propose_orders_here(const Scene& scene, Hypotheses& out);       // every order of summing, from the step on
void propose_roundings_before(const Scene& scene, Hypotheses& out);  // the same for the block's steps before
void propose_wraps(const Scene& scene, Hypotheses& out);             // index-wrap
void propose_layouts(const Scene& scene, Hypotheses& out);           // qkv-packing
void propose_bit(const Scene& scene, Hypotheses& out);               // memory-corruption of one bit of a snapshot
void propose_flips(const Scene& scene, Hypotheses& out);             // of one bit of the state that a row read
void propose_input_flips(const Scene& scene, Hypotheses& out);       // of one bit of the window, an input, a parameter
void propose_words(const Scene& scene, Hypotheses& out);             // memory-corruption of a few words of a state
void propose_records(const Scene& scene, Hypotheses& out);           // memory-corruption of the record itself
void propose_snapshots(const Scene& scene, Hypotheses& out);         // a snapshot that holds another state

/// "; the last writer of block 3 was row 0 of step 4, sequence 7": before the rows of the step, or after them.
std::string last_writer_of(const Scene& scene, std::int32_t block, std::int64_t step, bool after);

/// Half of the blocks that rows name come out wrong sooner or later: arithmetic does that, one bad step hardly.
bool widespread(const Bench& bench, const Outcome& outcome);

/// "step 5, layer 1, row 0"
std::string place_words(const Scope& scope);

}  // namespace gdnsim::explaining
