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

/// Who runs when. Rates are probabilities per step (and sequence), decided by the same generator.
struct ScheduleRecipe {
  enum class Placement : std::uint8_t {
    packed,
    sticky
  };  // active rows first; or a sequence keeps its row and leaves a hole
  enum class Preempt : std::uint8_t {
    swap,
    load
  };                                // state copied to a spare block and back; or dropped, reloaded anew
  int running = 0;                  // sequences alive at a time; 0: as many as rows
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
  bool operator==(const ScheduleRecipe&) const = default;
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
