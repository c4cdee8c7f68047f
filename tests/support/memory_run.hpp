// A stream and a recording held in memory: copies of files that are replayed a thousand times, or made up by a test, which may
// change any word of them.
#pragma once

#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <gdnsim/backend.hpp>
#include <gdnsim/contract.hpp>
#include <gdnsim/recording.hpp>
#include <gdnsim/stream.hpp>

namespace gdnsim::test {

using BlockBytes = std::pair<Bytes, Bytes>;  // recurrent, conv

class MemoryStream : public Stream {
 public:
  MemoryStream() = default;
  explicit MemoryStream(Stream& from);
  const Model& model() const override { return model_; }
  const LayerParams& params(int layer) const override { return all_params[static_cast<std::size_t>(layer)]; }
  std::int64_t steps() const override { return static_cast<std::int64_t>(plans.size()); }
  int rows() const override { return plans.at(0).rows(); }
  StepPlan plan(std::int64_t step) const override { return plans.at(static_cast<std::size_t>(step)); }
  std::span<const Event> events() const override { return all_events; }
  bool has_z(int) const override { return with_z; }
  void inputs(std::int64_t step, int layer, StepInputs& out) override;
  void load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) override;
  std::string source() override { return "memory"; }

  StepInputs& at(std::int64_t step, int layer);

  Model model_;
  std::vector<LayerParams> all_params;              // [L]
  std::vector<StepPlan> plans;                      // [T]
  std::vector<Event> all_events;                    // sorted by step
  std::vector<std::vector<StepInputs>> all_inputs;  // [T][L]
  std::map<std::int32_t, BlockBytes> load_rows;     // those that events name
  bool with_z = true;
  std::uint64_t inputs_read = 0;
};

class MemoryRecording : public Recording {
 public:
  MemoryRecording() = default;
  explicit MemoryRecording(Recording& from);
  std::string path() const override { return "memory"; }
  const Model& model() const override { return model_; }
  std::int64_t steps() const override { return static_cast<std::int64_t>(plans.size()); }
  int rows() const override { return plans.at(0).rows(); }
  StepPlan plan(std::int64_t step) const override { return plans.at(static_cast<std::size_t>(step)); }
  TapSet taps(int) const override { return all_taps; }
  void read_tap(Tap tap, std::int64_t step, int layer, Bytes& out) override;
  std::span<const Snapshot> snapshots() const override { return all_snapshots; }
  void read_snapshot(const Snapshot& snapshot, Bytes& recurrent, Bytes& conv) override;

  Bytes& at(Tap tap, std::int64_t step, int layer) { return words.at({tap, step, layer}); }

  Model model_;
  std::vector<StepPlan> plans;
  TapSet all_taps;                                            // the same for all layers
  std::map<std::tuple<Tap, std::int64_t, int>, Bytes> words;  // [B, ...]
  std::vector<Snapshot> all_snapshots;                        // `at` counts them
  std::vector<BlockBytes> blocks;                             // by `at`
};

/// Runs the stream and keeps the taps of each step and every block after the steps in `snapshot_after`. Rows of opaque steps
/// hold zeros.
MemoryRecording record_in_memory(Stream& stream, Backend& backend, const ContractSet& contracts, const TapSet& taps,
                                 const std::vector<std::int64_t>& snapshot_after);

}  // namespace gdnsim::test
