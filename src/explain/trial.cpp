#include "explain/trial.hpp"

#include <algorithm>
#include <cstring>

#include "explain/twisted.hpp"
#include "gdnsim/digest.hpp"
#include "gdnsim/log.hpp"
#include "gdnsim/simulator.hpp"
#include "replay/replay_run.hpp"

namespace gdnsim::explaining {
namespace {

std::uint64_t count_differing(DType type, std::span<const std::byte> got, std::span<const std::byte> want) {
  if (std::memcmp(got.data(), want.data(), want.size()) == 0) return 0;
  const std::size_t width = size_of(type);
  std::uint64_t count = 0;
  for (std::size_t at = 0; at < want.size(); at += width)
    count += std::memcmp(got.data() + at, want.data() + at, width) != 0;
  return count;
}

/// Replaces events, compares units, collects what a trial is asked for.
class TrialObserver final : public Observer {
 public:
  TrialObserver(const Bench& bench, const TwistList& twists, const TwistedStream& stream, Still& still,
                bool until_wrong)
      : bench_(bench),
        still_(still),
        twists_(twists),
        stream_(stream),
        until_wrong_(until_wrong),
        log_(dynamic_cast<Log*>(&bench.recording)),
        taps_(comparable_taps(bench.stream, bench.recording, bench.layer)),
        events_before_(first_event_from(bench.stream, bench.recording.first_step())) {}

  std::function<void(const StepView&)> on_step;
  bool comparing = true;
  Outcome outcome;

  void event_coming(const Event& event, int, Pool& pool) override { judge_event(event, pool, false); }

  void event_applied(const Event& event, int layer, Pool& pool) override {
    touched.insert(event.block);
    const std::int64_t at = number_of(event);
    for (const Twist* twist : twists_)
      if (twist->event == at && twist->instead) twist->instead(pool, layer);
    judge_event(event, pool, true);
  }

  void before(std::int64_t, int layer, const StepPlan& plan, Pool& pool) override {
    still_.clear();
    for (std::size_t row = 0; row < plan.source.size(); ++row)
      if (plan.start(row) != plan.block[row]) still_[plan.block[row]] = read_words(pool, layer, plan.block[row]);
  }

  void after(const StepView& view) override {
    for (std::int32_t block : view.plan.block)
      if (block >= 0) touched.insert(block);
    if (comparing && view.step >= bench_.first_step) compare(view);
    if (on_step) on_step(view);
  }
  bool enough() const override { return until_wrong_ && !outcome.wrong.empty(); }

  std::set<std::int32_t> touched;

 private:
  std::int64_t number_of(const Event& event) const { return &event - stream_.events().data(); }

  /// A log's digests around an event, each one unit. Twists may have changed what the event is.
  void judge_event(const Event& event, const Pool& pool, bool after) {
    if (!comparing || !logs_event(log_, event, bench_.first_step)) return;
    if (!bench_.pick.state(bench_.stream.plan(event.step), event.block)) return;
    const std::int64_t number = number_of(event);
    const Event& told = bench_.stream.events()[static_cast<std::size_t>(number)];
    const EventDigests logged = log_event(*log_, told, number - events_before_, bench_.layer);
    const Unit unit{event.step, Tap::state, -1, event.block, 2 * number + after};
    ++outcome.units;
    if (pool.digest(bench_.layer, event.block).block != (after ? logged.after : logged.before) && !forgiven(unit))
      outcome.wrong.push_back({unit, 1, {}, {}});
  }

  void compare(const StepView& view) {
    const std::size_t before = outcome.wrong.size();
    for (std::size_t i = 0; view.executed && i < kTaps; ++i)
      if (taps_.has(static_cast<Tap>(i))) compare_tap(view, static_cast<Tap>(i));
    if (view.executed) compare_snapshots(view);
    if (view.executed && log_ != nullptr && !snapshot_here_) compare_digests(view);
    std::sort(outcome.wrong.begin() + static_cast<std::ptrdiff_t>(before), outcome.wrong.end(),
              [](const WrongUnit& a, const WrongUnit& b) { return a.unit < b.unit; });
  }

  void judge(const Unit& unit, DType type, std::span<const std::byte> got, std::span<const std::byte> want) {
    ++outcome.units;
    outcome.elements += want.size() / size_of(type);
    const auto differing = count_differing(type, got, want);
    if (differing == 0 || forgiven(unit)) return;
    WrongUnit wrong{unit, differing, {}, {}};
    if (outcome.wrong.empty() || outcome.wrong.front().unit.step == unit.step) {
      wrong.got.assign(got.begin(), got.end());
      wrong.want.assign(want.begin(), want.end());
    }
    outcome.wrong.push_back(std::move(wrong));
  }

  bool forgiven(const Unit& unit) const {
    return std::ranges::any_of(
        twists_, [&](const Twist* twist) { return std::ranges::find(twist->forgiven, unit) != twist->forgiven.end(); });
  }

  void compare_tap(const StepView& view, Tap tap) {
    const Model& model = bench_.stream.model();
    const TapShape shape = shape_of(tap, model);
    if (!read_picked(bench_.recording, bench_.pick, view.plan, tap, bench_.layer, want_)) return;
    for (int row : bench_.pick.rows_of(view.plan)) {
      const std::int32_t block = view.plan.block[static_cast<std::size_t>(row)];
      if (block < 0 && !compared_when_inactive(model, tap)) continue;
      const std::size_t at = static_cast<std::size_t>(row) * shape.bytes();
      judge({view.step, tap, row, block}, shape.type, std::span(view.outputs[tap]).subspan(at, shape.bytes()),
            std::span(want_).subspan(at, shape.bytes()));
    }
  }

  void compare_snapshots(const StepView& view) {
    const Model& model = bench_.stream.model();
    const auto snapshots = bench_.recording.snapshots();
    snapshot_here_ = false;
    auto at = std::ranges::lower_bound(snapshots, view.step, {}, &Snapshot::step);
    for (; at != snapshots.end() && at->step == view.step; ++at) {
      if (at->layer != bench_.layer || !bench_.pick.state(view.plan, at->block)) continue;
      snapshot_here_ = true;
      bench_.recording.read_snapshot(*at, want_, want_conv_);
      const Words ours = read_words(view.pool, bench_.layer, at->block);
      const auto found = std::ranges::find(view.plan.block, at->block);
      const int row = found == view.plan.block.end() ? -1 : static_cast<int>(found - view.plan.block.begin());
      judge({view.step, Tap::conv_state, row, at->block}, model.conv_state_dtype, ours.conv, want_conv_);
      judge({view.step, Tap::state, row, at->block}, model.state_dtype, ours.recurrent, want_);
    }
  }

  /// A log without states has digests: each is one unit.
  void compare_digests(const StepView& view) {
    const std::size_t HV = static_cast<std::size_t>(bench_.stream.model().HV);
    const auto heads = log_->digest_recurrent(view.step, bench_.layer),
               convs = log_->digest_conv(view.step, bench_.layer);
    for (std::size_t row = 0; row < view.plan.block.size(); ++row) {
      const std::int32_t block = view.plan.block[row];
      if (block < 0 || !bench_.pick.row(view.plan, static_cast<int>(row))) continue;
      const Words ours = read_words(view.pool, bench_.layer, block);
      const BlockDigest digest = digest_block(bench_.stream.model(), ours.recurrent, ours.conv);
      std::uint64_t wrong = 0;
      for (std::size_t head = 0; head < HV; ++head) wrong += digest.heads[head] != heads[row * HV + head];
      outcome.units += 2;
      const int r = static_cast<int>(row);
      add_digest({view.step, Tap::conv_state, r, block}, digest.conv != convs[row] ? 1 : 0);
      add_digest({view.step, Tap::state, r, block}, wrong);
    }
  }

  void add_digest(const Unit& unit, std::uint64_t differing) {
    if (differing > 0 && !forgiven(unit)) outcome.wrong.push_back({unit, differing, {}, {}});
  }

  const Bench& bench_;
  Still& still_;
  const TwistList& twists_;
  const TwistedStream& stream_;
  const bool until_wrong_;
  Log* const log_;
  const TapSet taps_;
  const std::int64_t events_before_;  // events of the stream before the log's first
  bool snapshot_here_ = false;
  Bytes want_, want_conv_;
};

TwistList list_of(const std::vector<Twist>& accepted, const std::vector<Twist>& more) {
  TwistList list;
  for (const Twist& twist : accepted) list.push_back(&twist);
  for (const Twist& twist : more) list.push_back(&twist);
  return list;
}

/// Runs the layer with twists; `use` sees the observer before the run and `done` after it.
template <class Use, class Done>
void run_twisted(const Bench& bench, const TwistList& twists, const Checkpoint& from, std::int64_t last_step,
                 bool until_wrong, TapSet taps, const Use& use, const Done& done) {
  TwistedStream stream(bench.stream, twists, bench.layer);
  TwistedBackend backend(bench.backend, twists);
  const auto pool = backend.make_pool(stream.model(), {bench.layer});
  for (const auto& [block, words] : from.blocks) write_words(*pool, bench.layer, block, words);
  TrialObserver observer(bench, twists, stream, backend.still, until_wrong);
  for (const auto& [block, words] : from.blocks) observer.touched.insert(block);
  for (const Twist* twist : twists) observer.touched.insert(twist->blocks.begin(), twist->blocks.end());
  use(observer);
  simulate({stream, backend, bench.contracts, {bench.layer}, last_step, taps, from.step}, *pool, observer);
  done(observer, *pool);
}

constexpr TapSet all_taps() {
  TapSet taps;
  for (std::size_t i = 0; i < kTaps; ++i) taps.add(static_cast<Tap>(i));
  return taps;
}

}  // namespace

const WrongUnit* Outcome::find(const Unit& unit) const {
  const auto found = std::ranges::find(wrong, unit, &WrongUnit::unit);
  return found == wrong.end() ? nullptr : &*found;
}

bool compared_when_inactive(const Model& model, Tap tap) {
  if (tap == Tap::conv_out) return model.inactive_conv_out == InactiveOut::zero;
  return (tap == Tap::core_out || tap == Tap::norm_out) && model.inactive_core_out == InactiveOut::zero;
}

void Trials::accept(const std::vector<Twist>& twists) {
  accepted_.insert(accepted_.end(), twists.begin(), twists.end());
}

Outcome Trials::run(const std::vector<Twist>& twists, const Checkpoint& from, std::int64_t last_step,
                    bool until_wrong) {
  Outcome outcome;
  const TapSet taps = comparable_taps(bench_.stream, bench_.recording, bench_.layer);
  run_twisted(
      bench_, list_of(accepted_, twists), from, last_step, until_wrong, taps, [](TrialObserver&) {},
      [&](TrialObserver& observer, Pool&) { outcome = std::move(observer.outcome); });
  return outcome;
}

Checkpoint Trials::checkpoint(std::int64_t step) {
  Checkpoint at{step, {}};
  if (step == 0) return at;
  run_twisted(
      bench_, list_of(accepted_, {}), {}, step, false, {}, [](TrialObserver& observer) { observer.comparing = false; },
      [&](TrialObserver& observer, Pool& pool) {
        for (std::int32_t block : observer.touched) at.blocks[block] = read_words(pool, bench_.layer, block);
      });
  return at;
}

History Trials::history(std::int64_t first, std::int64_t last) {
  History history;
  const auto keep = [&](const StepView& view) {
    if (view.step < first) return;
    for (std::int32_t block : view.plan.block)
      if (block >= 0) history.after[{view.step, block}] = read_words(view.pool, view.layer, block);
  };
  run_twisted(
      bench_, list_of(accepted_, {}), {}, last, false, {},
      [&](TrialObserver& observer) {
        observer.comparing = false;
        observer.on_step = keep;
      },
      [](TrialObserver&, Pool&) {});
  return history;
}

StepOutputs Trials::outputs(const std::vector<Twist>& twists, const Checkpoint& from, std::int64_t step) {
  StepOutputs outputs;
  watch(twists, from, step + 1, [&](const StepView& view) {
    if (view.step == step) outputs = view.outputs;
  });
  return outputs;
}

void Trials::watch(const std::vector<Twist>& twists, const Checkpoint& from, std::int64_t last_step,
                   const std::function<void(const StepView&)>& look) {
  run_twisted(
      bench_, list_of(accepted_, twists), from, last_step, false, all_taps(),
      [&](TrialObserver& observer) {
        observer.comparing = false;
        observer.on_step = look;
      },
      [](TrialObserver&, Pool&) {});
}

}  // namespace gdnsim::explaining
