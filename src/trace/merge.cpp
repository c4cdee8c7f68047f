// The tensor-parallel ranks of one rollout as one trace. Everything that belongs to no head has to be the same on every rank;
// where it is not, the files are not of one rollout, and that is said.
#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>

#include "gdnsim/error.hpp"
#include "gdnsim/ranks.hpp"
#include "gdnsim/stream_view.hpp"
#include "log/events.hpp"
#include "trace/rank_heads.hpp"
#include "trace/recording_copy.hpp"

namespace gdnsim {
namespace {

using namespace ranks;
using Traces = std::vector<std::unique_ptr<Trace>>;

std::optional<int> number_of(const Trace& trace, const char* attribute) {
  for (const auto& [name, text] : trace.provenance()) {
    if (name != attribute) continue;
    int number = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failed != std::errc() || end != text.data() + text.size())
      throw error(trace.path(), ": /provenance@", attribute, ": expected a number, found '", text, "'");
    return number;
  }
  return std::nullopt;
}

/// In the order that the files name, where they name one; else as given.
void put_in_order(Traces& traces) {
  std::vector<std::unique_ptr<Trace>> sorted(traces.size());
  const int count = static_cast<int>(traces.size());
  if (std::ranges::none_of(traces, [](const auto& t) { return number_of(*t, kRankAttribute).has_value(); })) return;
  for (auto& trace : traces) {
    const std::optional<int> rank = number_of(*trace, kRankAttribute), size = number_of(*trace, kRanksAttribute);
    if (!rank)
      throw error(trace->path(), ": /provenance@", kRankAttribute, ": missing; the other files name their rank");
    if (size && *size != count)
      throw error(trace->path(), ": rank ", *rank, " of ", *size, ": expected ", *size, " files, one a rank, found ",
                  count);
    if (*rank < 0 || *rank >= count)
      throw error(trace->path(), ": /provenance@", kRankAttribute, ": expected 0..", count - 1, ", found ", *rank);
    auto& place = sorted[static_cast<std::size_t>(*rank)];
    if (place) throw error(trace->path(), ": rank ", *rank, " is ", place->path(), " too");
    place = std::move(trace);
  }
  traces = std::move(sorted);
}

void require(bool same, const Trace& first, const Trace& other, const std::string& what) {
  if (!same) throw error(other.path(), ": ", what, " differs from ", first.path(), ": not ranks of one rollout");
}

bool same_plan(const StepPlan& a, const StepPlan& b) {
  return a.path == b.path && a.index == b.index && a.block == b.block && a.sequence == b.sequence &&
         a.present == b.present && a.draft == b.draft && a.last_draft == b.last_draft && a.source == b.source &&
         a.accepted == b.accepted;
}

void require_one_rollout(Trace& first, Trace& other) {
  require(first.model() == other.model(), first, other, "/model");
  require(first.steps() == other.steps(), first, other, "the number of steps");
  require(first.rows() == other.rows(), first, other, "the number of rows");
  for (int layer = 0; layer < first.model().layers(); ++layer) {
    const std::string at = "/" + std::to_string(layer);
    require(first.params(layer).norm_weight == other.params(layer).norm_weight, first, other,
            "/params" + at + "/norm_weight");
    require(first.params(layer).conv_bias.empty() == other.params(layer).conv_bias.empty(), first, other,
            "/params" + at + "/conv_bias");
    require(first.has_z(layer) == other.has_z(layer), first, other, "/steps" + at + "/z");
    require(first.taps(layer) == other.taps(layer), first, other, "/recorded" + at);
  }
  require(std::ranges::equal(first.events(), other.events(), same_but_load_row), first, other, "/events");
  require(std::ranges::equal(first.snapshots(), other.snapshots(),
                             [](const Snapshot& a, const Snapshot& b) {
                               return a.step == b.step && a.layer == b.layer && a.block == b.block;
                             }),
          first, other, "/recorded/state");
  for (std::int64_t step = 0; step < first.steps(); ++step)
    require(same_plan(first.plan(step), other.plan(step)), first, other, "/steps, step " + std::to_string(step));
}

/// Reads the same thing of every rank and joins it.
class Joined {
 public:
  explicit Joined(const Traces& traces) : traces_(traces), rank_(traces.front()->model()), parts_(traces.size()) {}
  const Model& rank() const { return rank_; }
  std::size_t count() const { return traces_.size(); }
  Trace& trace(std::size_t rank) const { return *traces_[rank]; }
  /// `read` gives rank r's tensor.
  template <class Read>
  Bytes all(const Parts& parts, const Read& read) {
    for (std::size_t rank = 0; rank < count(); ++rank) parts_[rank] = read(rank);
    return join(parts, parts_);
  }
  Bytes states(std::span<const Bytes> recurrent) const {
    return join(value_heads(rank_, rank_.state_bytes() / static_cast<std::size_t>(rank_.HV)), recurrent);
  }
  Bytes windows(std::span<const Bytes> conv) const {
    return join(channels(rank_, size_of(rank_.conv_state_dtype)), conv);
  }

 private:
  const Traces& traces_;
  const Model rank_;
  std::vector<Bytes> parts_;
};

class MergedStream final : public StreamView {
 public:
  explicit MergedStream(Joined& joined) : StreamView(joined.trace(0)), joined_(joined), model_(joined.rank()) {
    const int count = static_cast<int>(joined.count());
    model_.H *= count, model_.HV *= count;
    model_.block_stride = model_.conv_block_stride = 0;  // of a rank's pool
    for (int layer = 0; layer < model_.layers(); ++layer) params_.push_back(join_params(layer));
    for (std::size_t i = 0; i < whole_.events().size(); ++i) {
      events_.push_back(whole_.events()[i]);
      if (events_.back().kind != EventKind::load) continue;
      events_.back().source = static_cast<std::int32_t>(loads_.size());
      loads_.push_back(i);
    }
  }
  const Model& model() const override { return model_; }
  const LayerParams& params(int layer) const override { return params_[static_cast<std::size_t>(layer)]; }
  std::span<const Event> events() const override { return events_; }
  void inputs(std::int64_t step, int layer, StepInputs& out) override {
    inputs_.resize(joined_.count());
    for (std::size_t r = 0; r < inputs_.size(); ++r) joined_.trace(r).inputs(step, layer, inputs_[r]);
    const Model& rank = joined_.rank();
    const std::size_t word = size_of(rank.act_dtype);
    const auto all = [&](const Parts& parts, Bytes StepInputs::*part) {
      return joined_.all(parts, [&](std::size_t r) { return std::move(inputs_[r].*part); });
    };
    out.mixed_qkv = all(channels(rank, word), &StepInputs::mixed_qkv);
    out.a = all(value_heads(rank, word), &StepInputs::a);
    out.b = all(value_heads(rank, word), &StepInputs::b);
    out.z = all(value_heads(rank, word * static_cast<std::size_t>(rank.V)), &StepInputs::z);
  }
  void load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) override {
    const std::size_t event = loads_[static_cast<std::size_t>(source)];
    std::vector<Bytes> states(joined_.count()), windows(joined_.count());
    for (std::size_t r = 0; r < states.size(); ++r)
      joined_.trace(r).load_row(joined_.trace(r).events()[event].source, states[r], windows[r]);
    recurrent = joined_.states(states), conv = joined_.windows(windows);
  }

 private:
  LayerParams join_params(int layer) {
    const Model& rank = joined_.rank();
    const std::size_t word = size_of(rank.act_dtype);
    LayerParams whole;
    for (std::size_t r = 0; r < joined_.count(); ++r) {
      const LayerParams& own = joined_.trace(r).params(layer);
      whole.A_log.insert(whole.A_log.end(), own.A_log.begin(), own.A_log.end());
      whole.dt_bias.insert(whole.dt_bias.end(), own.dt_bias.begin(), own.dt_bias.end());
    }
    whole.conv_weight = joined_.all(channels(rank, word * static_cast<std::size_t>(rank.W)),
                                    [&](std::size_t r) { return joined_.trace(r).params(layer).conv_weight; });
    whole.conv_bias =
        joined_.all(channels(rank, word), [&](std::size_t r) { return joined_.trace(r).params(layer).conv_bias; });
    whole.norm_weight = joined_.trace(0).params(layer).norm_weight;
    return whole;
  }

  Joined& joined_;
  Model model_;
  std::vector<LayerParams> params_;
  std::vector<Event> events_;
  std::vector<std::size_t> loads_;  // the event that a load row belongs to
  std::vector<StepInputs> inputs_;
};

class MergedRecording final : public RecordedShare {
 public:
  explicit MergedRecording(Joined& joined) : joined_(joined) {}
  void tap(Tap tap, std::int64_t step, int layer, Bytes& out) override {
    out = joined_.all(of_tap(joined_.rank(), tap), [&](std::size_t r) {
      Bytes words;
      joined_.trace(r).read_tap(tap, step, layer, words);
      return words;
    });
  }
  void snapshot(std::size_t at, Bytes& recurrent, Bytes& conv) override {
    std::vector<Bytes> states(joined_.count()), windows(joined_.count());
    for (std::size_t r = 0; r < states.size(); ++r)
      joined_.trace(r).read_snapshot(joined_.trace(r).snapshots()[at], states[r], windows[r]);
    recurrent = joined_.states(states), conv = joined_.windows(windows);
  }

 private:
  Joined& joined_;
};

}  // namespace

void merge_ranks(const std::vector<std::string>& paths, const std::string& path, const RankOptions& options) {
  Traces traces;
  for (const std::string& rank : paths) traces.push_back(open_trace(rank));
  put_in_order(traces);
  for (std::size_t rank = 1; rank < traces.size(); ++rank) require_one_rollout(*traces[0], *traces[rank]);
  Joined joined(traces);
  MergedStream stream(joined);
  MergedRecording recording(joined);
  TraceHeader header = header_like(stream, *traces[0]);
  header.provenance = without_ranks(traces[0]->provenance());
  write_share(path, header, stream, recording, options.force, [&](std::int64_t done) {
    if (options.progress) options.progress(done, header.steps);
  });
}

}  // namespace gdnsim
