// Mutations: a few words of a recording, or of what is fed in, that read differently from what the file holds. And where they
// must show, worked out with code of its own.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gdnsim/stream_view.hpp>

#include "support/memory_run.hpp"
#include "support/trace_data.hpp"

namespace gdnsim::test {

/// Reads as `base` but where a whole tap of a step or a whole snapshot was replaced.
class MutatedRecording final : public Recording {
 public:
  explicit MutatedRecording(MemoryRecording& base) : base_(base) {}
  std::string path() const override { return base_.path(); }
  const Model& model() const override { return base_.model(); }
  std::int64_t steps() const override { return base_.steps(); }
  int rows() const override { return base_.rows(); }
  StepPlan plan(std::int64_t step) const override { return base_.plan(step); }
  TapSet taps(int layer) const override { return base_.taps(layer); }
  std::span<const Snapshot> snapshots() const override { return base_.snapshots(); }
  void read_tap(Tap tap, std::int64_t step, int layer, Bytes& out) override;
  void read_snapshot(const Snapshot& snapshot, Bytes& recurrent, Bytes& conv) override;

  /// The words to change: those of the base at first.
  Bytes& tap_words(Tap tap, std::int64_t step, int layer);
  BlockBytes& block_words(std::int64_t at);

  MemoryRecording& base_;
  std::map<std::tuple<Tap, std::int64_t, int>, Bytes> taps_;
  std::map<std::int64_t, BlockBytes> blocks_;
};

/// Reads as `base` but for one step's inputs, one layer's parameters or one load row.
class MutatedStream final : public StreamView {
 public:
  explicit MutatedStream(MemoryStream& base) : StreamView(base), base_(base) {}
  const LayerParams& params(int layer) const override;
  void inputs(std::int64_t step, int layer, StepInputs& out) override;
  void load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) override;

  MemoryStream& base_;
  std::map<std::pair<std::int64_t, int>, StepInputs> inputs_;
  std::map<int, LayerParams> params_;
  std::map<std::int32_t, BlockBytes> load_rows_;
};

/// One word that differs, as a report should name it.
struct Change {
  std::int64_t step;
  int layer;
  Tap tap;
  int row;
  std::int32_t block;
  std::int64_t head, element;
  std::uint32_t ours, recorded;  // raw words
};

/// How words of a tap are laid out, from docs/trace-format.md.
struct Layout {
  DType type;
  std::int64_t per_row;  // elements
  std::int64_t per_head;
  bool heads;
};
Layout layout_of(Tap tap, const Model& model);

std::uint32_t word_of(const Bytes& words, std::size_t i, DType type);
void set_word(Bytes& words, std::size_t i, DType type, std::uint32_t word);

/// Appends what differs between two contents of a tap (rows that are compared) or of a block, in the order of the words.
void add_tap_changes(std::vector<Change>& changes, const Model& model, const StepPlan& plan, int layer, Tap tap,
                     const Bytes& ours, const Bytes& recorded);
void add_block_changes(std::vector<Change>& changes, const Model& model, const StepPlan& plan, int layer,
                       std::int32_t block, const BlockBytes& ours, const BlockBytes& recorded);
/// By execution order: step, layer, tap, row (blocks of no row last), head, element.
void sort_in_execution_order(std::vector<Change>& changes);

/// All words that a mutated recording shows differently, sorted.
std::vector<Change> changes_of(const MutatedRecording& recording);

// ---- random mutations ----

/// Changes one word, by a flipped bit or by up to 8 ULP. Returns false when nothing came of it.
bool flip_bit(Random& random, Bytes& words, std::size_t i, DType type);
bool move_ulps(Random& random, Bytes& words, std::size_t i, DType type);
/// Swaps two runs of bytes.
void swap_runs(Bytes& a, std::size_t from_a, Bytes& b, std::size_t from_b, std::size_t bytes);

/// What was drawn, in words.
std::string mutate_recording(Random& random, MutatedRecording& recording);

/// Where a mutated input lies: it cannot show in another layer, nor in an earlier step.
struct InputMutation {
  std::string what;
  int layer = -1;
  std::int64_t step = 0;
};
InputMutation mutate_stream(Random& random, MutatedStream& stream);

}  // namespace gdnsim::test
