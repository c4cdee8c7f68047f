// Trace files, versions 1 and 2: what went into the layers and, when recorded, what came out (docs/trace-format.md).
// The reader and the writer share this header, src/trace*.cpp and one schema.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gdnsim/recording.hpp"
#include "gdnsim/stream.hpp"

namespace gdnsim {

/// An open trace: a stream of inputs and, if anything was recorded, a recording. Opening validates everything that is not
/// bulk data: schema, types, every dimension, indices, events, parameters (no NaN). Bulk data is read one step at a time.
class Trace : public Stream, public Recording {
 public:
  // Both bases describe the same model, steps, rows and plans; declared again so that a call on a Trace is not ambiguous.
  const Model& model() const override = 0;
  std::int64_t steps() const override = 0;
  int rows() const override = 0;
  StepPlan plan(std::int64_t step) const override = 0;
  virtual const std::vector<std::pair<std::string, std::string>>& provenance() const = 0;  // attribute, text
  virtual bool has_recording() const = 0;
  /// How the file lays out what the stream shows flat, by the names of its attributes; what is as in version 1 is left out.
  virtual const std::vector<std::pair<std::string, std::string>>& layout() const = 0;
  /// XXH3-128 over everything that is computed with - model, parameters, plans, events, load rows, inputs - and not over what
  /// was recorded, so that a log can be matched with its trace. Independent of chunking and compression; reads all inputs once.
  virtual std::string content_digest() = 0;
  /// Paths in the file that the format does not know, at most 64: a tap under another name, say, which is not compared then.
  virtual std::vector<std::string> unknown() const { return {}; }
};

/// Opens a trace. Throws Error: one line naming file, dataset, index and what was expected.
std::unique_ptr<Trace> open_trace(const std::string& path);

/// What the writer is told before the first step.
struct TraceHeader {
  Model model;
  std::vector<LayerParams> params;  // [L]
  std::int64_t steps = 0;           // T
  int rows = 0;                     // B
  bool has_z = false;
  TapSet taps;  // recorded taps, all layers (no state taps)
  std::vector<Event> events;
  std::int64_t load_rows = 0;                                   // N
  std::vector<Snapshot> snapshots;                              // in the order they will be written; `at` is filled in
  std::vector<std::pair<std::string, std::string>> provenance;  // empty: no /provenance group
  bool has_path = false, has_launch_tokens = false;
  // Version 2 (Stream::version). Any of these makes the file one, and so does a field that version 1 lacks: an event of kind
  // allocate, with a sequence or a reason, or a model with strides or index_bits.
  int version = 1;
  bool has_drafts = false, has_source = false, has_accepted = false;
};
/// The version that this header's file has.
int version_of(const TraceHeader& header);

/// Writes a trace through a temporary name beside `path`; `finish` makes it valid and renames it into place.
/// Destroying an unfinished writer removes the temporary file. Same calls, same bytes.
class TraceWriter {
 public:
  virtual ~TraceWriter() = default;
  virtual void write_plan(const StepPlan& plan) = 0;
  virtual void write_inputs(std::int64_t step, int layer, const StepInputs& inputs) = 0;
  virtual void write_load_row(std::int64_t source, std::span<const std::byte> recurrent,
                              std::span<const std::byte> conv) = 0;
  virtual void write_tap(Tap tap, std::int64_t step, int layer, std::span<const std::byte> rows) = 0;
  virtual void write_snapshot(std::int64_t at, std::span<const std::byte> recurrent,
                              std::span<const std::byte> conv) = 0;
  virtual void finish() = 0;
};

/// Throws Error when `path` exists and `force` is false, or the target cannot be written.
std::unique_ptr<TraceWriter> create_trace(const std::string& path, const TraceHeader& header, bool force);

}  // namespace gdnsim
