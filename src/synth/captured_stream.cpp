// Captured streams: the tokens that were captured, laid out again for as many steps as are asked for.
#include <cstring>
#include <sstream>

#include "gdnsim/error.hpp"
#include "synth/captured.hpp"

namespace gdnsim {
namespace {

class CapturedStream final : public Stream {
 public:
  CapturedStream(std::shared_ptr<const Captured> captured, Extend extend, std::int64_t steps, std::uint64_t seed);

  const Model& model() const override { return model_; }
  const LayerParams& params(int layer) const override { return captured_->params.at(static_cast<std::size_t>(layer)); }
  std::int64_t steps() const override { return steps_; }
  int rows() const override { return captured_->rows(); }
  StepPlan plan(std::int64_t step) const override;
  std::span<const Event> events() const override { return events_; }
  bool has_z(int layer) const override { return captured_->has_z.at(static_cast<std::size_t>(layer)); }
  void inputs(std::int64_t step, int layer, StepInputs& out) override;
  void load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) override;
  std::string source() override;

 private:
  void add_events();
  void pick_offsets();
  void fill_token(int layer, std::size_t row, std::int64_t token, const LinePiece& piece, std::byte* out) const;
  void draw_token(const Address& address, const LineStatistics& statistics, const LinePiece& piece,
                  std::byte* out) const;

  const std::shared_ptr<const Captured> captured_;
  const Extend extend_;
  const std::int64_t steps_;
  const std::uint64_t seed_;
  Model model_;
  std::vector<Event> events_;
  std::vector<const CapturedStart*> loads_;
  std::vector<std::int64_t> offsets_;  // [B]
};

CapturedStream::CapturedStream(std::shared_ptr<const Captured> captured, Extend extend, std::int64_t steps,
                               std::uint64_t seed)
    : captured_(std::move(captured)), extend_(extend), steps_(steps), seed_(seed), model_(captured_->model) {
  if (steps_ < 1) throw error("captured stream: expected at least 1 step, found ", steps_);
  model_.num_blocks = captured_->rows() + 1;  // block 0 is nobody's under any sentinel
  model_.block_stride = model_.conv_block_stride = 0;
  model_.index_bits = 64;
  pick_offsets();
  add_events();
}

void CapturedStream::pick_offsets() {
  for (std::size_t row = 0; row < captured_->lengths.size(); ++row) {
    const Address address{seed_, Tensor::captured_offset, 0, static_cast<std::uint32_t>(row), 0};
    const PhiloxCounter words = philox(address.counter(), address.key());
    const std::uint64_t word = static_cast<std::uint64_t>(words[0]) << 32 | words[1];
    const bool begins = extend_ == Extend::fresh || seed_ == 0;
    offsets_.push_back(begins ? 0
                              : static_cast<std::int64_t>(word % static_cast<std::uint64_t>(captured_->lengths[row])));
  }
}

void CapturedStream::add_events() {
  for (int layer : captured_->layers) {
    std::int32_t block = 0;
    for (const CapturedStart& start : captured_->of(layer).starts) {
      Event event{0, layer, ++block, EventKind::zero};
      if (!start.recurrent.empty()) {
        event.kind = EventKind::load;
        event.source = static_cast<std::int32_t>(loads_.size());
        loads_.push_back(&start);
      }
      events_.push_back(event);
    }
  }
}

StepPlan CapturedStream::plan(std::int64_t step) const {
  GDNSIM_CHECK(step >= 0 && step < steps_);
  std::vector<std::int32_t> index;
  std::vector<std::int64_t> sequence;
  for (int row = 0; row < rows(); ++row) index.push_back(row + 1), sequence.push_back(row);
  return make_plan(model_, step, Path::decode, index, sequence, rows(), "captured stream");
}

void CapturedStream::inputs(std::int64_t step, int layer, StepInputs& out) {
  GDNSIM_CHECK(step >= 0 && step < steps_);
  for (const LinePiece& piece : captured_->pieces(layer)) {
    Bytes& bytes = out.*piece.bytes;
    bytes.resize(offsets_.size() * piece.size);
    for (std::size_t row = 0; row < offsets_.size() && piece.size > 0; ++row)
      fill_token(layer, row, offsets_[row] + step, piece, bytes.data() + row * piece.size);
  }
}

void CapturedStream::fill_token(int layer, std::size_t row, std::int64_t token, const LinePiece& piece,
                                std::byte* out) const {
  const CapturedLayer& kept = captured_->of(layer);
  const std::int64_t length = captured_->lengths[row];
  if (extend_ == Extend::fresh && token >= length) {
    const Address address{seed_, piece.tensor, model_.layer_ids[static_cast<std::size_t>(layer)],
                          static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(token)};
    return draw_token(address, kept.statistics, piece, out);
  }
  const std::size_t line = static_cast<std::size_t>(token % length) * captured_->line_bytes(layer);
  std::memcpy(out, kept.tokens[row].data() + line + piece.begin, piece.size);
}

/// Normal draws, each with its element's mean and deviation.
void CapturedStream::draw_token(const Address& address, const LineStatistics& statistics, const LinePiece& piece,
                                std::byte* out) const {
  const std::size_t word = size_of(model_.act_dtype), first = piece.begin / word;
  fill_normals(address, std::span(statistics.mean).subspan(first, piece.size / word),
               std::span(statistics.deviation).subspan(first, piece.size / word), model_.act_dtype,
               std::span(out, piece.size));
}

void CapturedStream::load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) {
  const CapturedStart& start = *loads_.at(static_cast<std::size_t>(source));
  recurrent = start.recurrent;
  conv = start.conv;
}

std::string CapturedStream::source() {
  std::ostringstream text;
  text << "captured:" << captured_->source << ";extend=" << name_of(extend_) << ";rows=" << rows()
       << ";steps=" << steps_ << ";seed=" << seed_;
  return text.str();
}

}  // namespace

std::string_view name_of(Extend value) { return value == Extend::loop ? "loop" : "fresh"; }

std::optional<Extend> extend_from(std::string_view name) {
  if (name == "loop") return Extend::loop;
  if (name == "fresh") return Extend::fresh;
  return std::nullopt;
}

std::unique_ptr<Stream> make_captured_stream(std::shared_ptr<const Captured> captured, Extend extend,
                                             std::int64_t steps, std::uint64_t seed) {
  return std::make_unique<CapturedStream>(std::move(captured), extend, steps, seed);
}

}  // namespace gdnsim
