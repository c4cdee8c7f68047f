#include "window_run.hpp"

#include <algorithm>
#include <utility>

#include "gdnsim/error.hpp"
#include "norm_fast.hpp"
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
    steps[t].kept.assign(looks.size(), {});
    for (std::size_t i = 0; i < looks.size(); ++i) {
      if (plan.kept[t][i] >= 0) continue;
      KeptBlock& kept = steps[t].kept[i];
      kept.block = looks[i].block;
      kept.digest = pool.digest(args.layer, looks[i].block);
      if (!looks[i].bytes) continue;
      kept.recurrent.resize(pool.model().state_bytes());
      kept.conv.resize(pool.model().conv_bytes());
      pool.read(args.layer, looks[i].block, kept.recurrent, kept.conv);
    }
  }
}

void copy_out(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) GDNSIM_CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
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
  }
  return "";
}

void WindowRun::run(const WindowJob& job, DevicePool& pool, std::span<WindowStep> steps) {
  const WindowPlan plan = plan_window(job.args.plans, job.args.looks);
  keep_untouched(job.args, plan, pool, steps);
  upload(job, plan);
  prepare_outputs(job, plan);
  launch(job, view(job, plan, pool));
  download(job, plan, steps);
  download_kept(job, plan, steps);
}

void WindowRun::upload(const WindowJob& job, const WindowPlan& plan) {
  std::vector<std::uint8_t> mixed;
  for (const StepPlan& step : job.args.plans)
    mixed.insert(mixed.end(), static_cast<std::size_t>(plan.rows),
                 step_preset(job.args.contracts.of(step.path)) == Preset::triton_mixed ? 1 : 0);
  mixed_.upload(mixed);
  row_block_.upload(plan.row_block), block_.upload(plan.block), first_.upload(plan.first);
  visit_.upload(plan.visit), segment_.upload(plan.segments), look_.upload(plan.look);
  slot_.upload(plan.slots), bytes_.upload(plan.bytes);
  upload_flat(mixed_qkv_, job.args.inputs, &StepInputs::mixed_qkv);
  upload_flat(a_, job.args.inputs, &StepInputs::a);
  upload_flat(b_, job.args.inputs, &StepInputs::b);
  if (job.norm) upload_flat(z_, job.args.inputs, &StepInputs::z);
}

void WindowRun::upload_flat(Buffer& to, std::span<const StepInputs> inputs, Bytes StepInputs::*member) {
  const std::size_t each = (inputs[0].*member).size();
  to.resize(each * inputs.size());
  for (std::size_t t = 0; t < inputs.size(); ++t) {
    const Bytes& from = inputs[t].*member;
    GDNSIM_CHECK(from.size() == each);
    if (each > 0) GDNSIM_CUDA(cudaMemcpy(to.data() + t * each, from.data(), each, cudaMemcpyHostToDevice));
  }
}

void WindowRun::prepare_outputs(const WindowJob& job, const WindowPlan& plan) {
  const std::int64_t rows = static_cast<std::int64_t>(plan.row_block.size());
  for (Tap tap : kOuter) taps_[static_cast<std::size_t>(tap)].resize(tap_bytes(tap, job.model, rows));
  for (Tap tap : kInner) taps_[static_cast<std::size_t>(tap)].resize(tap_bytes(tap, job.model, rows));
  if (plan.has_inactive())  // the kernels leave their outputs alone
    for (Tap tap : {Tap::conv_out, Tap::core_out})
      taps_[static_cast<std::size_t>(tap)].zero(tap_bytes(tap, job.model, rows));
  const std::size_t slots = plan.slots.size();
  heads_.zero(slots * static_cast<std::size_t>(job.model.HV) * sizeof(std::uint64_t));
  convs_.zero(slots * sizeof(std::uint64_t));
  if (!plan.wants_bytes()) return;
  kept_.resize(slots * job.model.state_bytes());
  kept_conv_.resize(slots * job.model.conv_bytes());
}

WindowView WindowRun::view(const WindowJob& job, const WindowPlan& plan, const DevicePool& pool) {
  const Contract& contract = job.args.contracts.of(job.args.plans[0].path);
  WindowView w{};
  w.step = view_of(job.model, contract, plan.rows);  // a norm's lanes may depend on the rows of a step
  w.step.shape.rows = static_cast<std::int64_t>(plan.row_block.size());
  const auto words = [this](Tap tap) { return taps_[static_cast<std::size_t>(tap)].data(); };
  const auto floats = [this](Tap tap) { return taps_[static_cast<std::size_t>(tap)].as<float>(); };
  w.step.params = job.params;
  w.step.in = {row_block_.as<const std::int32_t>(), mixed_qkv_.data(), a_.data(), b_.data(), z_.data()};
  w.step.pool = {pool.recurrent(job.args.layer), pool.conv(job.args.layer)};
  w.step.out.conv_out = words(Tap::conv_out), w.step.out.core_out = words(Tap::core_out);
  w.step.out.norm_out = words(Tap::norm_out), w.step.out.rstd = floats(Tap::rstd);
  w.step.out.q = floats(Tap::q), w.step.out.k = floats(Tap::k);
  w.step.out.beta = floats(Tap::beta), w.step.out.g = floats(Tap::g), w.step.out.decay = floats(Tap::decay);
  w.golden = step_preset(contract) == Preset::golden;
  w.chains = static_cast<int>(plan.block.size());
  w.segments = static_cast<int>(plan.segments.size());
  w.slots = static_cast<int>(plan.slots.size());
  w.longest = plan.longest();
  w.mixed = mixed_.as<std::uint8_t>();
  w.block = block_.as<std::int32_t>(), w.first = first_.as<std::int32_t>(), w.visit = visit_.as<std::int32_t>();
  w.segment = segment_.as<Segment>(), w.look = look_.as<std::int32_t>(), w.slot = slot_.as<Slot>();
  w.bytes = bytes_.as<std::uint8_t>();
  w.kept = kept_.data(), w.kept_conv = kept_conv_.data();
  w.heads = heads_.as<unsigned long long>(), w.convs = convs_.as<unsigned long long>();
  return w;
}

void WindowRun::launch(const WindowJob& job, const WindowView& w) {
  launch_window_prepare(w);
  launch_window_resident(w, job.multiprocessors);
  launch_window_looks(w);
  launch_window_roll(w);
  const Contract& contract = job.args.contracts.of(job.args.plans[0].path);
  if (job.norm && fast_norm_refuses(contract, job.model).empty())
    launch_norm_fast(w.step, norm_preset(contract) == Preset::golden);
  else if (job.norm)
    launch_norm(w.step);
  GDNSIM_CUDA(cudaDeviceSynchronize());
}

void WindowRun::download(const WindowJob& job, const WindowPlan& plan, std::span<WindowStep> steps) {
  for (std::size_t t = 0; t < steps.size(); ++t)
    for (Tap tap : kOuter) {
      StepOutputs& outputs = steps[t].outputs;
      if (!outputs.want.has(tap)) continue;
      const bool there = job.norm || (tap != Tap::rstd && tap != Tap::norm_out);
      const std::size_t each = there ? tap_bytes(tap, job.model, plan.rows) : 0;
      outputs[tap].resize(each);
      copy_out(outputs[tap].data(), taps_[static_cast<std::size_t>(tap)].data() + t * each, each);
    }
}

void WindowRun::download_kept(const WindowJob& job, const WindowPlan& plan, std::span<WindowStep> steps) {
  const std::size_t HV = static_cast<std::size_t>(job.model.HV), slots = plan.slots.size();
  std::vector<std::uint64_t> heads(slots * HV), convs(slots);
  copy_out(heads.data(), heads_.data(), heads.size() * sizeof(std::uint64_t));
  copy_out(convs.data(), convs_.data(), convs.size() * sizeof(std::uint64_t));
  for (std::size_t t = 0; t < steps.size(); ++t)
    for (std::size_t i = 0; i < plan.kept[t].size(); ++i) {
      if (plan.kept[t][i] < 0) continue;
      const auto slot = static_cast<std::size_t>(plan.kept[t][i]);
      const Look& look = job.args.looks[t][i];
      KeptBlock& kept = steps[t].kept[i];
      kept.block = look.block;
      kept.digest.heads.assign(heads.begin() + static_cast<std::ptrdiff_t>(slot * HV),
                               heads.begin() + static_cast<std::ptrdiff_t>((slot + 1) * HV));
      kept.digest.conv = convs[slot];
      kept.digest.block = join_block(kept.digest.heads, kept.digest.conv);
      if (!look.bytes) continue;
      kept.recurrent.resize(job.model.state_bytes()), kept.conv.resize(job.model.conv_bytes());
      copy_out(kept.recurrent.data(), kept_.data() + slot * kept.recurrent.size(), kept.recurrent.size());
      copy_out(kept.conv.data(), kept_conv_.data() + slot * kept.conv.size(), kept.conv.size());
    }
}

}  // namespace gdnsim::cuda
