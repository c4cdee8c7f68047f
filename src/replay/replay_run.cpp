#include "replay/replay_run.hpp"

#include <algorithm>

#include "gdnsim/digest.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/log.hpp"
#include "log/events.hpp"

namespace gdnsim {

TapSet comparable_taps(const Stream& stream, const Recording& recording, int layer) {
  const TapSet taps = recording.taps(layer);
  for (Tap tap : {Tap::rstd, Tap::norm_out})
    if (taps.has(tap) && !has_norm(stream, layer))
      throw error(recording.path(), ": recorded/", layer, "/", name_of(tap),
                  ": cannot be replayed without z, norm_weight and norm_eps, of which at least one is missing");
  return taps;
}

std::int64_t first_event_from(const Stream& stream, std::int64_t step) {
  const auto events = stream.events();
  return std::ranges::lower_bound(events, step, {}, &Event::step) - events.begin();
}

bool logs_event(const Log* log, const Event& event, std::int64_t first_step) {
  return log != nullptr && !log->header().events.empty() && event.step >= std::max(first_step, log->first_step()) &&
         event.step < log->first_step() + log->steps();
}

EventDigests log_event(Log& log, const Event& event, std::int64_t number, int layer) {
  const auto& events = log.header().events;
  if (number < 0 || number >= static_cast<std::int64_t>(events.size()) ||
      !same_but_load_row(events[static_cast<std::size_t>(number)], event))
    throw error(log.path(), ": events[", number, "]: expected the ", name_of(event.kind), " of block ", event.block,
                " at step ", event.step, ", as the log's source has it");
  return log.digest_event(static_cast<std::size_t>(number), layer);
}

ReplayObserver::ReplayObserver(Stream& stream, Recording& recording, const Options& options)
    : stream_(stream),
      recording_(recording),
      log_(dynamic_cast<Log*>(&recording)),
      picked_(dynamic_cast<const PickedStream*>(&stream)),
      options_(options),
      taps_(comparable_taps(stream, recording, options.layer)),
      events_before_(first_event_from(stream, recording.first_step())),
      comparer_(stream.model(), options.layer, log_ != nullptr),
      pool_digest_(stream.model(), {options.layer}),
      got_recurrent_(stream.model().state_bytes()),
      got_conv_(stream.model().conv_bytes()) {
  comparer_.cells_from(options.first_step);
  if (picked_ != nullptr) comparer_.only(picked_->pick());
  if (options.from_checkpoint) pool_digest_.touch_all(options.layer);
}

void ReplayObserver::event_coming(const Event& event, int layer, Pool& pool) {
  if (!logs_event(log_, event, options_.first_step) || !ours(event.block)) return;
  before_event_ = pool.digest(layer, event.block).block;
  compare_event(event, false, before_event_);
}

/// Compared before anything is said of the block: what the event read is as the steps before left it.
void ReplayObserver::event_applied(const Event& event, int layer, Pool& pool) {
  const bool changes = changes_contents(event.kind);
  if (changes && ours(event.block)) pool_digest_.touch(layer, event.block);
  if (logs_event(log_, event, options_.first_step) && ours(event.block))
    compare_event(event, true, changes ? pool_digest_.hash(pool, layer, event.block).block : before_event_);
  if (event.kind == EventKind::copy)
    comparer_.pin_as(event.source, event.block);
  else if (changes)
    comparer_.pin(event.block, event.step);
}

void ReplayObserver::compare_event(const Event& event, bool after, std::uint64_t ours) {
  const std::int64_t number = &event - stream_.events().data();
  const EventDigests logged = log_event(*log_, event, number - events_before_, options_.layer);
  comparer_.event(stream_.plan(event.step), {number, event, after}, ours, after ? logged.after : logged.before);
}

/// A row that moves takes along what is known of the block that it goes on from.
void ReplayObserver::before(std::int64_t, int, const StepPlan& plan, Pool&) {
  for (std::size_t row = 0; row < plan.source.size(); ++row)
    if (plan.path != Path::opaque && plan.start(row) != plan.block[row])
      comparer_.pin_as(plan.source[row], plan.block[row]);
}

/// Snapshots of the step, and for a log the digests of what changed. A local run writes to the pool.
bool ReplayObserver::looks_at(const ComingStep& coming, std::vector<Look>& looks) {
  if (options_.local) return false;
  const auto snapshots = recording_.snapshots();
  for (auto at = std::ranges::lower_bound(snapshots, coming.step, {}, &Snapshot::step);
       at != snapshots.end() && at->step == coming.step; ++at)
    if (at->layer == options_.layer) add_look(looks, at->block, true);
  if (log_ == nullptr) return true;
  if (coming.step == options_.first_step && !coming.next) return false;  // what earlier steps touched is not known yet
  for (std::int32_t block : coming.plan.block)
    if (block >= 0) add_look(looks, block, false);
  if (coming.next)
    for (std::int32_t block : pool_digest_.touched(options_.layer)) add_look(looks, block, false);
  return true;
}

/// In execution order: the taps up to the state, the states after the step, the outputs.
void ReplayObserver::after(const StepView& view) {
  const bool selected = view.step >= options_.first_step;
  if (selected && view.executed) compare_taps(view, Tap::conv_acc, Tap::u);
  visit_snapshots(view, selected);
  if (log_ != nullptr) keep_pool_digest(view);
  if (selected && view.executed && log_ != nullptr) compare_digests(view);
  if (selected && view.executed) compare_taps(view, Tap::core_out, Tap::norm_out);
  comparer_.step_done(view.plan);
  for (std::int32_t block : recorded_) comparer_.pin(block, view.step + 1);
  if (options_.on_step) options_.on_step();
}

void ReplayObserver::compare_taps(const StepView& view, Tap from, Tap to) {
  for (auto i = static_cast<std::size_t>(from); i <= static_cast<std::size_t>(to); ++i) {
    const Tap tap = static_cast<Tap>(i);
    if (!taps_.has(tap)) continue;
    if (!read_picked(recording_, comparer_.pick(), view.plan, tap, options_.layer, want_)) continue;
    comparer_.tap(tap, view.plan, view.outputs[tap], want_);
  }
}

void ReplayObserver::visit_snapshots(const StepView& view, bool selected) {
  const auto snapshots = recording_.snapshots();
  snapshot_here_ = false;
  recorded_.clear();
  for (; next_snapshot_ < snapshots.size() && snapshots[next_snapshot_].step <= view.step; ++next_snapshot_) {
    const Snapshot& snapshot = snapshots[next_snapshot_];
    if (snapshot.step != view.step || snapshot.layer != options_.layer) continue;
    snapshot_here_ |= selected && view.executed && (picked_ == nullptr || picked_->somebody_needs(snapshot.block));
    visit_snapshot(view, snapshot, selected);
  }
}

/// Counts a snapshot of a selected step. In local mode the recorded state is put in place, selected or not. After an opaque step
/// our state is not meant to be the recorded one: the loads that follow bring it.
void ReplayObserver::visit_snapshot(const StepView& view, const Snapshot& snapshot, bool selected) {
  if (!view.executed && !options_.local) return;
  if (!ours(snapshot.block)) return;
  recording_.read_snapshot(snapshot, want_recurrent_, want_conv_);
  view.pool.read(options_.layer, snapshot.block, got_recurrent_, got_conv_);
  const bool equal = got_recurrent_ == want_recurrent_ && got_conv_ == want_conv_;
  if (selected && view.executed) {
    comparer_.state(view.plan, snapshot.block, got_recurrent_, want_recurrent_, got_conv_, want_conv_);
    snapshots_ += comparer_.pick().state(view.plan, snapshot.block);
  }
  state_differs_ |= !equal && view.executed;
  // Within a launch whose stores round, the next draft goes on from what the kernel holds (rule A9): not from this.
  if (!equal && !view.plan.last_draft && view.pool.model().state_dtype != DType::f32) return;
  if (options_.local && !equal) view.pool.write(options_.layer, snapshot.block, want_recurrent_, want_conv_);
  if (equal || options_.local) recorded_.push_back(snapshot.block);
}

/// Names the blocks that the step wrote, as the log's writer did.
void ReplayObserver::keep_pool_digest(const StepView& view) {
  for (std::int32_t block : view.plan.block)
    if (block >= 0 && view.executed) pool_digest_.touch(options_.layer, block);
}

/// A log's digests stand in for the states that its policy did not keep; the pool's is there in any case.
void ReplayObserver::compare_digests(const StepView& view) {
  const std::size_t HV = static_cast<std::size_t>(view.pool.model().HV);
  const auto heads = log_->digest_recurrent(view.step, options_.layer),
             convs = log_->digest_conv(view.step, options_.layer);
  for (std::size_t row = 0; !snapshot_here_ && row < view.plan.block.size(); ++row) {
    if (view.plan.block[row] < 0) continue;
    const BlockDigest ours = pool_digest_.hash(view.pool, options_.layer, view.plan.block[row]);
    comparer_.digest(view.plan, static_cast<int>(row), -1, ours.conv, convs[row]);
    for (std::size_t head = 0; head < HV; ++head)
      comparer_.digest(view.plan, static_cast<int>(row), static_cast<std::int64_t>(head), ours.heads[head],
                       heads[row * HV + head]);
  }
  const Pick& pick = comparer_.pick();
  const std::uint64_t ours = pool_digest_.digest(view.pool, options_.layer);
  if (pick.portion == nullptr)
    comparer_.pool_digest(view.plan, ours, log_->digest_pool(view.step, options_.layer));
  else if (pick.rows.empty() && pick.blocks.empty())
    pool_sums_.push_back({view.step, ours});
}

LayerReplay replay_layer(Stream& stream, Recording& recording, Backend& backend, const ContractSet& contracts,
                         std::int64_t last_step, const ReplayObserver::Options& options) {
  const Simulation simulation{stream,          backend,   contracts,
                              {options.layer}, last_step, comparable_taps(stream, recording, options.layer)};
  const auto pool = backend.make_pool(stream.model(), simulation.layers);
  ReplayObserver observer(stream, recording, options);
  simulate(simulation, *pool, observer);
  return {observer.comparer(), observer.snapshots(), observer.state_differs(), observer.pool_sums()};
}

}  // namespace gdnsim
