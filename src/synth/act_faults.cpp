#include "synth/act_faults.hpp"

#include <algorithm>
#include <cstring>

#include "gdnsim/arith.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/poison.hpp"
#include "gdnsim/record.hpp"

namespace gdnsim {
namespace {

using Kind = Fault::Kind;

void take(Fault::Part part, const BlockWords& from, BlockWords& to) {
  if (part != Fault::Part::conv) to.recurrent = from.recurrent;
  if (part != Fault::Part::recurrent) to.conv = from.conv;
}

/// Column j of the window is what lies `by` columns further in memory, zeros beyond its ends.
Bytes window_off_by(const Model& model, const Bytes& conv, int by) {
  const auto columns = static_cast<std::ptrdiff_t>(model.W - 1);
  const std::size_t size = conv.size() / static_cast<std::size_t>(columns);
  Bytes shifted(conv.size());
  for (std::ptrdiff_t column = 0; column < columns; ++column)
    if (const std::ptrdiff_t from = column + by; from >= 0 && from < columns)
      std::copy_n(conv.begin() + from * static_cast<std::ptrdiff_t>(size), size,
                  shifted.begin() + column * static_cast<std::ptrdiff_t>(size));
  return shifted;
}

/// [HV, V, K] as [HV, K, V].
Bytes with_k_and_v_swapped(const Model& model, const Bytes& state) {
  const std::size_t word = size_of(model.state_dtype), K = static_cast<std::size_t>(model.K),
                    V = static_cast<std::size_t>(model.V);
  Bytes swapped(state.size());
  for (std::size_t i = 0; i < state.size() / word; ++i) {
    const std::size_t head = i / (V * K), v = i / K % V, k = i % K;
    std::copy_n(state.begin() + static_cast<std::ptrdiff_t>(i * word), word,
                swapped.begin() + static_cast<std::ptrdiff_t>((head * V * K + k * V + v) * word));
  }
  return swapped;
}

Bytes rounded_to_bf16(const Model& model, Bytes state) {
  if (model.state_dtype != DType::f32) return state;
  for (std::size_t at = 0; at < state.size(); at += 4) {
    float value;
    std::memcpy(&value, state.data() + at, 4);
    value = f32_from_bf16(bf16_from_f32(value));
    std::memcpy(state.data() + at, &value, 4);
  }
  return state;
}

/// mixed_qkv rows whose flat channels are taken from where they lie per key head: [H] of q K, k K, v HV/H * V.
void read_interleaved_as_flat(const Model& model, Bytes& rows) {
  const std::size_t word = size_of(model.act_dtype), dim = static_cast<std::size_t>(model.dim());
  const std::size_t H = static_cast<std::size_t>(model.H), K = static_cast<std::size_t>(model.K);
  const std::size_t values = static_cast<std::size_t>(model.HV / model.H * model.V), group = 2 * K + values;
  const Bytes packed = rows;
  for (std::size_t i = 0; i < rows.size() / word; ++i) {
    const std::size_t row = i / dim, c = i % dim;
    const std::size_t from = c < H * K       ? c / K * group + c % K
                             : c < 2 * H * K ? (c - H * K) / K * group + K + (c - H * K) % K
                                             : (c - 2 * H * K) / values * group + 2 * K + (c - 2 * H * K) % values;
    std::memcpy(rows.data() + i * word, packed.data() + (row * dim + from) * word, word);
  }
}

/// Where a block's first element lands when its offset is kept modulo 2^bits.
std::int32_t wrapped(const Model& model, std::int32_t block, int bits) {
  const std::int64_t stride = model.block_stride > 0 ? model.block_stride : model.state_elements();
  const std::int64_t offset = block * stride & ((std::int64_t{1} << bits) - 1);
  const std::int64_t hit = offset / stride;
  return offset % stride == 0 && hit < model.num_blocks ? static_cast<std::int32_t>(hit) : block;
}

void fill_with(DType type, std::uint32_t word, std::span<std::byte> words) {
  for (std::size_t at = 0; at < words.size(); at += size_of(type)) std::memcpy(words.data() + at, &word, size_of(type));
}

void poison_row(const Model& model, const Fault& fault, StepOutputs& outputs) {
  Bytes& tap = outputs[fault.tap];
  if (tap.empty()) return;
  const TapShape shape = shape_of(fault.tap, model);
  fill_with(shape.type, poison_word(shape.type, std::max(fault.block, 0)),
            std::span(tap).subspan(static_cast<std::size_t>(fault.row) * shape.bytes(), shape.bytes()));
}

bool of_event(const Fault& fault, const Event& event) {
  if (fault.step != event.step || fault.block != event.block || !changes_contents(event.kind)) return false;
  const bool copied = event.kind == EventKind::copy, loaded = copied || event.kind == EventKind::load;
  switch (fault.kind) {
    case Kind::missing_event:
      return true;
    case Kind::old_copy:
      return copied;
    case Kind::window:
    case Kind::transposed:
    case Kind::rounded:
      return loaded && fault.row < 0;
    default:
      return false;
  }
}

/// Does the fault act on this row of the step? Faults of events have a block and no row.
bool of_row(const Fault& fault, const StepPlan& plan, std::size_t row) {
  const bool event = fault.row < 0 && fault.block >= 0 &&
                     (fault.kind == Kind::window || fault.kind == Kind::transposed || fault.kind == Kind::rounded);
  return plan.block[row] >= 0 && !event && (fault.row < 0 || std::cmp_equal(fault.row, row));
}

template <class Use>
void each_row(const Fault& fault, const StepPlan& plan, const Use& use) {
  for (std::size_t row = 0; row < plan.block.size(); ++row)
    if (of_row(fault, plan, row)) use(row, plan.block[row]);
}

/// A row takes the inputs of the row that is `by` further on, if there is one.
void take_inputs(const Fault& fault, const StepPlan& plan, StepInputs& inputs) {
  const StepInputs right = inputs;
  each_row(fault, plan, [&](std::size_t row, std::int32_t) {
    const auto from = static_cast<std::size_t>(static_cast<std::int64_t>(row) + fault.by);
    if (from >= plan.block.size()) return;
    for (const auto tensor : {&StepInputs::mixed_qkv, &StepInputs::a, &StepInputs::b, &StepInputs::z}) {
      const std::size_t bytes = (right.*tensor).size() / plan.block.size();
      std::copy_n((right.*tensor).begin() + static_cast<std::ptrdiff_t>(from * bytes), bytes,
                  (inputs.*tensor).begin() + static_cast<std::ptrdiff_t>(row * bytes));
    }
  });
}

}  // namespace

FaultyStream::FaultyStream(Stream& stream, const std::vector<Fault>& faults)
    : StreamView(stream), events_(stream.events().begin(), stream.events().end()) {
  for (Event& event : events_)
    for (const Fault& fault : faults)
      if (of_event(fault, event)) {
        event.kind = EventKind::free;
        break;
      }
}

FaultyRun::FaultyRun(Stream& whole, Backend& backend_behind, const std::vector<Fault>& faults, Observer& recorder)
    : stream(whole, faults), backend(backend_behind, *this), whole_(whole), faults_(faults), recorder_(recorder) {}

FaultyRun::Active FaultyRun::at(std::int64_t step, int layer) const {
  Active active;
  for (const Fault& fault : faults_)
    if (fault.at(step, layer)) active.push_back(&fault);
  return active;
}

const Event& FaultyRun::meant(const Event& shown) const {
  return whole_.events()[static_cast<std::size_t>(&shown - stream.events().data())];
}

void FaultyRun::event_applied(const Event& shown, int layer, Pool& pool) {
  const Event& event = meant(shown);
  if (event.kind != shown.kind) {
    const auto found =
        std::ranges::find_if(faults_, [&](const Fault& f) { return of_event(f, event) && f.at(event.step, layer); });
    if (found == faults_.end())
      pool.apply(event, layer, whole_);  // this layer's went well
    else
      one_event(*found, event, layer, pool);
  }
  recorder_.event_applied(event, layer, pool);
}

void FaultyRun::one_event(const Fault& fault, const Event& event, int layer, Pool& pool) {
  const Model& model = pool.model();
  const BlockWords old = read_words(pool, layer, event.block);
  pool.apply(event, layer, whole_);
  BlockWords words = read_words(pool, layer, event.block);
  if (fault.kind == Kind::missing_event) take(fault.part, old, words);
  if (fault.kind == Kind::window) words.conv = window_off_by(model, words.conv, fault.by);
  if (fault.kind == Kind::transposed) words.recurrent = with_k_and_v_swapped(model, words.recurrent);
  if (fault.kind == Kind::rounded) words.recurrent = rounded_to_bf16(model, words.recurrent);
  if (fault.kind == Kind::old_copy) {
    const auto& writes = history_[{layer, event.source}];
    const auto at = static_cast<std::int64_t>(writes.size()) - 1 - fault.by;
    if (at < 0 || std::cmp_greater_equal(at, writes.size()))
      throw error("recipe: faults: old-copy: block ", event.source, " was not written ", fault.by,
                  " writes before step ", event.step);
    take(fault.part, writes[static_cast<std::size_t>(at)], words);
  }
  write_words(pool, layer, event.block, words);
}

void FaultyRun::before(std::int64_t step, int layer, const StepPlan& plan, Pool& pool) {
  const Model& model = pool.model();
  const Active active = at(step, layer);
  for (const Fault* fault : active)
    if (fault->kind == Kind::poisoned) {
      BlockWords poison{Bytes(model.state_bytes()), Bytes(model.conv_bytes())};
      fill_with(model.state_dtype, poison_word(model.state_dtype, fault->block), poison.recurrent);
      fill_with(model.conv_state_dtype, poison_word(model.conv_state_dtype, fault->block), poison.conv);
      BlockWords words = read_words(pool, layer, fault->block);
      take(fault->part, poison, words);
      write_words(pool, layer, fault->block, words);
    }
  still_.clear();
  for (const Fault* fault : active)
    if (fault->block >= 0) still_[fault->block] = read_words(pool, layer, fault->block);
  for (std::size_t row = 0; row < plan.block.size() && !active.empty(); ++row)
    if (plan.block[row] >= 0) still_[plan.block[row]] = read_words(pool, layer, plan.block[row]);
  recorder_.before(step, layer, plan, pool);
}

void FaultyRun::spoil_reads(const Active& active, const StepArgs& args, Pool& pool) {
  const Model& model = pool.model();
  before_.clear();
  for (std::int32_t block : args.plan.block)
    if (block >= 0) before_[block] = read_words(pool, args.layer, block);
  for (const Fault* fault : active)
    each_row(*fault, args.plan, [&](std::size_t, std::int32_t block) {
      BlockWords words = read_words(pool, args.layer, block);
      if (fault->kind == Kind::read_block) take(fault->part, still_.at(fault->block), words);
      if (fault->kind == Kind::window) words.conv = window_off_by(model, words.conv, fault->by);
      if (fault->kind == Kind::transposed) words.recurrent = with_k_and_v_swapped(model, words.recurrent);
      if (fault->kind == Kind::rounded) words.recurrent = rounded_to_bf16(model, words.recurrent);
      if (fault->kind == Kind::wrapped) words = read_words(pool, args.layer, wrapped(model, block, fault->by));
      write_words(pool, args.layer, block, words);
    });
}

void FaultyRun::spoil_writes(const Active& active, const StepArgs& args, Pool& pool) {
  const Model& model = pool.model();
  const std::size_t column = model.conv_bytes() / static_cast<std::size_t>(model.W - 1);
  for (const Fault* fault : active)
    each_row(*fault, args.plan, [&](std::size_t, std::int32_t block) {
      BlockWords words = read_words(pool, args.layer, block);
      const BlockWords& still = still_.at(block);
      const std::int32_t other = fault->kind == Kind::write_block ? fault->block
                                 : fault->kind == Kind::wrapped   ? wrapped(model, block, fault->by)
                                                                  : block;
      if (other != block) {
        BlockWords theirs = read_words(pool, args.layer, other);
        take(fault->part, words, theirs);
        write_words(pool, args.layer, other, theirs);
      }
      if (fault->kind == Kind::missing_write || other != block) take(fault->part, still, words);
      const Bytes& conv = before_.at(block).conv;
      if (fault->kind == Kind::window)  // what is stored rolls as ever
        std::copy(conv.begin() + static_cast<std::ptrdiff_t>(column), conv.end(), words.conv.begin());
      write_words(pool, args.layer, block, words);
    });
}

/// The row is run alone, from what its block held before the step, and its state stays whoever else wrote there. Nobody looks
/// at its outputs.
void FaultyRun::run_inactive(const Fault& fault, const StepArgs& args, Pool& pool, StepOutputs& outputs,
                             Backend& behind) {
  StepPlan plan = args.plan;
  if (fault.row >= plan.rows() || plan.block[static_cast<std::size_t>(fault.row)] >= 0)
    throw error("recipe: faults: inactive-row: step ", plan.step, ", row ", fault.row, " is not inactive");
  std::ranges::fill(plan.block, -1);
  plan.block[static_cast<std::size_t>(fault.row)] = fault.block;
  plan.draft = 0, plan.last_draft = true;  // it had no candidate before: it goes on from what its block stores
  const BlockWords now = read_words(pool, args.layer, fault.block);
  write_words(pool, args.layer, fault.block, still_.at(fault.block));
  StepOutputs apart;
  apart.want = outputs.want;
  behind.step({args.layer, plan, args.inputs, args.contract}, pool, apart);
  BlockWords words = now;
  take(fault.part, read_words(pool, args.layer, fault.block), words);
  write_words(pool, args.layer, fault.block, words);
}

Contract FaultyRun::contract_of(const Active& active, const Contract& contract) const {
  Contract changed = contract;
  for (const Fault* fault : active)
    if (fault->kind == Kind::contract) set_contract_field(changed, fault->field, fault->value);
  return changed;
}

void FaultyRun::after(const StepView& view) {
  const bool asked = std::ranges::any_of(faults_, [](const Fault& fault) { return fault.kind == Kind::old_copy; });
  for (std::int32_t block : view.plan.block)
    if (asked && block >= 0) history_[{view.layer, block}].push_back(read_words(view.pool, view.layer, block));
  recorder_.after(view);
}

void FaultyBackend::step(const StepArgs& args, Pool& pool, StepOutputs& outputs) {
  const FaultyRun::Active active = run_.at(args.plan.step, args.layer);
  if (active.empty()) return backend_.step(args, pool, outputs);
  const auto any = [&](Kind kind) {
    return std::ranges::any_of(active, [&](const Fault* f) { return f->kind == kind; });
  };
  StepInputs inputs = args.inputs;
  if (any(Kind::interleaved)) read_interleaved_as_flat(pool.model(), inputs.mixed_qkv);
  for (const Fault* fault : active)
    if (fault->kind == Kind::read_inputs) take_inputs(*fault, args.plan, inputs);
  const Contract contract = run_.contract_of(active, args.contract);
  const StepArgs wrong{args.layer, args.plan, inputs, contract};
  run_.spoil_reads(active, wrong, pool);
  backend_.step(wrong, pool, outputs);
  run_.spoil_writes(active, wrong, pool);
  for (const Fault* fault : active) {
    if (fault->kind == Kind::inactive_row) run_.run_inactive(*fault, wrong, pool, outputs, backend_);
    if (fault->kind == Kind::poison_out) poison_row(pool.model(), *fault, outputs);
  }
}

void simulate_with_faults(const Simulation& simulation, const std::vector<Fault>& faults, Pool& pool,
                          Observer& observer) {
  GDNSIM_CHECK(simulation.first_step == 0);  // what a fault takes up from earlier steps would be missing
  FaultyRun faulty(simulation.stream, simulation.backend, faults, observer);
  simulate(
      {faulty.stream, faulty.backend, simulation.contracts, simulation.layers, simulation.last_step, simulation.taps},
      pool, faulty);
}

}  // namespace gdnsim
