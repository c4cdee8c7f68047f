#include "gdnsim/diff.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "gdnsim/error.hpp"
#include "gdnsim/log.hpp"
#include "gdnsim/trace.hpp"
#include "log/events.hpp"
#include "replay/fed_apart.hpp"

namespace gdnsim {
namespace {

/// The fields that say what a run computes must agree; what a run was told about its provider may differ.
void require_same_model(const Recording& a, const Recording& b) {
  const Model &x = a.model(), &y = b.model();
  const auto same = [&](const char* field, auto left, auto right) {
    if (left != right) throw error("model/", field, ": ", a.path(), " has ", left, ", ", b.path(), " has ", right);
  };
  same("num_k_heads", x.H, y.H);
  same("num_v_heads", x.HV, y.HV);
  same("head_k_dim", x.K, y.K);
  same("head_v_dim", x.V, y.V);
  same("conv_width", x.W, y.W);
  same("act_dtype", name_of(x.act_dtype), name_of(y.act_dtype));
  same("state_dtype", name_of(x.state_dtype), name_of(y.state_dtype));
  same("conv_state_dtype", name_of(x.conv_state_dtype), name_of(y.conv_state_dtype));
}

void require_same_plan(const Recording& left, const Recording& right, const StepPlan& a, const StepPlan& b) {
  const auto other = [&](const std::string& row, auto x, auto y) {
    return error("step ", a.step, row, ": the runs are not of the same batch: ", left.path(), " has ", x, ", ",
                 right.path(), " ", y);
  };
  const auto from = [](const StepPlan& plan, std::size_t row) {
    return "draft " + std::to_string(plan.draft) + " from block " + std::to_string(plan.start(row));
  };
  if (a.path != b.path) throw other("", "path " + std::string(name_of(a.path)), name_of(b.path));
  if (a.rows() != b.rows()) throw other("", std::to_string(a.rows()) + " rows", b.rows());
  for (std::size_t row = 0; row < a.block.size(); ++row) {
    const std::string where = ", row " + std::to_string(row);
    if (a.block[row] != b.block[row]) throw other(where, "block " + std::to_string(a.block[row]), b.block[row]);
    if (a.start(row) != b.start(row) || a.draft != b.draft) throw other(where, from(a, row), from(b, row));
  }
}

/// A log that was interrupted lacks steps, even when the other log lacks them too.
void note_incomplete(const char* which, const Recording& recording, std::vector<std::string>& missing) {
  const auto* log = dynamic_cast<const Log*>(&recording);
  if (log == nullptr || log->steps() == log->declared_steps()) return;
  missing.push_back(std::string("steps: ") + which + " is incomplete: " + std::to_string(log->steps()) + " of " +
                    std::to_string(log->declared_steps()) + " steps");
}

/// What both have: common layers (as positions in A) and steps. What only one has, and was not left out by `asked`, is noted.
Slice common(const Recording& a, const Recording& b, const Slice& asked, std::vector<std::string>& missing) {
  const Slice x = whole_of(a), y = whole_of(b);
  Slice both;
  for (int layer : x.layers)
    if (layer_in(a, b, layer) >= 0) both.layers.push_back(layer);
  both.first_step = std::max(x.first_step, y.first_step);
  both.last_step = std::min(x.last_step, y.last_step);
  if (both.layers.empty() || both.first_step >= both.last_step)
    throw error(a.path(), " and ", b.path(), ": have no layer and step in common");
  const bool all = both.layers.size() == x.layers.size() && both.layers.size() == y.layers.size();
  if (!all && asked.layers.empty()) missing.push_back("they do not hold the same layers");
  if (asked.last_step < 0) note_incomplete("A", a, missing), note_incomplete("B", b, missing);
  const bool first = x.first_step != y.first_step && asked.first_step < 0;
  if (first || (x.last_step != y.last_step && asked.last_step < 0)) {
    std::ostringstream text;
    text << "steps: A has " << x.first_step << ":" << x.last_step << ", B has " << y.first_step << ":" << y.last_step;
    missing.push_back(text.str());
  }
  return both;
}

/// Load rows are each file's own.
bool same_event(const Event& a, const Event& b) {
  return a.kind == b.kind && a.block == b.block && (a.kind != EventKind::copy || a.source == b.source);
}

using SnapshotKey = std::pair<std::int64_t, std::int32_t>;  // step, block
std::map<SnapshotKey, Snapshot> snapshots_of(const Recording& recording, int layer) {
  std::map<SnapshotKey, Snapshot> result;
  for (const Snapshot& s : recording.snapshots())
    if (s.layer == layer) result.emplace(SnapshotKey{s.step, s.block}, s);
  return result;
}

/// One layer of two recordings, step by step.
class LayerDiff {
 public:
  LayerDiff(Recording& a, Recording& b, int layer, const Pick& pick)
      : a_(a),
        b_(b),
        layer_(layer),
        layer_b_(layer_in(a, b, layer)),
        comparer_(a.model(), layer, true),
        log_a_(dynamic_cast<Log*>(&a)),
        log_b_(dynamic_cast<Log*>(&b)) {
    for (std::size_t i = 0; i < kTaps; ++i) {
      const Tap tap = static_cast<Tap>(i);
      const bool in_a = a.taps(layer).has(tap), in_b = b.taps(layer_b_).has(tap);
      if (in_a && in_b)
        taps_.add(tap);
      else if (in_a || in_b)
        lacking_.push_back(std::string(in_a ? "B" : "A") + " lacks " + std::string(name_of(tap)) + " of layer " +
                           std::to_string(layer));
    }
    comparer_.events_unseen();
    comparer_.only(pick);
    in_a_ = snapshots_of(a, layer);
    in_b_ = snapshots_of(b, layer_b_);
  }

  void step(const StepPlan& plan) {
    compare_events(plan);
    if (plan.path != Path::opaque) compare_taps(plan, Tap::conv_acc, Tap::u);
    compare_snapshots(plan);
    compare_digests(plan);
    if (plan.path != Path::opaque) compare_taps(plan, Tap::core_out, Tap::norm_out);
    comparer_.step_done(plan);
  }

  const LayerComparer& comparer() const { return comparer_; }
  std::uint64_t snapshots() const { return snapshots_; }
  bool both_logs() const { return log_a_ != nullptr && log_b_ != nullptr; }
  const std::vector<std::string>& lacking() const { return lacking_; }

 private:
  /// The digests around the events before the step, in order, up to the first that the two do not share.
  void compare_events(const StepPlan& plan) {
    if (!both_logs() || log_a_->header().events.empty() || log_b_->header().events.empty()) return;
    const auto in_a = events_of_layer(*log_a_, plan.step, layer_), in_b = events_of_layer(*log_b_, plan.step, layer_b_);
    for (std::size_t i = 0; i < std::max(in_a.size(), in_b.size()); ++i) {
      const Event* a = i < in_a.size() ? &log_a_->header().events[in_a[i]] : nullptr;
      const Event* b = i < in_b.size() ? &log_b_->header().events[in_b[i]] : nullptr;
      if (a == nullptr || b == nullptr || !same_event(*a, *b)) return note_other_events(plan.step, a, b);
      const auto number = static_cast<std::int64_t>(in_a[i]);
      const EventDigests want = log_a_->digest_event(in_a[i], layer_), got = log_b_->digest_event(in_b[i], layer_b_);
      comparer_.event(plan, {number, *a, false}, got.before, want.before);
      comparer_.event(plan, {number, *a, true}, got.after, want.after);
    }
  }

  void note_other_events(std::int64_t step, const Event* a, const Event* b) {
    if (other_events_) return;
    other_events_ = true;
    const auto words = [](const Event* event) { return event == nullptr ? "none" : event_text(*event); };
    lacking_.push_back("layer " + std::to_string(layer_) + ": events before step " + std::to_string(step) + ": A has " +
                       words(a) + ", B " + words(b) + ": what they left was not compared");
  }

  void compare_taps(const StepPlan& plan, Tap from, Tap to) {
    for (auto i = static_cast<std::size_t>(from); i <= static_cast<std::size_t>(to); ++i) {
      const Tap tap = static_cast<Tap>(i);
      if (!taps_.has(tap)) continue;
      if (!read_picked(a_, comparer_.pick(), plan, tap, layer_, want_)) return;
      read_picked(b_, comparer_.pick(), plan, tap, layer_b_, got_);
      comparer_.tap(tap, plan, got_, want_);
    }
  }

  void compare_snapshots(const StepPlan& plan) {
    paired_.clear();
    for (auto it = in_a_.lower_bound({plan.step, -1}); it != in_a_.end() && it->first.first == plan.step; ++it) {
      if (!comparer_.pick().state(plan, it->second.block)) continue;
      const auto other = in_b_.find(it->first);
      if (other == in_b_.end()) {
        note_unpaired("B", plan.step);
        continue;
      }
      a_.read_snapshot(it->second, want_recurrent_, want_conv_);
      b_.read_snapshot(other->second, got_recurrent_, got_conv_);
      comparer_.state(plan, it->second.block, got_recurrent_, want_recurrent_, got_conv_, want_conv_);
      paired_.insert(it->second.block);
      ++snapshots_;
    }
    for (auto it = in_b_.lower_bound({plan.step, -1}); it != in_b_.end() && it->first.first == plan.step; ++it)
      if (!in_a_.contains(it->first) && comparer_.pick().state(plan, it->second.block)) note_unpaired("A", plan.step);
  }

  /// Two logs have digests of every step, so unpaired snapshots are no gap.
  void note_unpaired(const char* without, std::int64_t step) {
    if (both_logs() || unpaired_) return;
    unpaired_ = true;
    lacking_.push_back(std::string(without) + " lacks a snapshot of layer " + std::to_string(layer_) + " after step " +
                       std::to_string(step));
  }

  /// Digests stand in for states that one of the two did not keep.
  void compare_digests(const StepPlan& plan) {
    if (!both_logs()) return;
    const auto heads_a = log_a_->digest_recurrent(plan.step, layer_),
               heads_b = log_b_->digest_recurrent(plan.step, layer_b_);
    const auto conv_a = log_a_->digest_conv(plan.step, layer_), conv_b = log_b_->digest_conv(plan.step, layer_b_);
    const std::size_t HV = static_cast<std::size_t>(a_.model().HV);
    for (std::size_t row = 0; row < plan.block.size(); ++row) {
      if (plan.block[row] < 0 || paired_.contains(plan.block[row])) continue;
      if (!comparer_.pick().row(plan, static_cast<int>(row))) continue;
      comparer_.digest(plan, static_cast<int>(row), -1, conv_b[row], conv_a[row]);
      for (std::size_t head = 0; head < HV; ++head)
        comparer_.digest(plan, static_cast<int>(row), static_cast<std::int64_t>(head), heads_b[row * HV + head],
                         heads_a[row * HV + head]);
    }
    comparer_.pool_digest(plan, log_b_->digest_pool(plan.step, layer_b_), log_a_->digest_pool(plan.step, layer_));
  }

  Recording &a_, &b_;
  const int layer_, layer_b_;  // positions in A and in B
  LayerComparer comparer_;
  Log *log_a_, *log_b_;
  TapSet taps_;
  std::map<SnapshotKey, Snapshot> in_a_, in_b_;
  std::vector<std::string> lacking_;
  std::set<std::int32_t> paired_;  // blocks whose states were compared after this step
  bool unpaired_ = false, other_events_ = false;
  std::uint64_t snapshots_ = 0;
  Bytes got_, want_, got_recurrent_, got_conv_, want_recurrent_, want_conv_;
};

/// ", first in exp: exact and ex2"
std::string first_field(const ContractSet& a, const ContractSet& b) {
  for (const auto path : {Path::decode, Path::mixed}) {
    const auto x = contract_fields(a.of(path)), y = contract_fields(b.of(path));
    for (std::size_t i = 0; i < x.size(); ++i)
      if (x[i] != y[i] && x[i].first != "shapes")
        return ", first in " + x[i].first + ": " + x[i].second + " and " + y[i].second;
  }
  return "";
}

/// What the two say of themselves: another contract or source explains a difference before any bit is looked at.
void note_provenance(const Recording& a, const Recording& b, std::vector<std::string>& notes) {
  const auto *x = dynamic_cast<const Log*>(&a), *y = dynamic_cast<const Log*>(&b);
  if (x == nullptr || y == nullptr) return;
  if (x->header().events.empty() != y->header().events.empty())
    notes.push_back(std::string(x->header().events.empty() ? "A" : "B") +
                    " holds no events: what they left is compared with the next step's states alone");
  if (x->header().contracts != y->header().contracts)
    notes.push_back("contracts differ: A '" + contract_name(x->header().contracts) + "', B '" +
                    contract_name(y->header().contracts) + "'" +
                    first_field(x->header().contracts, y->header().contracts));
}

/// "Inputs equal" stands only when both runs were fed the same.
void withdraw_equal(Comparison& found) {
  const auto withdraw = [](std::optional<Divergence>& d) {
    if (d && d->inputs == InputsMatched::equal) d->inputs = InputsMatched::unknown;
  };
  withdraw(found.first);
  for (auto& first : found.firsts) withdraw(first);
}

void compare_sources(Recording& a, Recording& b, const Slice& asked, DiffResult& result) {
  const std::string apart = fed_apart(a, b, asked, result.slice);
  if (apart.empty()) return;
  result.notes.push_back(apart);
  withdraw_equal(result.found);
}

}  // namespace

Slice common_slice(const Recording& a, const Recording& b, const Slice& asked, std::vector<std::string>& missing) {
  require_same_model(a, b);
  require_picked(asked.pick, a.model(), a.rows(), a.path());
  return resolved(asked, common(a, b, asked, missing), a.path() + " and " + b.path());
}

DiffResult diff(Recording& a, Recording& b, const Slice& slice,
                const std::function<void(std::int64_t, std::int64_t)>& progress) {
  DiffResult result;
  std::vector<std::string> missing;
  result.slice = common_slice(a, b, slice, missing);
  note_provenance(a, b, result.notes);

  const std::int64_t steps = result.slice.last_step - result.slice.first_step,
                     total = steps * static_cast<std::int64_t>(result.slice.layers.size());
  std::int64_t done = 0;
  result.found.done = true;
  for (int layer : result.slice.layers) {
    LayerDiff one(a, b, layer, result.slice.pick);
    for (std::int64_t step = result.slice.first_step; step < result.slice.last_step; ++step) {
      const StepPlan plan = a.plan(step);
      require_same_plan(a, b, plan, b.plan(step));
      one.step(plan);
      if (progress) progress(++done, total);
    }
    result.found.add(one.comparer());
    result.found.snapshots += one.snapshots();
    missing.insert(missing.end(), one.lacking().begin(), one.lacking().end());
  }

  compare_sources(a, b, slice, result);
  if (result.found.compared() == 0) missing.push_back("no element was compared");
  result.verdict = result.found.differing() > 0 ? Verdict::diverged
                   : missing.empty()            ? Verdict::match
                                                : Verdict::inconclusive;
  if (result.verdict == Verdict::inconclusive) result.inconclusive_because = missing.front();
  result.notes.insert(result.notes.end(), missing.begin(), missing.end());
  return result;
}

}  // namespace gdnsim
