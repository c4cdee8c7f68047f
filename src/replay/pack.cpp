#include "gdnsim/pack.hpp"

#include <algorithm>

#include "gdnsim/recipe.hpp"
#include "gdnsim/simulator.hpp"
#include "gdnsim/trace.hpp"

namespace gdnsim {
namespace {

constexpr std::int64_t kBack = 16;

struct State {
  Bytes recurrent, conv;
};

/// Steps [first, last) of some layers, as a stream of its own. It starts from loads of the states before it.
class SlicedStream final : public Stream {
 public:
  SlicedStream(PickedStream& whole, const Slice& slice) : whole_(whole), slice_(slice), model_(whole.model()) {
    model_.layer_ids.clear();
    for (int layer : slice.layers) model_.layer_ids.push_back(whole.model().layer_ids[static_cast<std::size_t>(layer)]);
    // A row that is not packed is inactive, but nobody recorded what an inactive row would have held.
    if (!slice.pick.all()) model_.inactive_conv_out = model_.inactive_core_out = InactiveOut::unwritten;
  }

  void start_from(int layer, std::int32_t block, State state) { add_load(0, layer, block, std::move(state)); }
  /// The slice's own events; those of every layer become one for each, so that loads can differ.
  void take_events() {
    for (const Event& event : whole_.events()) {
      if (event.step < slice_.first_step || event.step >= slice_.last_step || !whole_.needs(event.block)) continue;
      if (event.kind == EventKind::allocate || event.kind == EventKind::free) continue;  // who has what began before it
      for (std::size_t i = 0; i < slice_.layers.size(); ++i) {
        if (event.layer != -1 && event.layer != slice_.layers[i]) continue;
        Event here = event;
        here.step -= static_cast<std::int32_t>(slice_.first_step);
        here.layer = static_cast<std::int32_t>(i);
        if (here.kind != EventKind::load) {
          events_.push_back(here);
          continue;
        }
        State state;
        whole_.load_row(event.source, state.recurrent, state.conv);
        add_load(here.step, here.layer, here.block, std::move(state));
      }
    }
  }

  const Model& model() const override { return model_; }
  int version() const override { return whole_.version(); }
  const LayerParams& params(int layer) const override { return whole_.params(of(layer)); }
  std::int64_t steps() const override { return slice_.last_step - slice_.first_step; }
  int rows() const override { return whole_.rows(); }
  StepPlan plan(std::int64_t step) const override {
    StepPlan plan = whole_.plan(step + slice_.first_step);
    plan.step = step;
    for (std::size_t row = 0; row < static_cast<std::size_t>(plan.present); ++row)
      if (plan.block[row] < 0 && !model_.inactive(plan.index[row])) {  // a row that is not packed
        plan.index[row] = model_.sentinel == Sentinel::minus_one ? -1 : 0;
        plan.sequence[row] = -1;
      }
    return plan;
  }
  std::span<const Event> events() const override { return events_; }
  bool has_z(int layer) const override { return whole_.has_z(of(layer)); }
  void inputs(std::int64_t step, int layer, StepInputs& out) override {
    whole_.inputs(step + slice_.first_step, of(layer), out);
  }
  void load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) override {
    recurrent = loads_[static_cast<std::size_t>(source)].recurrent;
    conv = loads_[static_cast<std::size_t>(source)].conv;
  }
  std::string source() override { return "slice"; }

 private:
  int of(int layer) const { return slice_.layers[static_cast<std::size_t>(layer)]; }
  void add_load(std::int32_t step, int layer, std::int32_t block, State state) {
    events_.push_back({step, layer, block, EventKind::load, static_cast<std::int32_t>(loads_.size())});
    loads_.push_back(std::move(state));
  }

  PickedStream& whole_;
  const Slice slice_;
  Model model_;
  std::vector<Event> events_;
  std::vector<State> loads_;
};

/// States before the slice's first step, of every block that something named, and the slice's events.
void fill_starts(PickedStream& stream, Backend& backend, const PackOptions& options, SlicedStream& sliced) {
  const Slice& slice = options.slice;
  const auto pool = backend.make_pool(stream.model(), slice.layers);
  Nobody nobody;
  simulate({stream, backend, options.contracts, slice.layers, slice.first_step, {}}, *pool, nobody);
  State state{Bytes(stream.model().state_bytes()), Bytes(stream.model().conv_bytes())};
  for (std::size_t i = 0; i < slice.layers.size(); ++i)
    for (std::int32_t block : named_blocks(stream, slice.first_step)) {
      if (!stream.needs(block)) continue;
      pool->read(slice.layers[i], block, state.recurrent, state.conv);
      sliced.start_from(static_cast<int>(i), block, state);
    }
  sliced.take_events();
}

TapSet taps_of(const Recording& recording, const Slice& slice) {
  TapSet taps = recording.taps(slice.layers.front());
  for (std::size_t i = 0; i < kTaps; ++i)
    for (int layer : slice.layers)
      if (!recording.taps(layer).has(static_cast<Tap>(i))) taps.remove(static_cast<Tap>(i));
  return taps;
}

/// The recorded snapshots of the slice, as (where it lies in the recording, how the bundle names it).
std::vector<std::pair<Snapshot, Snapshot>> snapshots_of(const Recording& recording, const PickedStream& stream,
                                                        const Slice& slice) {
  std::vector<std::pair<Snapshot, Snapshot>> found;
  for (const Snapshot& snapshot : recording.snapshots()) {
    const auto layer = std::ranges::find(slice.layers, snapshot.layer);
    if (layer == slice.layers.end() || snapshot.step < slice.first_step || snapshot.step >= slice.last_step) continue;
    if (!stream.needs(snapshot.block)) continue;
    found.push_back({snapshot,
                     {snapshot.step - slice.first_step, static_cast<int>(layer - slice.layers.begin()), snapshot.block,
                      static_cast<std::int64_t>(found.size())}});
  }
  return found;
}

/// Rows that are not packed are inactive in the bundle: zeros.
void clear_rows(const StepPlan& whole, const StepPlan& packed, std::size_t bytes, Bytes& words) {
  for (std::size_t row = 0; row < whole.block.size(); ++row)
    if (whole.block[row] >= 0 && packed.block[row] < 0)
      std::fill_n(words.begin() + static_cast<std::ptrdiff_t>(row * bytes), bytes, std::byte{0});
}

}  // namespace

Slice slice_of(const Divergence& divergence) {
  const std::int64_t first = std::max({std::int64_t{0}, divergence.from_step - 1, divergence.step - kBack});
  return {{divergence.layer}, std::min(first, divergence.step), divergence.step + 1};
}

void pack(Stream& whole, Recording& recording, Backend& backend, const std::string& path, const PackOptions& options) {
  const Slice& slice = options.slice;
  PickedStream stream(whole, slice);
  SlicedStream sliced(stream, slice);
  fill_starts(stream, backend, options, sliced);
  const auto snapshots = snapshots_of(recording, stream, slice);
  TraceHeader header = trace_header_of(sliced);
  header.taps = taps_of(recording, slice);
  for (const auto& [from, to] : snapshots) header.snapshots.push_back(to);
  header.provenance = options.provenance;
  const auto writer = create_trace(path, header, options.force);
  copy_stream(sliced, *writer);
  Bytes words, conv;
  for (std::int64_t step = slice.first_step; step < slice.last_step; ++step)
    for (std::size_t layer = 0; layer < slice.layers.size(); ++layer)
      for (std::size_t i = 0; i < kTaps; ++i) {
        if (!header.taps.has(static_cast<Tap>(i))) continue;
        recording.read_tap(static_cast<Tap>(i), step, slice.layers[layer], words);
        clear_rows(whole.plan(step), stream.plan(step), shape_of(static_cast<Tap>(i), whole.model()).bytes(), words);
        writer->write_tap(static_cast<Tap>(i), step - slice.first_step, static_cast<int>(layer), words);
      }
  for (const auto& [from, to] : snapshots) {
    recording.read_snapshot(from, words, conv);
    writer->write_snapshot(to.at, words, conv);
  }
  writer->finish();
}

}  // namespace gdnsim
