// Synthetic streams: a recipe (JSON, "gdnsim.recipe/1") describes model, parameters, inputs, states and schedule completely;
// the values come from a counter-based generator and exact arithmetic, the same on every machine (docs/recipes.md).
//
// Every value has an address: seed, tensor, layer id, sequence, position in that sequence, element. Rows, steps and the batch
// around a sequence are no part of it, so a sequence meets the same tokens however it is scheduled.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gdnsim/stream.hpp"
#include "gdnsim/trace.hpp"
#include "gdnsim/types.hpp"

namespace gdnsim {

/// How the elements of one tensor are drawn. In JSON {"normal": [mean, deviation]}, {"uniform": [low, high]},
/// {"log_of_uniform": [low, high]} (the correctly rounded logarithm of a uniform value) or {"constant": value}.
struct Draw {
  enum class Kind : std::uint8_t { normal, uniform, log_of_uniform, constant };
  Kind kind = Kind::normal;
  float first = 0;   // mean, low or value
  float second = 1;  // deviation or high
  bool operator==(const Draw&) const = default;
};

/// Parameters of a layer. An absent conv bias or norm weight is null in JSON.
struct ParamRecipe {
  Draw A_log{Draw::Kind::log_of_uniform, 0.1f, 16.0f};
  Draw dt_bias{Draw::Kind::normal, 0.0f, 0.7f};
  Draw conv_weight{Draw::Kind::normal, 0.0f, 0.4f};
  std::optional<Draw> conv_bias;
  std::optional<Draw> norm_weight = Draw{Draw::Kind::normal, 1.0f, 0.1f};
  bool operator==(const ParamRecipe&) const = default;
};

/// Keys that resemble each other: the k channels of x are weight * base + sqrt(1 - weight^2) * noise with a base vector per
/// sequence and layer that turns into another one every `drift` positions (0: never).
struct KeyRecipe {
  int weight = 0;  // in 1/256, 0..256
  std::int64_t drift = 0;
  bool operator==(const KeyRecipe&) const = default;
};

/// Special values strewn over the inputs.
struct SpecialRecipe {
  enum class Kind : std::uint8_t { nan, payload, inf, minus_inf, zero, minus_zero, denormal, largest };
  double rate = 0;  // of the elements of the tensors named
  std::vector<Kind> kinds;
  bool mixed_qkv = true, a = true, b = true, z = true;
  bool operator==(const SpecialRecipe&) const = default;
};

/// What is fed into the layers. Without z (null) there is no gated norm.
struct InputRecipe {
  Draw x, a, b;
  std::optional<Draw> z = Draw{};
  KeyRecipe keys;
  SpecialRecipe specials;
  bool operator==(const InputRecipe&) const = default;
};

/// A new sequence's block: zeroed, or loaded with random ("prefilled") state.
struct StateRecipe {
  enum class Start : std::uint8_t { zero, load };
  Start start = Start::load;
  Draw recurrent{Draw::Kind::normal, 0.0f, 0.1f};
  Draw conv;
  bool operator==(const StateRecipe&) const = default;
};

/// From lowest to highest, both possible.
struct Range {
  std::int64_t lowest = 0, highest = 0;
  bool operator==(const Range&) const = default;
};

/// Which free block a sequence gets. `drawn` takes any, and the stream keeps quiet about owners, as version 1 does; the others
/// are those of engines (allocator.hpp), and with them the events say whose each block is.
enum class Allocation : std::uint8_t { drawn, lifo, fifo, modulo };

/// Several candidate tokens a launch, of which the first few are accepted. The state after each lies in a block of its own.
struct SpeculativeRecipe {
  int drafts = 0;               // candidates a launch beyond the first; 0: none, every launch is one step
  std::optional<Range> accept;  // candidates accepted, 1 to drafts + 1; absent: `rate`
  double rate = 1;              // that a candidate after the first is accepted, when those before it were
  double plain = 0;             // that a launch is one step all the same
  bool operator==(const SpeculativeRecipe&) const = default;
};

/// Who runs when. Rates are probabilities per step (and sequence), decided by the same generator.
struct ScheduleRecipe {
  enum class Placement : std::uint8_t {
    packed,
    sticky
  };  // active rows first; or a sequence keeps its row and leaves a hole
  enum class Preempt : std::uint8_t {
    swap,
    load,
    recompute
  };                // state copied to a spare block and back; or dropped, and reloaded or all tokens run again
  int running = 0;  // sequences alive at a time; 0: as many as rows
  std::int64_t first_sequence = 0;  // id of the first one, the rest count up
  std::optional<Range> length;      // tokens of a sequence; absent: endless
  double arrival = 1;               // that a free place is taken this step
  double shuffle = 0;               // that the rows are permuted before this step
  double skip = 0;                  // that a running sequence sits this step out
  double preempt = 0;               // that a running sequence is evicted before this step
  Range away{1, 4};                 // steps it is away at least
  Preempt preempt_by = Preempt::swap;
  Placement placement = Placement::packed;
  bool stale_tail = false;  // rows beyond those present keep an earlier step's index instead of the sentinel
  double mixed = 0;         // that a step shares its launch with a prefill (Path::mixed)
  Allocation allocator = Allocation::drawn;
  double fork = 0;  // that a new sequence starts from a copy of a running one's state
  SpeculativeRecipe speculative{};
  bool operator==(const ScheduleRecipe&) const = default;
};

/// A schedule written out: one entry a step.
struct ScriptStep {
  std::vector<std::int32_t> index;     // [B]
  std::vector<std::int64_t> sequence;  // [B]; empty: an active row's block number, else -1
  Path path = Path::decode;
  int present = -1;  // rows really there; -1: all
  int draft = 0;
  bool last_draft = true;
  std::vector<std::int32_t> source, accepted;  // [B], or empty (StepPlan)
  bool operator==(const ScriptStep&) const = default;
};

/// `source` is the block of a copy. What a load holds is addressed by `sequence` and `resumed`.
struct ScriptEvent {
  Event event;
  int resumed = 0;
  bool operator==(const ScriptEvent&) const = default;
};

struct Script {
  bool fill = false;  // every block is loaded with contents of its own before step 0
  std::vector<ScriptStep> steps;
  std::vector<ScriptEvent> events;  // sorted by step
  bool operator==(const Script&) const = default;
};

/// What `record_trace` does wrong on purpose: the trace says what should have been done. Where a field does not apply it keeps
/// its default (docs/recipes.md).
struct Fault {
  enum class Kind : std::uint8_t {
    inactive_row,   // an inactive row is computed and writes `block`
    missing_write,  // what a row computed is not stored
    missing_event,  // an event of `block` does not happen
    read_block,     // a row reads `block` as it was before the step
    write_block,    // a row's state goes to `block`
    old_copy,       // a copy to `block` takes what its source held `by` of its writes ago
    window,         // the conv window read, or loaded, is `by` columns off; zeros come in
    transposed,     // the state loaded into `block`, or read by a row, has K and V swapped
    rounded,        // the same, rounded to bf16
    poisoned,       // `block` holds poison when the step begins
    poison_out,     // a row's output `tap` holds poison
    wrapped,        // offsets of blocks wrap at `by` bits
    interleaved,    // mixed_qkv, packed per key head, is read as flat
    read_inputs,    // a row takes the inputs of the row `by` further on
    contract        // `field` of the contract has another `value`
  };
  enum class Part : std::uint8_t { both, recurrent, conv };
  Kind kind = Kind::missing_write;
  std::int64_t step = -1, until = -1;  // steps, inclusive; step -1: all
  int layer = -1, row = -1;            // -1: all
  std::int32_t block = -1;
  Part part = Part::both;
  int by = 0;
  Tap tap = Tap::conv_out;
  std::string field, value;
  bool at(std::int64_t when, int where) const {
    return (layer < 0 || layer == where) && (step < 0 || (when >= step && when <= until));
  }
  bool operator==(const Fault&) const = default;
};

struct Recipe {
  std::string note;  // for people; no part of the canonical text
  std::uint64_t seed = 0;
  Model model;
  std::int64_t steps = 1;
  int rows = 1;
  ParamRecipe params;
  InputRecipe inputs;
  StateRecipe states;
  ScheduleRecipe schedule;
  std::optional<Script> script;  // in place of the schedule
  std::vector<Fault> faults;     // acted out when the stream is recorded
  bool operator==(const Recipe&) const = default;
};

/// Parses a recipe. Keys that are left out take the defaults above (model.scale: 1 / sqrt(K); norm_eps: 1e-6); unknown or
/// repeated keys, wrong types and values out of range throw Error. `where` opens the line.
Recipe parse_recipe(const std::string& text, const std::string& where);
/// Throws Error when the recipe cannot be run; `parse_recipe` and `make_recipe_stream` call it.
void validate(const Recipe& recipe, const std::string& where);
/// The canonical text: every key, one order, shortest numbers, one line. parse_recipe(canonical_json(r)) is r but for its note.
std::string canonical_json(const Recipe& recipe);

/// True when the file is JSON by its first character: how a command that takes either tells a recipe from a trace.
bool is_recipe(const std::string& path);
Recipe load_recipe(const std::string& path);

/// The stream a recipe describes. Its `source` is the canonical text.
std::unique_ptr<Stream> make_recipe_stream(const Recipe& recipe);
std::unique_ptr<Stream> open_recipe(const std::string& path);

/// Writes any stream as a trace without recordings: parameters, steps, events and load rows. `step_done` is told how many
/// steps are written. Throws what `create_trace` throws.
void write_trace(Stream& stream, const std::string& path, bool force,
                 const std::vector<std::pair<std::string, std::string>>& provenance = {},
                 const std::function<void(std::int64_t)>& step_done = {});
/// The two halves of it: what the writer is told first, and the steps themselves (without `finish`).
TraceHeader trace_header_of(Stream& stream);
void copy_stream(Stream& stream, TraceWriter& writer, const std::function<void(std::int64_t)>& step_done = {});

}  // namespace gdnsim
