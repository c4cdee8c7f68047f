// An open log: what its reading (log/read.cpp) and its verification (log/verify.cpp) share.
#pragma once

#include <string>
#include <vector>

#include "file/raw_file.hpp"
#include "gdnsim/log.hpp"
#include "log/chain.hpp"
#include "log/checkpoint.hpp"
#include "log/events.hpp"
#include "log/skeleton.hpp"

namespace gdnsim {

/// What a verification follows from the first step on.
struct Proofs {
  CheckpointProof checkpoints;
  EventProof events;
};

class LogFile final : public Log {
 public:
  explicit LogFile(const std::string& path);

  std::string path() const override { return path_; }
  const Model& model() const override { return header_.model; }
  std::int64_t steps() const override { return complete_; }
  std::int64_t first_step() const override { return header_.first_step; }
  std::vector<int> layers() const override { return header_.layers; }
  int rows() const override { return header_.rows; }
  StepPlan plan(std::int64_t step) const override;
  TapSet taps(int layer) const override;
  void read_tap(Tap tap, std::int64_t step, int layer, Bytes& out) override;
  void read_tap_rows(Tap tap, std::int64_t step, int layer, std::span<const int> rows, Bytes& out) override;
  std::span<const Snapshot> snapshots() const override { return snapshots_; }
  void read_snapshot(const Snapshot& snapshot, Bytes& recurrent, Bytes& conv) override;

  const LogLayout& layout() const { return layout_; }
  const LogHeader& header() const override { return header_; }
  std::int64_t declared_steps() const override { return header_.steps; }
  std::vector<std::uint64_t> digest_recurrent(std::int64_t step, int layer) override;
  std::vector<std::uint64_t> digest_conv(std::int64_t step, int layer) override;
  std::uint64_t digest_pool(std::int64_t step, int layer) override;
  std::vector<std::uint64_t> digest_out(std::int64_t step, int layer) override;
  EventDigests digest_event(std::size_t event, int layer) override;
  std::vector<std::int64_t> checkpoints() const override;
  void read_checkpoint(std::int64_t step, int layer, Pool& pool) override;
  std::array<std::uint64_t, 2> chain() override { return chain_; }
  std::array<std::uint64_t, 2> chain_at(std::int64_t step) override { return chain_after(step); }
  Chain chain_after(std::int64_t step) const;  // a complete one
  LogFault verify(const Slice& slice = {}) override;

 private:
  // Below, `t` counts steps from first_step and `slot` counts the layers that were run.
  void count_complete_steps();
  void find_absent_taps();
  void list_snapshots();
  std::size_t complete_step(std::int64_t step) const;
  std::size_t slot_of(int layer) const;
  const Extent& extent_of(Tap tap) const;
  void read(const Extent& extent, std::initializer_list<std::uint64_t> index, std::span<std::byte> out) const;
  Commit read_commit(std::size_t t) const;
  void read_digests(std::size_t t, StepDigests& digests) const;
  std::vector<std::uint64_t> layer_digests(Section section, std::int64_t step, int layer);

  LogFault fault(const Extent& extent, std::size_t t, const std::string& what) const;
  LogFault verify_step(std::size_t t, const Chain& previous, StepDigests& digests, Proofs& proofs) const;
  LogFault verify_outputs(std::size_t t, const StepDigests& digests, bool trusted) const;
  LogFault verify_rows(std::size_t t, const StepDigests& digests, bool trusted) const;
  LogFault verify_row_digests(std::size_t t, std::size_t slot, std::size_t row, const StepDigests& digests,
                              bool trusted) const;
  LogFault verify_checkpoint(std::size_t t, const StepDigests& digests, bool trusted, Proofs& proofs) const;
  LogFault verify_checkpoint_layer(std::size_t t, std::size_t c, std::size_t slot, const StepDigests& digests,
                                   bool trusted, Proofs& proofs) const;
  LogFault verify_rest(const Chain& last, StepDigests& digests, Proofs& proofs) const;

  const std::string path_;
  LogHeader header_;
  LogLayout layout_;
  RawFile file_;
  std::int64_t complete_ = 0;
  Chain chain_{};             // of the last complete step; the header's digest before the first
  std::vector<TapSet> taps_;  // [slots]
  std::vector<Snapshot> snapshots_;
  std::vector<std::size_t> verified_slots_;  // whose data verify reads
};

}  // namespace gdnsim
