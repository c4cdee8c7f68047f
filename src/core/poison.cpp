#include "gdnsim/poison.hpp"

#include <algorithm>
#include <cstring>

#include "core/forwarding_backend.hpp"
#include "core/pool_digest.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/words.hpp"

namespace gdnsim {
namespace {

constexpr std::uint32_t kF32 = 0x7FA00000u, kF32Blocks = 1u << 21, kBf16 = 0x7FA0u, kBf16Blocks = 32, kF16 = 0x7D00u;

void fill(std::span<std::byte> words, DType type, std::uint32_t word) {
  for (std::size_t i = 0; i < words.size() / size_of(type); ++i)
    std::memcpy(words.data() + i * size_of(type), &word, size_of(type));
}

/// The first word that is poison.
std::optional<std::size_t> first_poison(std::span<const std::byte> words, DType type) {
  for (std::size_t i = 0; i < words.size() / size_of(type); ++i)
    if (poison_of(type, word_at(type, words, i))) return i;
  return std::nullopt;
}

/// Stops the run: the step must not happen.
struct Found {
  PoisonRead read;
};

/// Looks at what each active row is about to read, and at what the step left of the outputs.
class PoisonBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override {
    for (std::size_t row = 0; row < args.plan.block.size(); ++row)
      if (args.plan.block[row] >= 0) require_filled(args, pool, row);
    const Model& model = pool.model();
    for (std::size_t i = 0; i < kTaps; ++i) {
      const TapShape shape = shape_of(static_cast<Tap>(i), model);
      if (!outputs.want.has(static_cast<Tap>(i))) continue;
      outputs.taps[i].resize(shape.bytes() * args.plan.block.size());
      fill(outputs.taps[i], shape.type, poison_word(shape.type, 0));
    }
    backend_.step(args, pool, outputs);
    for (std::size_t i = 0; i < kTaps; ++i)
      if (outputs.want.has(static_cast<Tap>(i))) require_written(args, model, static_cast<Tap>(i), outputs.taps[i]);
  }

 private:
  PoisonRead read_of(const StepArgs& args, std::size_t row, Tap tap) const {
    PoisonRead read;
    read.step = args.plan.step, read.layer = args.layer, read.row = static_cast<int>(row);
    read.sequence = args.plan.sequence[row], read.block = args.plan.start(row), read.tap = tap;
    return read;
  }

  /// The rows that move have moved: what a row's block holds now is what it goes on from.
  void require_filled(const StepArgs& args, Pool& pool, std::size_t row) {
    const Model& model = pool.model();
    look_.at(pool, args.layer, args.plan.block[row]);
    for (const Tap tap : {Tap::state, Tap::conv_state}) {
      const DType type = tap == Tap::state ? model.state_dtype : model.conv_state_dtype;
      const std::span<const std::byte> words = tap == Tap::state ? look_.recurrent() : look_.conv();
      const std::optional<std::size_t> at = first_poison(words, type);
      if (!at) continue;
      PoisonRead read = read_of(args, row, tap);
      const std::int64_t names = type == DType::f32 ? kF32Blocks : kBf16Blocks;
      if (model.num_blocks > names) read.poison_modulo = names;
      const std::int64_t line = tap == Tap::state ? 1LL * model.V * model.K : model.dim();
      read.poison = *poison_of(type, word_at(type, words, *at));
      read.head = static_cast<std::int64_t>(*at) / line, read.element = static_cast<std::int64_t>(*at) % line;
      throw Found{read};
    }
  }

  /// A tap that was not computed is empty; an inactive row's is +0.
  void require_written(const StepArgs& args, const Model& model, Tap tap, const Bytes& words) const {
    const TapShape shape = shape_of(tap, model);
    const std::optional<std::size_t> at = first_poison(words, shape.type);
    if (!at) return;
    const std::int64_t i = static_cast<std::int64_t>(*at) % shape.elements();
    PoisonRead read = read_of(args, *at / static_cast<std::size_t>(shape.elements()), tap);
    read.poison = -1, read.head = i / shape.per_head, read.element = i % shape.per_head;
    throw Found{read};
  }

  BlockLook look_;
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

/// Makes what is allocated poison again. It may look at any block, so the loop goes step by step.
class Refill final : public Observer {
 public:
  void event_applied(const Event& event, int layer, Pool& pool) override {
    if (event.kind == EventKind::allocate) fill_poison(pool, layer, event.block);
  }
};

}  // namespace

std::uint32_t poison_word(DType type, std::int32_t block) {
  const auto number = static_cast<std::uint32_t>(block);
  if (type == DType::f16) return kF16;
  return type == DType::f32 ? kF32 + number % kF32Blocks : kBf16 + number % kBf16Blocks;
}

std::optional<std::int32_t> poison_of(DType type, std::uint32_t word) {
  if (type == DType::f16) return word == kF16 ? std::optional<std::int32_t>(0) : std::nullopt;
  const std::uint32_t first = type == DType::f32 ? kF32 : kBf16, count = type == DType::f32 ? kF32Blocks : kBf16Blocks;
  if (word < first || word >= first + count) return std::nullopt;
  return static_cast<std::int32_t>(word - first);
}

void fill_poison(Pool& pool, int layer, std::int32_t block) {
  const Model& model = pool.model();
  Bytes recurrent(model.state_bytes()), conv(model.conv_bytes());
  fill(recurrent, model.state_dtype, poison_word(model.state_dtype, block));
  fill(conv, model.conv_state_dtype, poison_word(model.conv_state_dtype, block));
  pool.write(layer, block, recurrent, conv);
}

std::string PoisonRead::text() const {
  const std::string place = "step " + std::to_string(step) + ", row " + std::to_string(row) + ", sequence " +
                            std::to_string(sequence) + ", layer " + std::to_string(layer) + ", ";
  const std::string at = std::to_string(head) + " element " + std::to_string(element);
  if (poison < 0) return "output never written: " + place + std::string(name_of(tap)) + " head " + at;
  const std::string where = tap == Tap::state ? "recurrent state head " + at : "conv state column " + at;
  const bool own = named() == block;
  const std::string modulo = own || poison_modulo == 0 ? "" : " (modulo " + std::to_string(poison_modulo) + ")";
  std::string text = "poison of block " + std::to_string(named()) + modulo + " read: " + place + where;
  if (!own) text += " (the row goes on from block " + std::to_string(block) + ")";
  return text;
}

std::int32_t PoisonRead::named() const {
  const bool own = poison_modulo > 0 && block % poison_modulo == poison;
  return own ? block : poison;
}

std::optional<PoisonRead> find_poison_read(const Simulation& simulation) {
  GDNSIM_CHECK(simulation.first_step == 0);
  const Model& model = simulation.stream.model();
  PoisonBackend backend(simulation.backend);
  Refill refill;
  const auto pool = backend.make_pool(model, simulation.layers);
  for (const std::int32_t block : readable_blocks(simulation.stream, simulation.last_step))
    for (int layer : simulation.layers) fill_poison(*pool, layer, block);
  const Simulation poisoned{simulation.stream,    backend,        simulation.contracts, simulation.layers,
                            simulation.last_step, simulation.taps};
  try {
    simulate(poisoned, *pool, refill);
  } catch (const Found& found) {
    return found.read;
  }
  return std::nullopt;
}

}  // namespace gdnsim
