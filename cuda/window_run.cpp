#include "window_run.hpp"

#include <algorithm>
#include <utility>

#include "gdnsim/error.hpp"
#include "norm_fast.hpp"
#include "step_run.hpp"
#include "variants.hpp"
#include "view.hpp"

namespace gdnsim::cuda {
namespace {

constexpr std::array kOuter{Tap::conv_out, Tap::core_out, Tap::rstd, Tap::norm_out};
constexpr std::array kInner{Tap::q, Tap::k, Tap::beta, Tap::g, Tap::decay};

std::size_t tap_bytes(Tap tap, const Model& model, std::int64_t rows) {
  return static_cast<std::size_t>(rows) * shape_of(tap, model).bytes();
}

/// The norm is one launch over all steps, so their contracts must agree in it.
bool same_norm(const Contract& a, const Contract& b) {
  return a.norm == b.norm && a.rstd == b.rstd && a.norm_dot == b.norm_dot && a.multiprocessors == b.multiprocessors &&
         norm_preset(a) == norm_preset(b);
}

/// Blocks that no step has touched when they are looked at, as they were before.
void keep_untouched(const WindowArgs& args, const WindowPlan& plan, const Pool& pool, std::span<WindowStep> steps) {
  for (std::size_t t = 0; t < steps.size(); ++t) {
    const std::vector<Look>& looks = args.looks[t];
    steps[t].kept.resize(looks.size());
    for (std::size_t i = 0; i < looks.size(); ++i) {
      if (plan.kept[t][i] >= 0) continue;
      KeptBlock& kept = steps[t].kept[i];
      kept.block = looks[i].block;
      kept.digest = pool.digest(args.layer, looks[i].block);
      kept.make_room(looks[i].bytes, pool.model());
      if (looks[i].bytes) pool.read(args.layer, looks[i].block, kept.recurrent, kept.conv);
    }
  }
}

/// A layer without a norm has no taps of one.
bool has_tap(const WindowJob& job, Tap tap) { return job.norm || (tap != Tap::rstd && tap != Tap::norm_out); }

/// What a step takes of the device's memory, not more than a little too much: 64 bytes a row and look are for the plan.
std::size_t bytes_of_step(const WindowJob& job, std::size_t step) {
  const Model& m = job.model;
  const std::size_t rows = static_cast<std::size_t>(job.args.plans[step].rows());
  const std::size_t values = static_cast<std::size_t>(m.HV * m.V), heads = static_cast<std::size_t>(m.HV);
  std::size_t each = 64 + size_of(m.act_dtype) * (static_cast<std::size_t>(m.dim()) + 2 * heads + values), looks = 0;
  for (Tap tap : kOuter) each += tap_bytes(tap, m, 1);
  for (Tap tap : kInner) each += tap_bytes(tap, m, 1);
  for (const Look& look : job.args.looks[step])
    looks += 64 + sizeof(std::uint64_t) * (heads + 1) + (look.bytes ? m.state_bytes() + m.conv_bytes() : 0);
  return rows * each + looks;
}

}  // namespace

std::string window_refuses(const Model& model, const WindowArgs& args, TapSet want) {
  for (Tap tap : kOuter) want.remove(tap);
  if (!want.empty()) return "values inside the step";
  const Contract& first = args.contracts.of(args.plans[0].path);
  for (const StepPlan& plan : args.plans) {
    const Contract& contract = args.contracts.of(plan.path);
    if (std::string why = variant("resident").refuses(contract, model); !why.empty()) return why;
    if ((step_preset(contract) == Preset::golden) != (step_preset(first) == Preset::golden) ||
        !same_norm(contract, first))
      return "contracts that differ in more than the norms of q and k";
    if (plan.rows() != args.plans[0].rows()) return "steps of different rows";
    if (plan.in_launch() && store_rounds(model, contract)) return "a launch of several drafts whose stores round";
  }
  return "";
}

std::size_t WindowRun::steps_that_fit(const WindowJob& job, std::size_t most) const {
  constexpr std::size_t kGaps = 16 << 10;  // between the arrays
  std::size_t bytes = kGaps, room = limit_ != 0 ? limit_ : held_, count = 0;
  for (bool asked = limit_ != 0; count < most; ++count) {
    bytes += bytes_of_step(job, count);
    if (bytes > room && !asked) {
      std::size_t free = 0, total = 0;
      GDNSIM_CUDA(cudaMemGetInfo(&free, &total));
      room = held_ + free - free / 8, asked = true;
    }
    if (bytes > room) break;
  }
  return std::max<std::size_t>(count, 1);
}

void WindowRun::run(const WindowJob& job, DevicePool& pool, std::span<WindowStep> steps) {
  const WindowPlan plan = plan_window(job.args.plans, job.args.looks);
  keep_untouched(job.args, plan, pool, steps);
  const WindowView w = stage(job, plan, pool);
  launch(job, w, queue_.stream());
  if (job.norm) launch_norm(job, w);
  pool.changed(job.args.layer, plan.block);
  fetch(job, plan, steps);
  for (Tap tap : kOuter) take_tap(job, tap, steps);
  take_kept(job, plan, steps);
  queue_.wait();
}

void WindowRun::lay_out(const WindowJob& job, const WindowPlan& plan) {
  const Model& m = job.model;
  const std::size_t rows = plan.row_block.size(), chains = plan.block.size(), slots = plan.slots.size();
  const std::size_t head = static_cast<std::size_t>(m.HV) * size_of(m.act_dtype), word = sizeof(std::uint64_t);
  Layout at;
  Places& p = places_;
  p.row_block = at.add(4 * rows), p.mixed = at.add(rows), p.block = at.add(4 * chains);
  p.first = at.add(4 * (chains + 1)), p.visit = at.add(4 * plan.visit.size());
  p.segment = at.add(sizeof(Segment) * plan.segments.size()), p.look = at.add(4 * plan.look.size());
  p.slot = at.add(sizeof(Slot) * slots), p.bytes = at.add(slots);
  p.mixed_qkv = at.add(rows * static_cast<std::size_t>(m.dim()) * size_of(m.act_dtype));
  p.a = at.add(rows * head), p.b = at.add(rows * head);
  p.z = at.add(job.norm ? rows * head * static_cast<std::size_t>(m.V) : 0);
  p.inputs_end = at.bytes();
  for (Tap tap : kOuter)
    p.taps[static_cast<std::size_t>(tap)] = at.add(tap_bytes(tap, m, static_cast<std::int64_t>(rows)));
  for (Tap tap : kInner)
    p.taps[static_cast<std::size_t>(tap)] = at.add(tap_bytes(tap, m, static_cast<std::int64_t>(rows)));
  p.heads = at.add(slots * static_cast<std::size_t>(m.HV) * word), p.convs = at.add(slots * word);
  p.kept = at.add(plan.with_bytes * m.state_bytes()), p.kept_conv = at.add(plan.with_bytes * m.conv_bytes());
  p.all = at.bytes();
  GDNSIM_CHECK(limit_ == 0 || plan.steps == 1 || p.all <= limit_);  // as steps_that_fit reckoned
  device_.resize(p.all), host_in_.resize(p.inputs_end);
  held_ = std::max(held_, p.all);
}

WindowView WindowRun::stage(const WindowJob& job, const WindowPlan& plan, const DevicePool& pool) {
  lay_out(job, plan);
  send_plan(job, plan);
  send_flat(job, places_.mixed_qkv, &StepInputs::mixed_qkv);
  send_flat(job, places_.a, &StepInputs::a);
  send_flat(job, places_.b, &StepInputs::b);
  if (job.norm) send_flat(job, places_.z, &StepInputs::z);
  if (plan.has_inactive())  // the kernels leave their outputs alone
    for (Tap tap : {Tap::conv_out, Tap::core_out})
      queue_.fill(at(places_.taps[static_cast<std::size_t>(tap)]), 0,
                  tap_bytes(tap, job.model, static_cast<std::int64_t>(plan.row_block.size())));
  queue_.fill(at(places_.heads), 0, places_.kept - places_.heads);
  return view(job, plan, pool);
}

void WindowRun::put(std::size_t place, std::span<const std::byte> bytes) {
  copies_.add(host_in_.data() + place, bytes.data(), bytes.size());
}

/// The plan's arrays lie at the beginning, so they travel together.
void WindowRun::send_plan(const WindowJob& job, const WindowPlan& plan) {
  std::vector<std::uint8_t> mixed;
  for (const StepPlan& step : job.args.plans)
    mixed.insert(mixed.end(), static_cast<std::size_t>(plan.rows),
                 step_preset(job.args.contracts.of(step.path)) == Preset::triton_mixed ? 1 : 0);
  const auto put_all = [this](std::size_t place, const auto& values) { put(place, std::as_bytes(std::span(values))); };
  put_all(places_.row_block, plan.row_block), put_all(places_.mixed, mixed), put_all(places_.block, plan.block);
  put_all(places_.first, plan.first), put_all(places_.visit, plan.visit), put_all(places_.segment, plan.segments);
  put_all(places_.look, plan.look), put_all(places_.slot, plan.slots), put_all(places_.bytes, plan.bytes);
  copies_.run();
  queue_.copy(device_.data(), host_in_.data(), places_.mixed_qkv);
}

/// One array of all steps: it is on its way while the next is gathered.
void WindowRun::send_flat(const WindowJob& job, std::size_t place, Bytes StepInputs::*member) {
  const std::size_t each = (job.args.inputs[0].*member).size();
  for (std::size_t t = 0; t < job.args.inputs.size(); ++t) {
    const Bytes& from = job.args.inputs[t].*member;
    GDNSIM_CHECK(from.size() == each);
    put(place + t * each, from);
  }
  copies_.run();
  queue_.copy(at(place), host_in_.data() + place, each * job.args.inputs.size());
}

WindowView WindowRun::view(const WindowJob& job, const WindowPlan& plan, const DevicePool& pool) const {
  const Contract& contract = job.args.contracts.of(job.args.plans[0].path);
  const Places& p = places_;
  WindowView w{};
  w.step = view_of(job.model, contract, plan.rows);  // a norm's lanes may depend on the rows of a step
  w.step.shape.rows = static_cast<std::int64_t>(plan.row_block.size());
  w.step.stream = queue_.made();
  const auto words = [&](Tap tap) { return at(p.taps[static_cast<std::size_t>(tap)]); };
  const auto floats = [&](Tap tap) { return reinterpret_cast<float*>(words(tap)); };
  const auto numbers = [&](std::size_t place) { return reinterpret_cast<const std::int32_t*>(at(place)); };
  const auto sums = [&](std::size_t place) { return reinterpret_cast<unsigned long long*>(at(place)); };
  w.step.params = job.params;
  w.step.in = {numbers(p.row_block), at(p.mixed_qkv), at(p.a), at(p.b), at(p.z)};
  w.step.pool = {pool.recurrent(job.args.layer), pool.conv(job.args.layer)};
  w.step.out.conv_out = words(Tap::conv_out), w.step.out.core_out = words(Tap::core_out);
  w.step.out.norm_out = words(Tap::norm_out), w.step.out.rstd = floats(Tap::rstd);
  w.step.out.q = floats(Tap::q), w.step.out.k = floats(Tap::k);
  w.step.out.beta = floats(Tap::beta), w.step.out.g = floats(Tap::g), w.step.out.decay = floats(Tap::decay);
  w.golden = step_preset(contract) == Preset::golden;
  w.chains = static_cast<int>(plan.block.size()), w.segments = static_cast<int>(plan.segments.size());
  w.slots = static_cast<int>(plan.slots.size()), w.longest = plan.longest();
  w.mixed = reinterpret_cast<const std::uint8_t*>(at(p.mixed));
  w.block = numbers(p.block), w.first = numbers(p.first), w.visit = numbers(p.visit), w.look = numbers(p.look);
  w.segment = reinterpret_cast<const Segment*>(at(p.segment)), w.slot = reinterpret_cast<const Slot*>(at(p.slot));
  w.bytes = reinterpret_cast<const std::uint8_t*>(at(p.bytes));
  w.kept = at(p.kept), w.kept_conv = at(p.kept_conv);
  w.heads = sums(p.heads), w.convs = sums(p.convs);
  return w;
}

void WindowRun::launch(const WindowJob& job, const WindowView& staged, cudaStream_t stream) {
  WindowView w = staged;
  w.step.stream = stream;
  launch_window_prepare(w);
  launch_window_resident(w, job.multiprocessors);
  launch_window_looks(w);
  launch_window_roll(w);
}

void WindowRun::launch_norm(const WindowJob& job, const WindowView& w) {
  const Contract& contract = job.args.contracts.of(job.args.plans[0].path);
  if (fast_norm_refuses(contract, job.model).empty())
    launch_norm_fast(w.step, norm_preset(contract) == Preset::golden);
  else
    cuda::launch_norm(w.step);
}

/// Asks for everything that somebody wants; it arrives piece by piece.
void WindowRun::fetch(const WindowJob& job, const WindowPlan& plan, std::span<const WindowStep> steps) {
  const auto rows = static_cast<std::int64_t>(plan.row_block.size());
  const std::size_t looks = places_.all - places_.heads;
  TapSet want;
  for (const WindowStep& step : steps)
    for (Tap tap : kOuter)
      if (step.outputs.want.has(tap) && has_tap(job, tap)) want.add(tap);
  Layout host;
  for (Tap tap : kOuter)
    if (want.has(tap)) out_at_[static_cast<std::size_t>(tap)] = host.add(tap_bytes(tap, job.model, rows));
  looks_at_ = host.add(looks);
  host_out_.resize(host.bytes());
  for (Tap tap : kOuter) {
    if (!want.has(tap)) continue;
    const auto i = static_cast<std::size_t>(tap);
    queue_.copy(host_out_.data() + out_at_[i], at(places_.taps[i]), tap_bytes(tap, job.model, rows));
    tap_there_[i].set(queue_);
  }
  queue_.copy(host_out_.data() + looks_at_, at(places_.heads), looks);
  looks_there_.set(queue_);
}

void WindowRun::take_tap(const WindowJob& job, Tap tap, std::span<WindowStep> steps) {
  const auto i = static_cast<std::size_t>(tap);
  bool there = false;
  for (std::size_t t = 0; t < steps.size(); ++t) {
    if (!steps[t].outputs.want.has(tap)) continue;
    Bytes& to = steps[t].outputs[tap];
    to.resize(has_tap(job, tap) ? tap_bytes(tap, job.model, job.args.plans[t].rows()) : 0);
    copies_.add(to.data(), host_out_.data() + out_at_[i] + t * to.size(), to.size());
    there |= !to.empty();
  }
  if (there) tap_there_[i].wait();
  copies_.run();
}

void WindowRun::take_kept(const WindowJob& job, const WindowPlan& plan, std::span<WindowStep> steps) {
  looks_there_.wait();
  const std::size_t HV = static_cast<std::size_t>(job.model.HV);
  const auto here = [&](std::size_t place) { return host_out_.data() + looks_at_ + (place - places_.heads); };
  const auto* heads = reinterpret_cast<const std::uint64_t*>(here(places_.heads));
  const auto* convs = reinterpret_cast<const std::uint64_t*>(here(places_.convs));
  for (std::size_t t = 0; t < steps.size(); ++t)
    for (std::size_t i = 0; i < plan.kept[t].size(); ++i) {
      if (plan.kept[t][i] < 0) continue;
      const auto slot = static_cast<std::size_t>(plan.kept[t][i]);
      const Look& look = job.args.looks[t][i];
      KeptBlock& kept = steps[t].kept[i];
      kept.block = look.block;
      kept.digest.heads.assign(heads + slot * HV, heads + (slot + 1) * HV);
      kept.digest.conv = convs[slot];
      kept.digest.block = join_block(kept.digest.heads, kept.digest.conv);
      kept.make_room(look.bytes, job.model);
      if (!look.bytes) continue;
      copies_.add(kept.recurrent.data(), here(places_.kept) + slot * kept.recurrent.size(), kept.recurrent.size());
      copies_.add(kept.conv.data(), here(places_.kept_conv) + slot * kept.conv.size(), kept.conv.size());
    }
  copies_.run();
}

}  // namespace gdnsim::cuda
