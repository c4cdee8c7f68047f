// One layer of a replay: the observer that compares every step with the recording. Private to replay and choose_contract.
#pragma once

#include "core/pool_digest.hpp"
#include "gdnsim/log.hpp"
#include "gdnsim/replay.hpp"
#include "gdnsim/simulator.hpp"

namespace gdnsim {

/// The recorded taps of a layer that can be compared with our outputs; throws Error when a recorded tap cannot be computed.
TapSet comparable_taps(const Stream& stream, const Recording& recording, int layer);

/// How many events of the stream name a step before this one.
std::int64_t first_event_from(const Stream& stream, std::int64_t step);
/// Does the log hold digests around this event, and is its step compared? Logs of version 1 hold none.
bool logs_event(const Log* log, const Event& event, std::int64_t first_step);
/// Those digests; `number` is the event's place among the log's. Throws Error when that is another one.
EventDigests log_event(Log& log, const Event& event, std::int64_t number, int layer);

/// What one process's blocks add to the digest of a layer's pool after a step, all others being zeros.
struct PoolSum {
  std::int64_t step = 0;
  std::uint64_t digest = 0;
};

/// Compares as the loop runs. In local mode each compared snapshot then replaces our own state.
class ReplayObserver final : public Observer {
 public:
  struct Options {
    int layer;
    std::int64_t first_step;  // earlier steps are run but not compared
    bool local = false;
    std::function<void()> on_step;
    bool stop_at_first = false;
    bool from_checkpoint = false;  // the pool is not all zeros at the first step that is run
  };
  ReplayObserver(Stream& stream, Recording& recording, const Options& options);

  void event_coming(const Event& event, int layer, Pool& pool) override;
  void event_applied(const Event& event, int layer, Pool& pool) override;
  bool looks_at(const ComingStep& coming, std::vector<Look>& looks) override;
  void before(std::int64_t step, int layer, const StepPlan& plan, Pool& pool) override;
  void after(const StepView& view) override;
  bool enough() const override { return options_.stop_at_first && comparer_.first().has_value(); }

  const LayerComparer& comparer() const { return comparer_; }
  std::uint64_t snapshots() const { return snapshots_; }
  /// Of a portion's run: what the others' are to be added to before the pool's digest can be compared.
  const std::vector<PoolSum>& pool_sums() const { return pool_sums_; }
  bool state_differs() const { return state_differs_; }

 private:
  void compare_taps(const StepView& view, Tap from, Tap to);
  void visit_snapshots(const StepView& view, bool selected);
  void visit_snapshot(const StepView& view, const Snapshot& snapshot, bool selected);
  bool ours(std::int32_t block) const { return picked_ == nullptr || picked_->needs(block); }
  void compare_digests(const StepView& view);
  void compare_event(const Event& event, bool after, std::uint64_t ours);
  void keep_pool_digest(const StepView& view);

  const Stream& stream_;
  Recording& recording_;
  Log* const log_;                    // the recording, when it is a log
  const PickedStream* const picked_;  // the stream, when only some rows are compared
  const Options options_;
  const TapSet taps_;
  const std::int64_t events_before_;  // events of the stream before the log's first
  LayerComparer comparer_;
  std::uint64_t before_event_ = 0;  // our digest of the block of the event under way
  std::size_t next_snapshot_ = 0;
  std::uint64_t snapshots_ = 0;
  bool state_differs_ = false;
  bool snapshot_here_ = false;          // the current step had at least one
  std::vector<std::int32_t> recorded_;  // blocks whose state after the current step is the recorded one
  PoolDigest pool_digest_;              // logs only: ours, kept as the log keeps its own
  std::vector<PoolSum> pool_sums_;
  Bytes want_, got_recurrent_, got_conv_, want_recurrent_, want_conv_;
};

/// Runs and compares one layer; returns what was found.
struct LayerReplay {
  LayerComparer comparer;
  std::uint64_t snapshots;
  bool state_differs;
  std::vector<PoolSum> pool_sums;
};
LayerReplay replay_layer(Stream& stream, Recording& recording, Backend& backend, const ContractSet& contracts,
                         std::int64_t last_step, const ReplayObserver::Options& options);

}  // namespace gdnsim
