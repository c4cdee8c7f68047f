// Whose each block is, and which moment of which sequence its two states stand for: plans and events gone through without any
// arithmetic. What cannot be is refused before a step runs (docs/trace-format.md, "Lives").
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "gdnsim/stream.hpp"

namespace gdnsim {

/// What one of a block's two states stands for.
struct Moment {
  static constexpr std::int64_t kUnknown = -1;
  std::int64_t sequence = -1;  // whose tokens; -1: nobody's, or not known
  std::int64_t position = 0;   // after so many of them; kUnknown after a load or a step that was not run
  std::uint64_t content = 0;   // the same number: the same content, copies included; 0: as the pool began
  bool operator==(const Moment&) const = default;
};

/// A block's life, as far as the steps and events gone through tell.
struct BlockLife {
  bool allocated = false;   // means something once the stream has `allocate` events
  std::int64_t owner = -1;  // the sequence it is allocated to, or was until it was freed
  std::int64_t since = -1;  // the step of that allocation, or of the free; -1: never allocated
  Moment recurrent, conv;
  std::int64_t written_step = -1;   // the last write: before this step (an event) or in it (a row); -1: never
  std::int64_t written_event = -1;  // by this event of the stream, else by a row
  std::int64_t written_by = -1;     // that row's sequence
  std::int64_t written_row = -1;    // and its place in the batch
};

class Lifecycle {
 public:
  /// `where` opens each line of refusal. The stream outlives this. `layer`: what happens to blocks in that layer, where an event
  /// of another fills nothing; -1: in any.
  Lifecycle(const Stream& stream, std::string where, int layer = -1);

  /// Applies one event; `number` is its place in the stream. Throws Error for what cannot be.
  void event(const Event& event, std::int64_t number);
  /// Checks one step, the events before it applied, then applies it. Throws Error for what cannot be.
  void step(const StepPlan& plan);
  /// Everything before `step`, without the events that name it; `go_into` takes those too, but not the step.
  void go_to(std::int64_t step);
  void go_into(std::int64_t step);

  const BlockLife& life(std::int32_t block) const;
  /// "block 3: sequence 7, recurrent at position 12, conv at position 12"
  std::string describe(std::int32_t block) const;
  /// "event 4 (copy of block 1) at step 1", "row 0 of step 0, sequence 7 (freed at step 1)", "nobody"
  std::string last_writer(std::int32_t block) const;

  /// What a fault does that moves one state without the other.
  void copy_recurrent(std::int32_t from, std::int32_t to);
  void copy_conv(std::int32_t from, std::int32_t to);

 private:
  /// What one draft of a launch left, and where.
  struct Column {
    std::int32_t block;
    Moment recurrent, conv;
  };
  /// A sequence's last launch.
  struct LastLaunch {
    std::int64_t step = -1;  // of its first draft
    std::vector<Column> columns;
  };
  /// One active row of the step under way.
  struct Row {
    std::size_t row;
    std::int64_t sequence;
    std::int32_t block, start;
  };

  BlockLife& at(std::int32_t block) { return blocks_[block]; }
  void events_before(std::int64_t step);
  void require_launch(const StepPlan& plan) const;
  void require_named(const StepPlan& plan) const;
  void require_one_row(const StepPlan& plan) const;
  void require_owner(const StepPlan& plan, const Row& row, std::int32_t block) const;
  void require_draft(const StepPlan& plan, const Row& row) const;
  void require_accepted(const StepPlan& plan, const Row& row) const;
  void require_event_owner(const Event& event, std::int64_t number) const;
  bool restarted(const LastLaunch& last, const Row& row) const;
  void write(const StepPlan& plan, const Row& row);
  void fill(const Event& event, std::int64_t number);
  std::string words(const StepPlan& plan, const Row& row) const;
  std::string words(const Event& event, std::int64_t number) const;
  std::string owner_words(std::int32_t block) const;

  const Stream& stream_;
  const std::string where_;
  const int layer_;
  const bool owned_, strict_;  // the stream says whose blocks are; it says all it means
  std::int64_t next_step_ = 0;
  std::size_t next_event_ = 0;
  std::int64_t last_event_ = -1;  // of the step under way
  std::uint64_t contents_ = 0;    // numbers given out
  std::unordered_map<std::int32_t, BlockLife> blocks_;
  std::map<std::int64_t, LastLaunch> launches_;  // by sequence
  StepPlan before_;                              // the step before: a draft goes on from it
};

/// Goes through the whole stream, each layer's own life where events name layers; throws Error for the first thing that cannot
/// be.
void require_life(const Stream& stream, const std::string& where);

}  // namespace gdnsim
