// The steps run in a pool of poison, and again with the inputs of inactive rows poisoned.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/forwarding_backend.hpp"
#include "core/pool_digest.hpp"
#include "gdnsim/digest.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/poison.hpp"
#include "gdnsim/stream_view.hpp"
#include "gdnsim/words.hpp"

namespace gdnsim {
namespace {

/// The first word that is poison.
std::optional<std::size_t> first_poison(std::span<const std::byte> words, DType type) {
  for (std::size_t i = 0; i < words.size() / size_of(type); ++i)
    if (poison_of(type, word_at(type, words, i))) return i;
  return std::nullopt;
}

/// Elements of a head of a tap, or of a column of the window.
std::int64_t line_of(const Model& model, Tap tap) {
  return tap == Tap::conv_state ? model.dim() : shape_of(tap, model).per_head;
}

PoisonRead place_of(const Model& model, const StepPlan& plan, int layer, int row, Tap tap, std::size_t element) {
  PoisonRead read;
  read.step = plan.step, read.layer = layer, read.row = row, read.tap = tap;
  if (row >= 0) read.sequence = plan.sequence[static_cast<std::size_t>(row)];
  if (row >= 0) read.block = plan.start(static_cast<std::size_t>(row));
  read.head = static_cast<std::int64_t>(element) / line_of(model, tap);
  read.element = static_cast<std::int64_t>(element) % line_of(model, tap);
  return read;
}

/// Stops the run.
struct Found {
  PoisonRead read;
};

/// Looks at what each active row is about to read, and fills the outputs.
class PoisonBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override {
    for (std::size_t row = 0; row < args.plan.block.size(); ++row)
      if (args.plan.block[row] >= 0) require_filled(args, pool, row);
    for (std::size_t i = 0; i < kTaps; ++i) {
      const TapShape shape = shape_of(static_cast<Tap>(i), pool.model());
      if (!outputs.want.has(static_cast<Tap>(i))) continue;
      outputs.taps[i].resize(shape.bytes() * args.plan.block.size());
      fill_words(outputs.taps[i], shape.type, poison_word(shape.type, 0));
    }
    backend_.step(args, pool, outputs);
  }

 private:
  /// The rows that move have moved: what a row's block holds now is what it goes on from.
  void require_filled(const StepArgs& args, Pool& pool, std::size_t row) {
    const Model& model = pool.model();
    look_.at(pool, args.layer, args.plan.block[row]);
    for (const Tap tap : {Tap::state, Tap::conv_state}) {
      const DType type = shape_of(tap, model).type;
      const std::span<const std::byte> words = tap == Tap::state ? look_.recurrent() : look_.conv();
      const std::optional<std::size_t> at = first_poison(words, type);
      if (!at) continue;
      PoisonRead read = place_of(model, args.plan, args.layer, static_cast<int>(row), tap, *at);
      if (model.num_blocks > poison_blocks(type)) read.poison_modulo = poison_blocks(type);
      read.poison = *poison_of(type, word_at(type, words, *at));
      throw Found{read};
    }
  }

  BlockLook look_;
};

/// Makes what is allocated poison again, and looks at what each step left of its outputs. It may look at any block, so the loop
/// goes step by step.
class PoisonWatch final : public Observer {
 public:
  using Look = std::function<bool(const StepView&)>;  // true: enough
  PoisonWatch(TapSet taps, Look look) : taps_(taps), look_(std::move(look)) {}

  void event_applied(const Event& event, int layer, Pool& pool) override {
    if (event.kind == EventKind::allocate) fill_poison(pool, layer, event.block);
  }
  void after(const StepView& view) override {
    for (std::size_t i = 0; view.executed && i < kTaps; ++i)
      if (taps_.has(static_cast<Tap>(i))) require_written(view, static_cast<Tap>(i));
    enough_ = look_(view) || enough_;
  }
  bool enough() const override { return enough_; }

 private:
  /// A tap that was not computed is empty; an inactive row's is +0.
  static void require_written(const StepView& view, Tap tap) {
    const TapShape shape = shape_of(tap, view.pool.model());
    const std::optional<std::size_t> at = first_poison(view.outputs[tap], shape.type);
    if (!at) return;
    const auto elements = static_cast<std::size_t>(shape.elements());
    PoisonRead read =
        place_of(view.pool.model(), view.plan, view.layer, static_cast<int>(*at / elements), tap, *at % elements);
    read.poison = -1;
    throw Found{read};
  }

  const TapSet taps_;
  const Look look_;
  bool enough_ = false;
};

/// The blocks that the steps can read: those that something names or goes on from.
std::vector<std::int32_t> readable_blocks(const Stream& stream, std::int64_t last_step) {
  std::vector<std::int32_t> blocks = named_blocks(stream, last_step);
  for (const Event& event : stream.events())
    if (event.kind == EventKind::copy && event.step < last_step) blocks.push_back(event.source);
  for (std::int64_t step = 0; step < last_step; ++step)
    for (const std::int32_t source : stream.plan(step).source)
      if (source >= 0) blocks.push_back(source);
  std::ranges::sort(blocks);
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return blocks;
}

/// An inactive row of a step that runs.
struct PaddedRow {
  std::int64_t step;
  int row;
};
using Padding = std::span<const PaddedRow>;  // in the order of the steps

std::vector<PaddedRow> padded_rows(const Stream& stream, std::int64_t last_step) {
  std::vector<PaddedRow> rows;
  for (std::int64_t step = 0; step < last_step; ++step) {
    const StepPlan plan = stream.plan(step);
    for (int row = 0; plan.path != Path::opaque && row < plan.rows(); ++row)
      if (plan.block[static_cast<std::size_t>(row)] < 0) rows.push_back({step, row});
  }
  return rows;
}

/// The stream with these rows' inputs poisoned.
class PaddedStream final : public StreamView {
 public:
  PaddedStream(Stream& whole, Padding padding) : StreamView(whole), padding_(padding) {}
  void inputs(std::int64_t step, int layer, StepInputs& out) override {
    whole_.inputs(step, layer, out);
    const auto rows = static_cast<std::size_t>(whole_.rows());
    const DType act = whole_.model().act_dtype;
    for (auto at = std::ranges::lower_bound(padding_, step, {}, &PaddedRow::step);
         at != padding_.end() && at->step == step; ++at)
      for (Bytes* tensor : {&out.mixed_qkv, &out.a, &out.b}) {
        const std::size_t bytes = tensor->size() / rows;
        fill_words(std::span(*tensor).subspan(static_cast<std::size_t>(at->row) * bytes, bytes), act,
                   padding_word(act, at->row));
      }
  }

 private:
  const Padding padding_;
};

/// One thing that a run shows: a row of an output, or one of a block's two states.
struct Piece {
  Tap tap;
  int row;             // -1: no row of the step has the block
  std::int32_t block;  // -1: an inactive row
  Bytes words;
};

class PoisonedRuns {
 public:
  PoisonedRuns(const Simulation& simulation, const RunSteps& run)
      : simulation_(simulation),
        run_(run),
        readable_(readable_blocks(simulation.stream, simulation.last_step)),
        padding_(padded_rows(simulation.stream, simulation.last_step)) {}

  std::optional<PoisonRead> find() {
    pass({}, simulation_.last_step, [this](const StepView& view) {
      if (!padding_.empty()) prints_.push_back(print_of(view));
      return false;
    });
    const std::optional<Place> at = padding_.empty() ? std::nullopt : differs(padding_, simulation_.last_step);
    if (!at) return std::nullopt;
    if (differs({}, at->step + 1))
      throw error("--poison: step ", at->step, ", layer ", at->layer,
                  ": the backend gives other bits when it runs the same steps again (gdnsim check --battery L0)");
    return read_of(culprit(*at), *at);
  }

 private:
  struct Place {
    std::int64_t step;
    int layer;
  };

  void pass(Padding padding, std::int64_t last_step, const PoisonWatch::Look& look) const {
    PoisonBackend backend(simulation_.backend);
    PaddedStream stream(simulation_.stream, padding);
    PoisonWatch watch(simulation_.taps, look);
    const auto pool = backend.make_pool(stream.model(), simulation_.layers);
    for (const std::int32_t block : readable_)
      for (const int layer : simulation_.layers) fill_poison(*pool, layer, block);
    run_({stream, backend, simulation_.contracts, simulation_.layers, last_step, simulation_.taps}, *pool, watch);
  }

  /// Where a run with these rows' inputs poisoned first shows something else.
  std::optional<Place> differs(Padding padding, std::int64_t last_step) const {
    std::optional<Place> place;
    std::size_t at = 0;
    pass(padding, last_step, [&](const StepView& view) {
      if (print_of(view) != prints_[at++] && !place) place = Place{view.step, view.layer};
      return place.has_value();
    });
    return place;
  }

  /// Does a run with these rows' inputs poisoned show something else there? Elsewhere other rows may show.
  bool differs_at(const Place& place, Padding padding) const {
    bool other = false;
    std::size_t at = 0;
    pass(padding, place.step + 1, [&](const StepView& view) {
      const bool same = print_of(view) == prints_[at++];
      if (view.step == place.step && view.layer == place.layer) other = !same;
      return false;
    });
    return other;
  }

  /// The last of the fewest rows, from the first on, that do it.
  PaddedRow culprit(const Place& place) const {
    std::size_t few = 0;
    const auto later = std::ranges::upper_bound(padding_, place.step, {}, &PaddedRow::step);
    for (auto enough = static_cast<std::size_t>(later - padding_.begin()); few + 1 < enough;) {
      const std::size_t middle = (few + enough) / 2;
      (differs_at(place, Padding(padding_).first(middle)) ? enough : few) = middle;
    }
    return padding_[few];
  }

  /// What differs at the place when this row alone, or everything up to it, is poisoned.
  PoisonRead read_of(const PaddedRow& padded, const Place& place) const {
    const auto first = static_cast<std::size_t>(
        std::ranges::find_if(padding_,
                             [&](const PaddedRow& p) { return p.step == padded.step && p.row == padded.row; }) -
        padding_.begin());
    const std::vector<Piece> right = pieces({}, place);
    std::vector<Piece> wrong = pieces(Padding(padding_).subspan(first, 1), place);
    if (!first_difference(right, wrong)) wrong = pieces(Padding(padding_).first(first + 1), place);
    const auto found = first_difference(right, wrong);
    GDNSIM_CHECK(found);
    const Piece& piece = right[found->first];
    const StepPlan plan = simulation_.stream.plan(place.step);
    PoisonRead read = place_of(simulation_.stream.model(), plan, place.layer, piece.row, piece.tap, found->second);
    if (piece.row < 0) read.block = piece.block;
    read.poison = -1, read.padding = padded.row, read.padding_step = padded.step;
    return read;
  }

  /// The piece and the element in it.
  std::optional<std::pair<std::size_t, std::size_t>> first_difference(const std::vector<Piece>& right,
                                                                      const std::vector<Piece>& wrong) const {
    for (std::size_t i = 0; i < right.size(); ++i) {
      const auto [at, other] = std::ranges::mismatch(right[i].words, wrong[i].words);
      if (at == right[i].words.end()) continue;
      const std::size_t word = size_of(shape_of(right[i].tap, simulation_.stream.model()).type);
      return std::pair(i, static_cast<std::size_t>(at - right[i].words.begin()) / word);
    }
    return std::nullopt;
  }

  std::vector<Piece> pieces(Padding padding, const Place& place) const {
    std::vector<Piece> pieces;
    pass(padding, place.step + 1, [&](const StepView& view) {
      if (view.step == place.step && view.layer == place.layer)
        each_piece(view, [&](Tap tap, int row, std::int32_t block, std::span<const std::byte> words) {
          pieces.push_back({tap, row, block, Bytes(words.begin(), words.end())});
        });
      return false;
    });
    return pieces;
  }

  std::uint64_t print_of(const StepView& view) const {
    std::uint64_t print = 0;
    each_piece(view,
               [&](Tap, int, std::int32_t, std::span<const std::byte> words) { print = mix(print + xxh3_64(words)); });
    return print;
  }

  /// What padding must have no say in, in execution order; after the last step every block.
  template <class Use>
  void each_piece(const StepView& view, const Use& use) const {
    for (std::size_t i = 0; view.executed && i < kTaps; ++i) {
      const Tap tap = static_cast<Tap>(i);
      if (tap == Tap::state || tap == Tap::conv_state)
        for (std::size_t row = 0; row < view.plan.block.size(); ++row)
          if (view.plan.block[row] >= 0) use_block(view, tap, static_cast<int>(row), view.plan.block[row], use);
      if (simulation_.taps.has(tap) && !view.outputs[tap].empty()) use_rows(view, tap, use);
    }
    if (view.step + 1 != simulation_.last_step) return;
    for (std::int64_t block = 0; block < view.pool.model().num_blocks; ++block)
      for (const Tap tap : {Tap::conv_state, Tap::state})
        use_block(view, tap, -1, static_cast<std::int32_t>(block), use);
  }

  template <class Use>
  static void use_block(const StepView& view, Tap tap, int row, std::int32_t block, const Use& use) {
    BlockLook look;
    look.at(view.pool, view.layer, block);
    use(tap, row, block, tap == Tap::state ? look.recurrent() : look.conv());
  }

  template <class Use>
  static void use_rows(const StepView& view, Tap tap, const Use& use) {
    const Model& model = view.pool.model();
    const std::size_t bytes = shape_of(tap, model).bytes();
    for (std::size_t row = 0; row < view.plan.block.size(); ++row)
      if (view.plan.block[row] >= 0 || shown_when_inactive(model, tap))
        use(tap, static_cast<int>(row), view.plan.block[row], std::span(view.outputs[tap]).subspan(row * bytes, bytes));
  }

  static bool shown_when_inactive(const Model& model, Tap tap) {
    if (tap == Tap::conv_out) return model.inactive_conv_out == InactiveOut::zero;
    return (tap == Tap::core_out || tap == Tap::norm_out) && model.inactive_core_out == InactiveOut::zero;
  }

  const Simulation& simulation_;
  const RunSteps& run_;
  const std::vector<std::int32_t> readable_;
  const std::vector<PaddedRow> padding_;
  std::vector<std::uint64_t> prints_;  // [steps, layers] of the run without poisoned inputs
};

}  // namespace

std::optional<PoisonRead> find_poison_read(const Simulation& simulation, const RunSteps& run) {
  GDNSIM_CHECK(simulation.first_step == 0);
  try {
    return PoisonedRuns(simulation, run).find();
  } catch (const Found& found) {
    return found.read;
  }
}

}  // namespace gdnsim
