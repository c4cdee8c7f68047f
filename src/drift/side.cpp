#include "drift/side.hpp"

#include <algorithm>
#include <cstring>

#include "drift/json.hpp"
#include "gdnsim/arith.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

Bytes converted(const Bytes& words, DType from, DType to) {
  Numbers values;
  values.assign(words, from);
  Bytes out(values.size() * size_of(to));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t half = to == DType::bf16 ? bf16_from_f32(values.single[i]) : f16_from_f32(values.single[i]);
    if (to == DType::f32)
      std::memcpy(out.data() + 4 * i, &values.single[i], 4);
    else
      std::memcpy(out.data() + 2 * i, &half, 2);
  }
  return out;
}

std::unique_ptr<Backend> backend_of(const DriftSide& side, const DriftOptions& options, int threads) {
  if (!side.contracts) return make_oracle(side.round_activations);
  BackendOptions own = options.backend_options;
  own.threads = threads;
  return choose_backend(options.backend, own).backend;
}

}  // namespace

void RecentInputs::inputs(std::int64_t step, int layer, StepInputs& out) {
  Entry& entry = recent_[static_cast<std::size_t>(step) % recent_.size()];
  if (entry.step != step) whole_.inputs(step, layer, entry.inputs);
  entry.step = step;
  out = entry.inputs;
}

RetypedStream::RetypedStream(Stream& whole, std::optional<DType> state) : StreamView(whole), model_(whole.model()) {
  if (state) model_.state_dtype = *state;
}

void RetypedStream::load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) {
  whole_.load_row(source, recurrent, conv);
  if (whole_.model().state_dtype != model_.state_dtype)
    recurrent = converted(recurrent, whole_.model().state_dtype, model_.state_dtype);
}

DriftObserver::DriftObserver(const DriftSweep& sweep, const Model& model, int layer, const OracleBackend* oracle,
                             std::size_t steps)
    : sweep_(sweep), model_(model), layer_(layer), oracle_(oracle), recent_(steps) {}

const SideStep& DriftObserver::at(std::int64_t step) const {
  const SideStep& found = recent_[static_cast<std::size_t>(step) % recent_.size()];
  GDNSIM_CHECK(found.step == step);
  return found;
}

/// A measured step's states are compared, and those before it say what it left as it was.
bool DriftObserver::looks_after(std::int64_t step) const {
  return measured(sweep_, step) || (step + 1 < sweep_.steps && measured(sweep_, step + 1));
}

bool DriftObserver::looks_at(const ComingStep& coming, std::vector<Look>& looks) {
  if (!looks_after(coming.step)) return true;
  for (std::int32_t block : coming.plan.block)
    if (block >= 0) add_look(looks, block, true);
  return true;
}

void DriftObserver::event_applied(const Event& event, int layer, Pool& pool) {
  if (!changes_contents(event.kind)) return;
  Changed& changed = changed_[event.block];
  changed.step = event.step;
  GDNSIM_CHECK(layer == layer_);
  take_state(pool, event.block, changed.state);
}

void DriftObserver::take_tap(const StepView& view, Tap tap, Bytes& words, Numbers& values) const {
  const Bytes& all = view.outputs[tap];
  const std::size_t rows = view.plan.block.size(), bytes = all.size() / rows;
  words.clear();
  for (std::size_t row = 0; row < rows; ++row)
    if (view.plan.block[row] >= 0)
      words.insert(words.end(), all.begin() + static_cast<std::ptrdiff_t>(row * bytes),
                   all.begin() + static_cast<std::ptrdiff_t>((row + 1) * bytes));
  if (oracle_ == nullptr) return values.assign(words, shape_of(tap, model_).type);
  const std::span<const double> wide = oracle_->wide(tap);
  values.single.clear(), values.wide.clear();
  for (std::size_t row = 0, each = wide.size() / rows; row < rows; ++row)
    if (view.plan.block[row] >= 0)
      values.wide.insert(values.wide.end(), wide.begin() + static_cast<std::ptrdiff_t>(row * each),
                         wide.begin() + static_cast<std::ptrdiff_t>((row + 1) * each));
}

void DriftObserver::take_outputs(const StepView& view, SideStep& step) const {
  take_tap(view, Tap::core_out, step.core, step.core_values);
  take_tap(view, Tap::norm_out, step.norm, step.norm_values);
}

void DriftObserver::take_state(const Pool& pool, std::int32_t block, Numbers& out) {
  if (const auto* wide = dynamic_cast<const OraclePool*>(&pool)) return out.assign(wide->recurrent(layer_, block));
  BlockBytes bytes;
  if (!pool.look(layer_, block, bytes)) {
    recurrent_.resize(model_.state_bytes());
    conv_.resize(model_.conv_bytes());
    pool.read(layer_, block, recurrent_, conv_);
    bytes = {recurrent_, conv_};
  }
  out.assign(bytes.recurrent, model_.state_dtype);
}

/// A block's state before the step, where it is known: an event just brought it, or the step before was looked at.
const Numbers* DriftObserver::known_before(std::int64_t step, std::int32_t block) const {
  if (const auto found = changed_.find(block); found != changed_.end() && found->second.step == step)
    return &found->second.state;
  if (step == 0) return nullptr;
  const SideStep& last = recent_[static_cast<std::size_t>(step - 1) % recent_.size()];
  if (last.step != step - 1 || last.states.empty()) return nullptr;
  const auto row = std::ranges::find(last.blocks, block);
  return row == last.blocks.end() ? nullptr : &last.states[static_cast<std::size_t>(row - last.blocks.begin())];
}

void DriftObserver::count_kept(const StepView& view, SideStep& step) {
  std::size_t active = 0;
  const auto heads = static_cast<std::size_t>(model_.HV);
  std::vector<double> decay(heads);
  for (std::size_t row = 0; row < view.plan.block.size(); ++row) {
    if (view.plan.block[row] < 0) continue;
    const Numbers& after = step.states[active++];
    const Numbers* const known =
        view.plan.start(row) == view.plan.block[row] ? known_before(view.step, view.plan.block[row]) : nullptr;
    if (known == nullptr) continue;
    const Bytes& words = view.outputs[Tap::decay];
    for (std::size_t head = 0; head < heads; ++head) {
      float factor;
      std::memcpy(&factor, words.data() + 4 * (row * heads + head), 4);
      decay[head] = oracle_ != nullptr ? oracle_->wide(Tap::decay)[row * heads + head] : factor;
    }
    add_kept(*known, after, decay, step.kept);
    step.kept_known = true;
  }
}

void DriftObserver::after(const StepView& view) {
  SideStep& step = slot(view.step);
  step.step = view.step;
  step.executed = view.executed;
  step.kept = {};
  step.kept_known = false;
  step.blocks.clear();
  for (std::int32_t block : view.plan.block)
    if (block >= 0 && view.executed) step.blocks.push_back(block);
  step.states.resize(looks_after(view.step) ? step.blocks.size() : 0);
  for (std::size_t row = 0; row < step.states.size(); ++row) take_state(view.pool, step.blocks[row], step.states[row]);
  if (view.executed) take_outputs(view, step);
  if (view.executed && measured(sweep_, view.step)) count_kept(view, step);
  if (done_) done_(step);
}

DriftRun::DriftRun(const DriftSweep& sweep, const DriftSide& side, const DriftOptions& options, Stream& stream,
                   int layer, int threads, std::size_t remembers)
    : stream_(stream, side.state),
      layer_(layer),
      contracts_(side.contracts ? *side.contracts : contract_set("golden")),
      backend_(backend_of(side, options, threads)),
      pool_(backend_->make_pool(stream_.model(), {layer})),
      observer_(std::make_unique<DriftObserver>(sweep, stream_.model(), layer,
                                                dynamic_cast<const OracleBackend*>(backend_.get()), remembers)) {}

void DriftRun::run(std::int64_t first_step, std::int64_t last_step) {
  const TapSet taps{Tap::decay, Tap::core_out, Tap::norm_out};
  simulate({stream_, *backend_, contracts_, {layer_}, last_step, taps, first_step}, *pool_, *observer_);
}

}  // namespace gdnsim
