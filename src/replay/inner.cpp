#include "gdnsim/inner.hpp"

#include <cmath>

#include "replay/replay_run.hpp"

namespace gdnsim {
namespace {

/// What there is to pick from: the step's taps, its inputs and the row's block before it.
struct Moment {
  StepOutputs outputs;
  StepInputs inputs;
  Bytes recurrent_before, conv_before;
  bool executed = false;
};

/// Compares as the replay did - in local mode that puts the recorded states in place - and keeps one moment.
class MomentObserver final : public Observer {
 public:
  MomentObserver(ReplayObserver& replay, const Divergence& at, Moment& moment)
      : replay_(replay), at_(at), moment_(moment) {}

  void event_coming(const Event& event, int layer, Pool& pool) override { replay_.event_coming(event, layer, pool); }
  void event_applied(const Event& event, int layer, Pool& pool) override { replay_.event_applied(event, layer, pool); }
  void before(std::int64_t step, int layer, const StepPlan& plan, Pool& pool) override {
    replay_.before(step, layer, plan, pool);
    if (step != at_.step) return;
    moment_.recurrent_before.resize(pool.model().state_bytes());
    moment_.conv_before.resize(pool.model().conv_bytes());
    pool.read(layer, plan.start(static_cast<std::size_t>(at_.row)), moment_.recurrent_before, moment_.conv_before);
  }
  void after(const StepView& view) override {
    if (view.step == at_.step && view.executed) {
      moment_.outputs = view.outputs;
      moment_.inputs = view.inputs;
      moment_.executed = true;
    } else {
      replay_.after(view);
    }
  }

 private:
  ReplayObserver& replay_;
  const Divergence& at_;
  Moment& moment_;
};

/// Every value of the step but those that this layer has no norm for.
TapSet all_taps(const Stream& stream, int layer) {
  TapSet taps{Tap::conv_acc, Tap::conv_out, Tap::q,     Tap::k, Tap::beta,
              Tap::g,        Tap::decay,    Tap::dot_k, Tap::u, Tap::core_out};
  if (has_norm(stream, layer)) taps.add(Tap::rstd), taps.add(Tap::norm_out);
  return taps;
}

Moment run_to(Stream& stream, Recording& recording, Backend& backend, const ContractSet& contracts, bool local,
              const Divergence& at) {
  Moment moment;
  ReplayObserver replay(stream, recording, {at.layer, at.step, local, nullptr});
  MomentObserver observer(replay, at, moment);
  const auto pool = backend.make_pool(stream.model(), {at.layer});
  if (at.step > 0) simulate({stream, backend, contracts, {at.layer}, at.step, {}}, *pool, observer);
  simulate({stream, backend, contracts, {at.layer}, at.step + 1, all_taps(stream, at.layer), at.step}, *pool, observer);
  return moment;
}

/// Picks words out of a moment, in execution order.
class Picker {
 public:
  Picker(Stream& stream, Recording& recording, const Divergence& at, const Moment& moment)
      : model_(stream.model()), recording_(recording), at_(at), moment_(moment) {}

  std::vector<InnerValue> pick(HeadMap map) {
    if (at_.tap <= Tap::conv_state) {
      channel(at_.element % model_.dim());
    } else if (at_.tap == Tap::q || at_.tap == Tap::k) {
      const std::int64_t part = at_.tap == Tap::q ? 0 : 1LL * model_.H * model_.K;
      tap(Tap::conv_out, -1, part + at_.head * model_.K + at_.element);
      key_head(at_.head, at_.element);
    } else {
      value_head(map);
    }
    return std::move(found_);
  }

 private:
  void channel(std::int64_t c) {
    const auto row = static_cast<std::int64_t>(at_.row);
    for (std::int64_t column = 0; column < model_.W - 1; ++column)
      add("window_before", -1, c, model_.conv_state_dtype, moment_.conv_before, column * model_.dim() + c);
    add("x", -1, c, model_.act_dtype, moment_.inputs.mixed_qkv, row * model_.dim() + c);
    tap(Tap::conv_acc, -1, c);
    tap(Tap::conv_out, -1, c);
  }

  void key_head(std::int64_t head, std::int64_t k) {
    for (const Tap name : {Tap::q, Tap::k}) {
      length(name, head);
      if (k >= 0) tap(name, head, k);
    }
  }

  /// What one value head reads and makes; `v` and `k` are the place in its state where the divergence has one.
  void value_head(HeadMap map) {
    const std::int64_t head = at_.head, group = model_.HV / model_.H;
    const bool whole = at_.tap == Tap::beta || at_.tap == Tap::g || at_.tap == Tap::decay || at_.tap == Tap::rstd;
    const std::int64_t k = at_.tap == Tap::state ? at_.element % model_.K : -1;
    const std::int64_t v = whole ? -1 : at_.tap == Tap::state ? at_.element / model_.K : at_.element;
    if (v >= 0) tap(Tap::conv_out, -1, 2LL * model_.H * model_.K + head * model_.V + v);
    key_head(map == HeadMap::grouped ? head / group : head % model_.H, k);
    for (const Tap name : {Tap::beta, Tap::g, Tap::decay}) tap(name, head, 0);
    if (k >= 0)
      add("state_before", head, at_.element, model_.state_dtype, moment_.recurrent_before,
          (head * model_.V + v) * model_.K + k);
    if (v >= 0)
      for (const Tap name : {Tap::dot_k, Tap::u, Tap::core_out}) tap(name, head, v);
    if (at_.tap >= Tap::core_out) tap(Tap::rstd, head, 0);
    if (at_.tap >= Tap::core_out && v >= 0) tap(Tap::norm_out, head, v);
  }

  void add(const std::string& name, std::int64_t head, std::int64_t element, DType type, const Bytes& words,
           std::int64_t i) {
    if (words.empty()) return;
    const std::uint32_t word = word_at(type, words, static_cast<std::size_t>(i));
    found_.push_back({name, head, element, type, word, value_of(type, word), {}});
  }

  std::int64_t index(const TapShape& shape, std::int64_t head, std::int64_t element) const {
    return at_.row * shape.elements() + (head < 0 ? 0 : head * shape.per_head) + element;
  }

  void tap(Tap name, std::int64_t head, std::int64_t element) {
    const TapShape shape = shape_of(name, model_);
    const Bytes& words = moment_.outputs[name];
    if (words.empty()) return;
    const std::int64_t i = index(shape, head, element);
    add(std::string(name_of(name)), head, shape.per_head == 1 ? -1 : element, shape.type, words, i);
    if (!recording_.taps(at_.layer).has(name)) return;
    recording_.read_tap(name, at_.step, at_.layer, recorded_);
    found_.back().recorded = word_at(shape.type, recorded_, static_cast<std::size_t>(i));
  }

  void length(Tap name, std::int64_t head) {
    const TapShape shape = shape_of(name, model_);
    double sum = 0;
    for (std::int64_t i = 0; i < shape.per_head; ++i) {
      const double x = value_of(
          shape.type, word_at(shape.type, moment_.outputs[name], static_cast<std::size_t>(index(shape, head, i))));
      sum += x * x;
    }
    found_.push_back({std::string(name_of(name)) + "_norm", head, -1, shape.type, {}, std::sqrt(sum), {}});
  }

  const Model& model_;
  Recording& recording_;
  const Divergence& at_;
  const Moment& moment_;
  Bytes recorded_;
  std::vector<InnerValue> found_;
};

}  // namespace

std::vector<InnerValue> inner_values(Stream& stream, Recording& recording, Backend& backend,
                                     const ReplayResult& result) {
  const auto& first = result.first();
  if (!first || first->row < 0 || first->element < 0) return {};
  const StepPlan plan = stream.plan(first->step);
  if (plan.block[static_cast<std::size_t>(first->row)] < 0) return {};
  const ContractSet& contracts = result.contract.contracts;
  const Moment moment = run_to(stream, recording, backend, contracts, !result.carried.done, *first);
  if (!moment.executed) return {};
  return Picker(stream, recording, *first, moment).pick(contracts.of(plan.path).head_map);
}

}  // namespace gdnsim
