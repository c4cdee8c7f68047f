// Log files, versions 1 and 2: what a run of ours produced (docs/log-format.md). HDF5 lays the skeleton once; the data then goes in
// with pwrite at the datasets' offsets and one 32-byte commit record a step, so a kill cannot damage it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gdnsim/contract.hpp"
#include "gdnsim/digest.hpp"
#include "gdnsim/recording.hpp"
#include "gdnsim/simulator.hpp"
#include "gdnsim/slice.hpp"

namespace gdnsim {

/// Which steps' states are kept: every step, each Nth (steps N-1, 2N-1, ... and the last), or none but digests.
struct StatePolicy {
  enum class Kind : std::uint8_t { full, every, digest } kind = Kind::full;
  std::int64_t n = 1;
  bool keeps(std::int64_t step, std::int64_t steps) const;
  std::vector<std::int64_t> kept_steps(std::int64_t steps) const;
};
/// "full", "every:N" or "digest"; throws Error otherwise.
StatePolicy state_policy_from(const std::string& text);
/// "none" (0) or "every:M" with M of 1 or more; throws Error otherwise.
std::int64_t checkpoint_every_from(const std::string& text);

struct LogHeader {
  Model model;
  std::vector<int> layers;  // positions in model.layer_ids that were run, ascending: the log's L axis. Every `layer`
                            // argument below is such a position, not an index of the axis.
  ContractSet contracts;
  std::string source;           // Stream::source()
  std::int64_t first_step = 0;  // logged steps are first_step .. first_step + steps - 1
  std::int64_t steps = 0;
  int rows = 0;
  TapSet taps{Tap::conv_out, Tap::core_out, Tap::norm_out};
  StatePolicy state;
  std::int64_t checkpoint_every = 0;  // M: the whole pool is kept after each Mth logged step but the last; 0: never
  std::vector<std::int32_t>
      checkpoint_blocks;        // named_blocks: ascending: all that can be other than zeros up to the last step
  std::vector<StepPlan> plans;  // [steps]
  std::vector<Event> events;    // those before each logged step, in order
  std::vector<std::pair<std::string, std::string>> provenance;  // empty with --no-provenance
};

/// 2 when there is something that version 1 cannot hold: events, moving rows, launches of several drafts, strides.
int version_of(const LogHeader& header);
/// The stream's events that steps first .. last - 1 name.
std::vector<Event> events_of(const Stream& stream, std::int64_t first_step, std::int64_t last_step);

/// A block's digests around one event; 0 for a layer that the event does not name.
struct EventDigests {
  std::uint64_t before = 0, after = 0;
  bool operator==(const EventDigests&) const = default;
};

/// Bytes the finished file will take, to be shown before the run; exact but for a few pages of metadata.
std::uint64_t log_size(const LogHeader& header);

/// Writes a log from simulated steps. Attach it to `simulate` as the observer.
class LogWriter : public Observer {
 public:
  virtual std::int64_t committed() const = 0;  // steps whose commit record is written
  virtual std::uint64_t bytes_written() const = 0;
  /// Before the first step of a run: where it has to start. A log that was taken up again puts the pool of its last complete
  /// checkpoint into `pool` (all zeros so far) and names the step after it (Simulation::first_step); else 0, nothing done.
  virtual std::int64_t start(Pool& pool) = 0;
  /// The chain digest of the last step done.
  virtual std::array<std::uint64_t, 2> chain() const = 0;
  virtual void close() = 0;  // throws Error when a write or a sync failed
};

struct LogOptions {
  bool force = false;     // replace an existing file
  std::int64_t sync = 0;  // fdatasync around the record each N steps; 0: never
  bool audit = false;     // rehash the whole pool each step, so that a write to a block that nothing named is seen
};

/// Creates the skeleton, reserves its space, renames it into place and locks it. Throws Error when the target exists and
/// `force` is false, when another writer holds it, or when the disk cannot hold it; then nothing is left behind.
std::unique_ptr<LogWriter> create_log(const std::string& path, const LogHeader& header, const LogOptions& options);

/// Takes up an interrupted log of the same run, locked and verified. Simulate from step 0 again, or from where `start` says:
/// complete steps are recomputed and compared with their records (Error when they differ), the rest is written; the file ends
/// in the same bytes as an uninterrupted run's. Provenance stays the first run's.
std::unique_ptr<LogWriter> resume_log(const std::string& path, const LogHeader& header, const LogOptions& options);

/// What is wrong with a log: the first bad dataset and step, or nothing.
struct LogFault {
  std::string dataset;
  std::int64_t step = -1;
  std::string what;
};

/// An open log. `steps()` counts the complete steps: records that check, in order from the first.
class Log : public Recording {
 public:
  virtual const LogHeader& header() const = 0;  // plans and snapshots included
  std::vector<int> layers() const override { return header().layers; }
  virtual std::int64_t declared_steps() const = 0;
  virtual std::vector<std::uint64_t> digest_recurrent(std::int64_t step, int layer) = 0;  // [B, HV]
  virtual std::vector<std::uint64_t> digest_conv(std::int64_t step, int layer) = 0;       // [B]
  virtual std::uint64_t digest_pool(std::int64_t step, int layer) = 0;
  virtual std::vector<std::uint64_t> digest_out(std::int64_t step, int layer) = 0;  // [taps]
  /// Of header().events[event], which a complete step names.
  virtual EventDigests digest_event(std::size_t event, int layer) = 0;
  /// Steps after which the whole pool is kept and from which a run can go on, complete ones only, ascending. Within a launch
  /// none can: what the kernel keeps in registers is not in the pool.
  virtual std::vector<std::int64_t> checkpoints() const = 0;
  /// Writes one layer's listed blocks (header().checkpoint_blocks) into `pool`; the others must be zeros already. Throws Error
  /// when the step has no checkpoint or its bytes do not match the step's pool digest.
  virtual void read_checkpoint(std::int64_t step, int layer, Pool& pool) = 0;
  /// The chain digest of the last complete step: equal chains mean equal logs up to there.
  virtual std::array<std::uint64_t, 2> chain() = 0;
  /// The same after any complete step: it covers that step and all before it.
  virtual std::array<std::uint64_t, 2> chain_at(std::int64_t step) = 0;
  /// Recomputes every digest of the complete steps and the chain; returns the first fault, empty `dataset` when whole. With a
  /// slice the data of its layers and steps alone are read; records, digests and the chain up to its end are checked all the same.
  virtual LogFault verify(const Slice& slice = {}) = 0;
};

std::unique_ptr<Log> open_log(const std::string& path);

enum class FileKind : std::uint8_t { trace, log, recipe };
/// By the root attribute @format, or '{' as the first character of a recipe. Throws Error for anything else.
FileKind kind_of_file(const std::string& path);

}  // namespace gdnsim
