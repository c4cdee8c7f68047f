// Comparing words by their bits, in execution order: counts per tap, and the first divergence with everything a report says
// of it. Nothing here knows a tolerance.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gdnsim/cells.hpp"
#include "gdnsim/slice.hpp"
#include "gdnsim/stream.hpp"
#include "gdnsim/types.hpp"
#include "gdnsim/words.hpp"

namespace gdnsim {

/// Were the inputs of the operation that differs the recorded ones? `equal` proves that the fault is there, not upstream.
enum class InputsMatched : std::uint8_t { unknown, equal, different };
std::string_view name_of(InputsMatched value);

/// The words around one: the same row and head, element `from` on.
struct Near {
  static constexpr std::int64_t kReach = 8;  // elements either side
  std::int64_t from = 0;
  std::vector<std::uint32_t> got, want;
};

/// A block's digest before or after one event of the stream (of A's, in a diff).
struct EventPlace {
  std::int64_t number = -1;
  Event event{};
  bool after = false;
};

/// "copy of block 1 to block 3", "zero of block 2"
std::string event_text(const Event& event);

/// The first divergence of a comparison. Absent places are -1.
struct Divergence {
  std::int64_t step = -1;
  int layer = -1;
  std::int32_t layer_id = -1;
  Tap tap = Tap::conv_acc;
  int row = -1;
  std::int64_t sequence = -1;
  std::int32_t block = -1;
  std::int64_t head = -1;
  std::int64_t element = -1;   // within the head; -1 when only a digest tells
  std::int64_t from_step = 0;  // the block's state was recorded before this step and computed by us since
  DType type = DType::f32;
  std::uint32_t got = 0, want = 0;  // raw words: ours (or B's), recorded (or A's)
  std::optional<std::uint64_t> ulp;
  DiffClass kind = DiffClass::rounding;
  InputsMatched inputs = InputsMatched::unknown;
  Near near;
  std::optional<EventPlace> event{};  // it is in a block's digest around this event, before any row of the step
};
/// Execution order: step; its events; layer, tap, row, head, element; what belongs to no row comes after the rows, by block.
bool precedes(const Divergence& a, const Divergence& b);

/// Compares what one layer produced, step by step, and keeps track of which blocks hold recorded bits.
///
/// Call order within a step: `event`, then `pin`, for each of its events; `tap` and `state` in execution order; `step_done`; then `pin` again for the
/// blocks whose state after the step is known to be the recorded one.
class LayerComparer {
 public:
  /// What a block holds before anything is said of it is known (`from_zero`: our own runs start from zeros) or not: a trace
  /// that forgot a load looks just like one that starts from zeros.
  LayerComparer(const Model& model, int layer, bool from_zero);

  /// Nothing else is compared or counted from here on; a pool digest only where all is.
  void only(const Pick& pick) { pick_ = pick; }
  const Pick& pick() const { return pick_; }
  /// Cells are counted from this step on (CellRow::begin_at).
  void cells_from(std::int64_t step) { cells_.begin_at(step); }
  /// The block holds recorded bits before `step`: loaded, zeroed, or overwritten with a snapshot.
  void pin(std::int32_t block, std::int64_t step);
  /// Events between the steps are not shown (diff): what a block holds is known before step 0 and never after.
  void events_unseen() { events_seen_ = false; }
  /// Copies what is known about a block to another (copy event).
  void pin_as(std::int32_t from, std::int32_t to);

  void tap(Tap tap, const StepPlan& plan, std::span<const std::byte> got, std::span<const std::byte> want);
  /// A snapshot of one block after the step. Returns whether both states agree.
  bool state(const StepPlan& plan, std::int32_t block, std::span<const std::byte> got_recurrent,
             std::span<const std::byte> want_recurrent, std::span<const std::byte> got_conv,
             std::span<const std::byte> want_conv);
  /// One digest of a head's state (head >= 0) or of the conv state (head = -1) of a row's block.
  void digest(const StepPlan& plan, int row, std::int64_t head, std::uint64_t got, std::uint64_t want);
  /// The block's digest before or after an event of the step. Returns whether both agree; true when it is not looked at.
  bool event(const StepPlan& plan, const EventPlace& place, std::uint64_t got, std::uint64_t want);
  /// The digest of the layer's whole pool: the only witness of a write to a block that no row named.
  void pool_digest(const StepPlan& plan, std::uint64_t got, std::uint64_t want);
  /// Blocks written by the step's rows are no longer known.
  void step_done(const StepPlan& plan);

  const TapCounts& counts() const { return counts_; }
  const CellRow& cells() const { return cells_; }
  const std::optional<Divergence>& first() const { return first_; }
  const std::optional<Divergence>& first_of(Tap tap) const { return firsts_[static_cast<std::size_t>(tap)]; }
  std::uint64_t digests_compared() const { return digests_compared_; }
  std::uint64_t digests_differing() const { return digests_differing_; }

 private:
  void begin(const StepPlan& plan);
  void found(Divergence divergence);
  void compare_row(Tap tap, const StepPlan& plan, int row, std::span<const std::byte> got,
                   std::span<const std::byte> want);
  bool compare_block(Tap tap, const StepPlan& plan, std::int32_t block, std::span<const std::byte> got,
                     std::span<const std::byte> want);
  bool compared(Tap tap, const StepPlan& plan, int row) const;
  InputsMatched inputs_of(Tap tap, int row, std::int32_t block) const;
  bool known(std::int32_t block) const;
  InputsMatched of_tap(Tap tap, int row, std::int32_t block) const;
  Divergence place(Tap tap, const StepPlan& plan, int row, std::int32_t block) const;
  Divergence element(Divergence at, const TapShape& shape, std::span<const std::byte> got,
                     std::span<const std::byte> want, const WordRun& run) const;
  InputsMatched inputs_of(const EventPlace& place) const;
  bool count_digest(Tap tap, const StepPlan& plan, bool equal);

  const Model& model_;
  const int layer_;
  TapCounts counts_{};
  CellRow cells_;
  std::optional<Divergence> first_;
  std::array<std::optional<Divergence>, kTaps> firsts_;
  Pick pick_;
  const bool from_zero_;
  std::map<std::int32_t, bool> known_;           // does a record vouch for the block's bits? (absent: from_zero_)
  std::map<std::int32_t, std::int64_t> origin_;  // block: the step before which it was last recorded (absent: 0)
  std::set<std::pair<Tap, int>> equal_;          // (tap, row) recorded and equal in this step
  std::set<std::pair<Tap, int>> differ_;         // (tap, row) recorded and different in this step
  std::int64_t current_step_ = -1;
  bool events_seen_ = true;
  bool event_began_equal_ = false;  // the block's digest before the event under way
  std::uint64_t digests_compared_ = 0, digests_differing_ = 0;
};

}  // namespace gdnsim
