// Finding repeated rows by the digests of all that went into them, and comparing what was recorded for them.
#include "gdnsim/repeats.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>
#include <tuple>
#include <utility>

#include "gdnsim/digest.hpp"
#include "gdnsim/log.hpp"
#include "replay/repeat_history.hpp"

namespace gdnsim {
namespace {

struct DigestHash {
  std::size_t operator()(const Digest128& digest) const { return static_cast<std::size_t>(digest[0]); }
};

/// Where a row, or the state after it, was first seen.
struct Seen {
  RepeatPlace place;
  std::size_t snapshot = 0;  // of the recording's snapshots; for states
  Digest128 values_z{};      // the row's; for rows
};

/// Remembers so many keys, the latest ones.
class Window {
 public:
  explicit Window(std::size_t keys) : keys_(keys) {}
  const Seen* find(const Digest128& key) const {
    const auto found = seen_.find(key);
    return found == seen_.end() ? nullptr : &found->second;
  }
  /// Keeps the first that came with a key. Returns whether another had to leave.
  bool add(const Digest128& key, const Seen& seen) {
    if (!seen_.emplace(key, seen).second) return false;
    order_.push_back(key);
    if (order_.size() <= keys_) return false;
    seen_.erase(order_.front());
    order_.pop_front();
    return true;
  }

 private:
  const std::size_t keys_;
  std::unordered_map<Digest128, Seen, DigestHash> seen_;
  std::deque<Digest128> order_;
};

/// A row's history with this step, without and with z, and with everything else in the launch. Only the norm reads z.
struct RowKeys {
  bool known = false;  // active, and its block's start is shared with another
  Digest128 values{}, values_z{}, launches{};
};

bool precedes(const Repeat& a, const Repeat& b) {
  const auto key = [](const Repeat& r) {
    return std::make_tuple(!r.same_batch, r.second.step, r.layer, r.tap, r.second.row, r.head, r.element);
  };
  return key(a) < key(b);
}

/// The recorded taps of one step of the layer, kept until another is asked for.
class StepTaps {
 public:
  explicit StepTaps(Recording& recording, int layer) : recording_(recording), layer_(layer) {}
  std::span<const std::byte> row(Tap tap, const RepeatPlace& place) {
    if (place.step != step_) have_ = {};
    step_ = place.step;
    Bytes& words = taps_[static_cast<std::size_t>(tap)];
    if (!have_.has(tap)) recording_.read_tap(tap, step_, layer_, words);
    have_.add(tap);
    const std::size_t bytes = shape_of(tap, recording_.model()).bytes();
    return std::span(words).subspan(static_cast<std::size_t>(place.row) * bytes, bytes);
  }

 private:
  Recording& recording_;
  const int layer_;
  std::int64_t step_ = -1;
  TapSet have_;
  std::array<Bytes, kTaps> taps_;
};

/// One layer from the first step on.
class LayerCheck {
 public:
  LayerCheck(Stream& stream, Recording& recording, LoadDigests& loads, int layer, std::size_t window,
             RepeatCheck& result)
      : stream_(stream),
        recording_(recording),
        loads_(loads),
        layer_(layer),
        from_zero_(dynamic_cast<Log*>(&recording) != nullptr),
        histories_(stream, loads, layer, from_zero_),
        rows_(3 * window),
        states_(2 * window),
        earlier_(recording, layer),
        later_(recording, layer),
        result_(result) {}

  void run(const Slice& slice) {
    pick_ = slice.pick;
    count_starts(slice.last_step);
    if (shared_.empty()) return;
    for (std::int64_t step = 0; step < slice.last_step; ++step) {
      const StepPlan plan = stream_.plan(step);
      histories_.events_before(step);
      histories_.move_rows(plan);
      if (plan.path == Path::opaque) {
        histories_.lose(plan);
      } else if (std::ranges::any_of(plan.block, [&](std::int32_t block) { return shared(block); })) {
        read_keys(plan);
        if (step >= slice.first_step) meet_rows(plan);
        if (step >= slice.first_step) meet_states(plan);
        advance(plan);
      }
    }
  }

 private:
  /// Only blocks that began with the same content as another can come to repeat it: which contents those are.
  void count_starts(std::int64_t last_step) {
    Histories starts(stream_, loads_, layer_, from_zero_);
    std::set<Digest128> roots;
    for (std::int64_t step = 0; step < last_step; ++step) {
      const StepPlan plan = stream_.plan(step);
      starts.events_before(step);
      starts.move_rows(plan);
      if (plan.path == Path::opaque) starts.lose(plan);
      for (std::int32_t block : plan.block)
        if (block >= 0) roots.insert(starts.of(block).root);
    }
    for (const Digest128& root : roots)
      if (starts.starts(root) > 1) shared_.insert(root);
  }

  bool shared(std::int32_t block) { return block >= 0 && shared_.contains(histories_.of(block).root); }

  Digest128 part(const Bytes& words, int rows, int row) const {
    const std::size_t bytes = words.size() / static_cast<std::size_t>(rows);
    return xxh3_128(std::span(words).subspan(static_cast<std::size_t>(row) * bytes, bytes));
  }

  void read_keys(const StepPlan& plan) {
    stream_.inputs(plan.step, layer_, inputs_);
    const int rows = plan.rows();
    // A later draft goes on from what the kernel holds, which a store may have rounded (rule A9).
    const Digest128 launch = {static_cast<std::uint64_t>(plan.path) + 256u * static_cast<unsigned>(plan.draft),
                              static_cast<std::uint64_t>(rows)};
    keys_.assign(static_cast<std::size_t>(rows), {});
    Digest128 batch = joined({launch, beside_rows(plan)});
    for (int row = 0; row < rows; ++row) {
      RowKeys& keys = keys_[static_cast<std::size_t>(row)];
      const std::int32_t block = plan.block[static_cast<std::size_t>(row)];
      keys.known = shared(block);
      if (keys.known) {
        keys.values = joined({histories_.of(block).values, launch, part(inputs_.mixed_qkv, rows, row),
                              part(inputs_.a, rows, row), part(inputs_.b, rows, row)});
        keys.values_z = joined({keys.values, part(inputs_.z, rows, row)});
      } else if (block >= 0) {
        keys.values_z = joined({histories_.of(block).root, {static_cast<std::uint64_t>(plan.step), 1}});
      }
      batch = joined({batch, keys.values_z});
    }
    for (std::size_t row = 0; row < keys_.size(); ++row)
      if (keys_[row].known) keys_[row].launches = joined({histories_.of(plan.block[row]).launches, batch, {row, 2}});
  }

  /// What was in the launch but for its rows. Of a mixed step whose tokens are not known nobody knows how long a prefill was:
  /// it is no other step's launch (rule N4 sums by how many tokens there are).
  static Digest128 beside_rows(const StepPlan& plan) {
    const auto present = static_cast<std::uint64_t>(plan.present);
    if (plan.path == Path::mixed && plan.launch_tokens == 0)
      return joined({{present, 0}, {static_cast<std::uint64_t>(plan.step), 3}});
    return {present, static_cast<std::uint64_t>(plan.launch_tokens)};
  }

  void advance(const StepPlan& plan) {
    for (std::size_t row = 0; row < keys_.size(); ++row) {
      if (!keys_[row].known) continue;
      History& history = histories_.of(plan.block[row]);
      history.values = keys_[row].values;
      history.launches = keys_[row].launches;
    }
  }

  /// Both keys of what was seen, and the earlier one that it repeats; one in the same launch goes before the others.
  struct Met {
    const Seen* earlier;
    bool same_batch;
  };
  Met meet(Window& window, const Digest128& launches, const Digest128& values) const {
    if (const Seen* same = window.find(launches)) return {same, true};
    return {window.find(values), false};
  }

  void meet_rows(const StepPlan& plan) {
    for (int row = 0; row < plan.rows(); ++row) {
      const RowKeys& keys = keys_[static_cast<std::size_t>(row)];
      if (!keys.known) continue;
      const RepeatPlace place{plan.step, row, plan.block[static_cast<std::size_t>(row)]};
      Met met = meet(rows_, keys.launches, keys.values_z);
      const Seen* before_norm = met.earlier != nullptr ? nullptr : rows_.find(keys.values);
      // The key with z may be forgotten while a later row's without z is there, of the same z.
      if (before_norm != nullptr && before_norm->values_z == keys.values_z) std::swap(met.earlier, before_norm);
      if (met.earlier != nullptr && pick_.row(plan, row)) compare_taps({*met.earlier, met.same_batch}, place, kTaps);
      if (before_norm != nullptr && pick_.row(plan, row)) compare_other_z(*before_norm, place);
      const Seen here{place, 0, keys.values_z};
      bool left = rows_.add(keys.values, here);
      left |= rows_.add(keys.values_z, here);
      result_.forgotten += rows_.add(keys.launches, here) || left;
    }
  }

  void compare_other_z(const Seen& earlier, const RepeatPlace& place) {
    ++result_.other_z;
    compare_taps({earlier, false}, place, static_cast<std::size_t>(Tap::rstd));
  }

  struct Earlier {
    Seen seen;
    bool same_batch;
  };

  /// The taps before number `end`.
  void compare_taps(const Earlier& earlier, const RepeatPlace& place, std::size_t end) {
    ++result_.repeats;
    result_.same_batch += earlier.same_batch;
    const TapSet taps = recording_.taps(layer_);
    for (std::size_t t = 0; t < end; ++t) {
      const Tap tap = static_cast<Tap>(t);
      if (taps.has(tap)) compare(tap, earlier, place, earlier_.row(tap, earlier.seen.place), later_.row(tap, place));
    }
  }

  /// The states recorded after the step for blocks that it wrote.
  void meet_states(const StepPlan& plan) {
    const auto snapshots = recording_.snapshots();
    for (; next_snapshot_ < snapshots.size() && snapshots[next_snapshot_].step <= plan.step; ++next_snapshot_) {
      const Snapshot& snapshot = snapshots[next_snapshot_];
      if (snapshot.step != plan.step || snapshot.layer != layer_) continue;
      const auto found = std::ranges::find(plan.block, snapshot.block);
      if (found == plan.block.end()) continue;
      const std::size_t row = static_cast<std::size_t>(found - plan.block.begin());
      if (!keys_[row].known) continue;
      const Seen here{{plan.step, static_cast<int>(row), snapshot.block}, next_snapshot_, {}};
      const Met met = meet(states_, keys_[row].launches, keys_[row].values);
      if (met.earlier != nullptr && met.earlier->place != here.place && pick_.state(plan, snapshot.block))
        compare_states({*met.earlier, met.same_batch}, here);
      states_.add(keys_[row].values, here);
      states_.add(keys_[row].launches, here);
    }
  }

  void compare_states(const Earlier& earlier, const Seen& here) {
    ++result_.snapshots;
    recording_.read_snapshot(recording_.snapshots()[earlier.seen.snapshot], first_recurrent_, first_conv_);
    recording_.read_snapshot(recording_.snapshots()[here.snapshot], second_recurrent_, second_conv_);
    compare(Tap::conv_state, earlier, here.place, first_conv_, second_conv_);
    compare(Tap::state, earlier, here.place, first_recurrent_, second_recurrent_);
  }

  void compare(Tap tap, const Earlier& earlier, const RepeatPlace& place, std::span<const std::byte> first,
               std::span<const std::byte> second) {
    const TapShape shape = shape_of(tap, recording_.model());
    const std::size_t n = static_cast<std::size_t>(shape.elements());
    result_.compared += n;
    if (std::memcmp(first.data(), second.data(), first.size()) == 0) return;
    std::int64_t at = -1;
    for (std::size_t i = 0; i < n; ++i) {
      if (word_at(shape.type, first, i) == word_at(shape.type, second, i)) continue;
      ++result_.differing;
      if (at < 0) at = static_cast<std::int64_t>(i);
    }
    const std::size_t word = static_cast<std::size_t>(at);
    const Repeat repeat{earlier.seen.place,
                        place,
                        layer_,
                        tap,
                        shape.heads > 1 || tap >= Tap::q ? at / shape.per_head : -1,
                        at % shape.per_head,
                        shape.type,
                        word_at(shape.type, first, word),
                        word_at(shape.type, second, word),
                        earlier.same_batch};
    if (!result_.first || precedes(repeat, *result_.first)) result_.first = repeat;
  }

  Stream& stream_;
  Recording& recording_;
  LoadDigests& loads_;
  const int layer_;
  const bool from_zero_;
  Pick pick_;
  std::set<Digest128> shared_;
  Histories histories_;
  Window rows_, states_;
  StepTaps earlier_, later_;
  RepeatCheck& result_;
  std::size_t next_snapshot_ = 0;
  StepInputs inputs_;
  std::vector<RowKeys> keys_;  // [B]
  Bytes first_recurrent_, first_conv_, second_recurrent_, second_conv_;
};

}  // namespace

RepeatCheck check_repeats(Stream& stream, Recording& recording, const Slice& slice, std::size_t window) {
  const Slice part = resolved(slice, whole_of(recording), recording.path());
  RepeatCheck result;
  LoadDigests loads(stream);
  for (int layer : part.layers) LayerCheck(stream, recording, loads, layer, window, result).run(part);
  return result;
}

std::optional<Repeat> find_unrepeatable(Stream& stream, Recording& recording, const Slice& slice) {
  return check_repeats(stream, recording, slice).first;
}

}  // namespace gdnsim
