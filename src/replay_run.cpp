#include "replay_run.hpp"

#include <algorithm>

#include "gdnsim/digest.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/log.hpp"

namespace gdnsim {

TapSet comparable_taps(const Stream& stream, const Recording& recording, int layer) {
  const TapSet taps = recording.taps(layer);
  for (Tap tap : {Tap::rstd, Tap::norm_out})
    if (taps.has(tap) && !has_norm(stream, layer))
      throw error(recording.path(), ": recorded/", layer, "/", name_of(tap),
                  ": cannot be replayed without z, norm_weight and norm_eps, of which at least one is missing");
  return taps;
}

ReplayObserver::ReplayObserver(Stream& stream, Recording& recording, const Options& options)
    : recording_(recording),
      options_(options),
      taps_(comparable_taps(stream, recording, options.layer)),
      comparer_(stream.model(), options.layer),
      got_recurrent_(stream.model().state_bytes()),
      got_conv_(stream.model().conv_bytes()) {}

void ReplayObserver::event_applied(const Event& event, int, Pool&) {
  if (event.kind == EventKind::copy) comparer_.pin_as(event.source, event.block);
  else if (event.kind != EventKind::free) comparer_.pin(event.block, event.step);
}

void ReplayObserver::after(const StepView& view) {
  const bool selected = view.step >= options_.first_step;
  if (selected && view.executed) compare_taps(view);
  visit_snapshots(view, selected);
  if (selected && view.executed) compare_digests(view);
  comparer_.step_done(view.plan);
  if (options_.on_step) options_.on_step();
}

void ReplayObserver::compare_taps(const StepView& view) {
  for (std::size_t i = 0; i < kTaps; ++i) {
    const Tap tap = static_cast<Tap>(i);
    if (!taps_.has(tap)) continue;
    recording_.read_tap(tap, view.step, options_.layer, want_);
    comparer_.tap(tap, view.plan, view.outputs[tap], want_);
  }
}

/// Compares the snapshots of a selected step; in local mode puts every recorded state in place, selected or not.
void ReplayObserver::visit_snapshots(const StepView& view, bool selected) {
  const auto snapshots = recording_.snapshots();
  snapshot_here_ = false;
  for (; next_snapshot_ < snapshots.size() && snapshots[next_snapshot_].step <= view.step; ++next_snapshot_) {
    const Snapshot& snapshot = snapshots[next_snapshot_];
    if (snapshot.step < view.step || snapshot.layer != options_.layer || (!selected && !options_.local)) continue;
    recording_.read_snapshot(snapshot, want_recurrent_, want_conv_);
    if (selected) compare_snapshot(view, snapshot);
    if (!options_.local) continue;
    view.pool.write(options_.layer, snapshot.block, want_recurrent_, want_conv_);
    comparer_.pin(snapshot.block, view.step + 1);
  }
}

void ReplayObserver::compare_snapshot(const StepView& view, const Snapshot& snapshot) {
  snapshot_here_ = true;
  ++snapshots_;
  view.pool.read(options_.layer, snapshot.block, got_recurrent_, got_conv_);
  state_differs_ |= !comparer_.state(view.plan, snapshot.block, got_recurrent_, want_recurrent_, got_conv_, want_conv_);
}

/// A log's digests stand in for the states that its policy did not keep.
void ReplayObserver::compare_digests(const StepView& view) {
  auto* log = dynamic_cast<Log*>(&recording_);
  if (log == nullptr || snapshot_here_) return;
  const Model& model = view.pool.model();
  const auto heads = log->digest_recurrent(view.step, options_.layer), convs = log->digest_conv(view.step, options_.layer);
  for (int row = 0; row < view.plan.rows(); ++row) {
    const std::int32_t block = view.plan.block[static_cast<std::size_t>(row)];
    if (block < 0) continue;
    view.pool.read(options_.layer, block, got_recurrent_, got_conv_);
    const BlockDigest ours = digest_block(model, got_recurrent_, got_conv_);
    comparer_.digest(view.plan, row, -1, ours.conv, convs[static_cast<std::size_t>(row)]);
    for (int head = 0; head < model.HV; ++head)
      comparer_.digest(view.plan, row, head, ours.heads[static_cast<std::size_t>(head)],
                       heads[static_cast<std::size_t>(row * model.HV + head)]);
  }
}

LayerReplay replay_layer(Stream& stream, Recording& recording, Backend& backend, const ContractSet& contracts,
                         std::int64_t last_step, const ReplayObserver::Options& options) {
  const Simulation simulation{stream, backend, contracts, {options.layer}, last_step,
                              comparable_taps(stream, recording, options.layer)};
  const auto pool = backend.make_pool(stream.model(), simulation.layers);
  ReplayObserver observer(stream, recording, options);
  simulate(simulation, *pool, observer);
  return {observer.comparer(), observer.snapshots(), observer.state_differs()};
}

}  // namespace gdnsim
