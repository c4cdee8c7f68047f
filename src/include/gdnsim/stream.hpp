// A stream: validated step records in order. A trace file is one, a synthetic recipe is another.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gdnsim/types.hpp"

namespace gdnsim {

/// `allocate` and `free` leave the contents: they say whose the block is.
enum class EventKind : std::int8_t { zero = 0, load = 1, copy = 2, free = 3, allocate = 4 };
std::string_view name_of(EventKind kind);
constexpr bool changes_contents(EventKind kind) { return kind <= EventKind::copy; }

/// Why the engine did it: for people and reports, no rule reads it.
enum class EventWhy : std::int8_t { none = 0, start = 1, fork = 2, evict = 3, resume = 4, finish = 5 };
std::string_view name_of(EventWhy why);

/// What happened to a block between steps; applied in file order before the step it names.
struct Event {
  std::int32_t step = 0;
  std::int32_t layer = -1;  // position in layer_ids, -1: every layer
  std::int32_t block = 0;
  EventKind kind = EventKind::zero;
  std::int32_t source = -1;    // copy: the source block; load: a row of the stream's load rows; else -1
  std::int64_t sequence = -1;  // whose block it is; -1: not known
  EventWhy why = EventWhy::none;
  bool operator==(const Event&) const = default;
};

/// Who takes part in one step.
struct StepPlan {
  std::int64_t step = 0;
  Path path = Path::decode;
  std::vector<std::int32_t> index;     // [B] as in the file
  std::vector<std::int32_t> block;     // [B] the block of an active row, -1 for an inactive one (rule A7)
  std::vector<std::int64_t> sequence;  // [B] request id, -1 for an inactive row
  int present = 0;                     // rows really there (/steps/rows, else B); rows beyond are inactive
  // A launch of n candidate tokens a row is n consecutive steps, drafts 0 .. n-1 (docs/arithmetic.md, rule A9).
  int draft = 0;
  bool last_draft = true;
  std::vector<std::int32_t> source;  // [B] the block whose state the row goes on from, -1: its own; empty: nobody moves
  std::vector<std::int32_t> accepted;  // [B] accepted tokens of the sequence's launch before, 0: none; empty: not known
  std::int64_t launch_tokens = 0;      // of the engine's launch, a prefill's among them; 0: not known, as many as rows
  int rows() const { return static_cast<int>(block.size()); }
  /// Rows of the gated norm's launch, one a token and value head (rule N4).
  std::int64_t norm_rows(int HV) const { return (launch_tokens > 0 ? launch_tokens : rows()) * HV; }
  /// The block that the row goes on from, -1 for an inactive one.
  std::int32_t start(std::size_t row) const {
    return block[row] < 0 || source.empty() || source[row] < 0 ? block[row] : source[row];
  }
  /// One of a launch of several drafts.
  bool in_launch() const { return draft > 0 || !last_draft; }
};

/// One layer's inputs of one step: raw act words, row-major.
struct StepInputs {
  Bytes mixed_qkv;  // [B, dim]
  Bytes a, b;       // [B, HV]
  Bytes z;          // [B, HV*V], or empty
};

/// Read-only source of steps. All methods but `inputs` and `load_row` are cheap. Throws Error on bad data.
/// Not thread-safe: one reader at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual const Model& model() const = 0;
  /// 2: a stream that says all it means. A row that is there, has a sequence and names no block is then a mistake; in version 1
  /// it may be padding. What a file of it must be able to hold: docs/trace-format.md.
  virtual int version() const { return 1; }
  virtual const LayerParams& params(int layer) const = 0;
  virtual std::int64_t steps() const = 0;              // T
  virtual int rows() const = 0;                        // B
  virtual StepPlan plan(std::int64_t step) const = 0;  // validated: active blocks in range and unique
  virtual std::span<const Event> events() const = 0;   // validated, sorted by step
  virtual bool has_z(int layer) const = 0;
  /// Fills `out`, reusing its storage.
  virtual void inputs(std::int64_t step, int layer, StepInputs& out) = 0;
  /// One load row: recurrent [HV, V, K] in state_dtype, conv [W-1, dim] in conv_state_dtype.
  virtual void load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) = 0;
  /// What identifies the content: the recipe's canonical JSON, or "trace:" + the content digest in hex. Stored in logs.
  virtual std::string source() = 0;
};

/// What a step of version 2 says beyond version 1; the default is what version 1 means.
struct Launch {
  int draft = 0;
  bool last_draft = true;
  std::span<const std::int32_t> source{}, accepted{};  // [B] or empty
};

/// The plan of one step from the file's own fields; throws Error ("two writers", "out of range", ...) with `where`, the step
/// and the row. `rows_present`: rows at or beyond it are inactive whatever their index.
StepPlan make_plan(const Model& model, std::int64_t step, Path path, std::span<const std::int32_t> index,
                   std::span<const std::int64_t> sequence, int rows_present, const std::string& where,
                   const Launch& launch = {});

/// Throws Error when an event cannot be: unsorted, step/layer/block/source out of range, unknown kind.
void validate_events(const Model& model, std::int64_t steps, std::int64_t load_rows, std::span<const Event> events,
                     const std::string& where);

/// The steps [first, last) of the launch that this step is part of: [step, step + 1) for an ordinary one.
std::pair<std::int64_t, std::int64_t> launch_of(const Stream& stream, std::int64_t step);
/// Throws Error when a slice would begin within a launch, naming the launch's steps.
void require_launch_start(const Stream& stream, std::int64_t first_step, const std::string& where);

/// The blocks that an event or a row names before `last_step`, ascending: no other can be anything but zeros then.
std::vector<std::int32_t> named_blocks(const Stream& stream, std::int64_t last_step);

}  // namespace gdnsim
