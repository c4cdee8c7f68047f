// A stream: validated step records in order. A trace file is one, a synthetic recipe is another.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gdnsim/types.hpp"

namespace gdnsim {

enum class EventKind : std::int8_t { zero = 0, load = 1, copy = 2, free = 3 };
std::string_view name_of(EventKind kind);

/// What happened to a block between steps; applied in file order before the step it names.
struct Event {
  std::int32_t step = 0;
  std::int32_t layer = -1;  // position in layer_ids, -1: every layer
  std::int32_t block = 0;
  EventKind kind = EventKind::zero;
  std::int32_t source = -1;  // copy: the source block; load: a row of the stream's load rows; else -1
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
  int rows() const { return static_cast<int>(block.size()); }
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

/// The plan of one step from the file's own fields; throws Error ("two writers", "out of range", ...) with `where`, the step
/// and the row. `rows_present`: rows at or beyond it are inactive whatever their index.
StepPlan make_plan(const Model& model, std::int64_t step, Path path, std::span<const std::int32_t> index,
                   std::span<const std::int64_t> sequence, int rows_present, const std::string& where);

/// Throws Error when an event cannot be: unsorted, step/layer/block/source out of range, unknown kind.
void validate_events(const Model& model, std::int64_t steps, std::int64_t load_rows, std::span<const Event> events,
                     const std::string& where);

/// The blocks that an event or a row names before `last_step`, ascending: no other can be anything but zeros then.
std::vector<std::int32_t> named_blocks(const Stream& stream, std::int64_t last_step);

}  // namespace gdnsim
