#include "step_run.hpp"

#include <algorithm>
#include <array>

#include "fused.hpp"
#include "gdnsim/refused.hpp"
#include "norm_fast.hpp"
#include "variants.hpp"
#include "view.hpp"

namespace gdnsim::cuda {
namespace {

constexpr std::size_t kGuard = 256;       // bytes watched beyond an output
constexpr std::size_t kRecordings = 256;  // kept at most: layers x contracts x batch sizes
constexpr std::size_t kGap = 4096;        // bytes that are worth a copy of their own
constexpr int kPoison = 0xA5;

/// How the taps lie in memory: those that are mostly asked for side by side, so that one copy fetches them.
constexpr std::array kOrder{Tap::conv_out, Tap::core_out, Tap::norm_out, Tap::rstd,  Tap::conv_acc, Tap::q,
                            Tap::k,        Tap::beta,     Tap::g,        Tap::decay, Tap::dot_k,    Tap::u};
static_assert(kOrder.size() == kTaps - 2);  // all but those of the state

Tap tap_of(std::size_t i) { return static_cast<Tap>(i); }
bool is_state(std::size_t i) { return tap_of(i) == Tap::state || tap_of(i) == Tap::conv_state; }

bool same(const PoolPointers& a, const PoolPointers& b) { return a.recurrent == b.recurrent && a.conv == b.conv; }
bool same(const ParamPointers& a, const ParamPointers& b) {
  return a.A_log == b.A_log && a.dt_bias == b.dt_bias && a.conv_weight == b.conv_weight && a.conv_bias == b.conv_bias &&
         a.norm_weight == b.norm_weight;
}

/// Grows both, and says whether either moved.
bool grow(Buffer& device, HostBuffer& host, std::size_t bytes) {
  const std::byte *device_was = device.data(), *host_was = host.data();
  device.resize(bytes), host.resize(bytes);
  return device.data() != device_was || host.data() != host_was;
}

}  // namespace

bool store_rounds(const Model& model, const Contract& contract) {
  return model.state_dtype != DType::f32 || contract.state_store == StateStore::bf16;
}

StepRun::StepRun(const DeviceInfo& device, std::string_view held_to, bool poison)
    : device_(device), held_to_(held_to), poison_(poison) {}

bool StepRun::Recorded::is(const StepJob& job) const {
  return rows == job.rows && norm == job.norm && want == job.want && same(pool, job.pool) && same(params, job.params) &&
         held == job.held && contract == job.contract;
}

void StepRun::run(const StepJob& job, const std::vector<std::int32_t>& block, const StepInputs& inputs,
                  StepOutputs& outputs) {
  stage(job, block, inputs);
  poison_ ? enqueue(job) : enqueue_recorded(job);
  queue_.wait();
  if (poison_) check_guards(job);
  take_outputs(job, outputs);
}

void StepRun::stage(const StepJob& job, const std::vector<std::int32_t>& block, const StepInputs& inputs) {
  lay_out(job);
  put(kBlock, std::as_bytes(std::span(block)));
  put(kMixedQkv, inputs.mixed_qkv);
  put(kA, inputs.a);
  put(kB, inputs.b);
  if (job.norm) put(kZ, inputs.z);
  copies_.run();
}

void StepRun::send() {
  queue_.copy(in_.data(), host_in_.data(), in_all_);
  queue_.wait();
}

/// Where inputs and taps lie; growing one of the buffers makes what was recorded useless.
void StepRun::lay_out(const StepJob& job) {
  const Model& m = job.model;
  const std::size_t rows = static_cast<std::size_t>(job.rows), word = size_of(m.act_dtype);
  const std::size_t heads = rows * static_cast<std::size_t>(m.HV) * word;
  in_bytes_ = {rows * sizeof(std::int32_t), rows * static_cast<std::size_t>(m.dim()) * word, heads, heads,
               job.norm ? heads * static_cast<std::size_t>(m.V) : 0};
  Layout in, taps;
  for (std::size_t i = 0; i < kInputs; ++i) in_at_[i] = in.add(in_bytes_[i]);
  for (Tap tap : kOrder) {
    const auto i = static_cast<std::size_t>(tap);
    tap_at_[i] = taps.add(tap_bytes(job, i) + kGuard);
  }
  in_all_ = in.bytes(), taps_all_ = taps.bytes();
  bool moved = grow(in_, host_in_, in_all_);
  moved |= grow(taps_, host_taps_, taps_all_);
  const std::size_t counters = rows * static_cast<std::size_t>(m.H) * 8;
  if (counters > arrived_bytes_) arrived_.zero(counters), arrived_bytes_ = counters, moved = true;
  if (moved || recorded_.size() >= kRecordings) recorded_.clear();
}

void StepRun::put(Input input, std::span<const std::byte> bytes) {
  GDNSIM_CHECK(bytes.size() == in_bytes_[input]);
  copies_.add(host_in_.data() + in_at_[input], bytes.data(), bytes.size());
}

std::size_t StepRun::tap_bytes(const StepJob& job, std::size_t tap) const {
  return static_cast<std::size_t>(job.rows) * shape_of(tap_of(tap), job.model).bytes();
}

/// The tap is asked for, and the layer has it.
bool StepRun::is_there(const StepJob& job, std::size_t tap) const {
  if (is_state(tap) || !job.want.has(tap_of(tap))) return false;
  return job.norm || (tap_of(tap) != Tap::rstd && tap_of(tap) != Tap::norm_out);
}

/// The first time as it comes, so that all kernels are loaded; the second time it is recorded.
void StepRun::enqueue_recorded(const StepJob& job) {
  const auto found = std::ranges::find_if(recorded_, [&](const Recorded& each) { return each.is(job); });
  if (found == recorded_.end()) {
    enqueue(job);
    recorded_.push_back({job.contract, job.pool, job.params, job.norm, job.want, job.rows, job.held, {}});
    return;
  }
  if (found->graph.empty()) found->graph = Graph::record(queue_, [&] { enqueue(job); });
  found->graph.launch(queue_);
}

/// The plain kernels leave inactive rows alone, so their outputs start as zeros; the fused one writes every output.
void StepRun::enqueue(const StepJob& job) {
  const Choice choice = choose(job);
  queue_.copy(in_.data(), host_in_.data(), in_all_);
  if (poison_) queue_.fill(taps_.data(), kPoison, taps_all_);
  for (std::size_t i = 0; i < kTaps && !choice.fused; ++i)
    if (!is_state(i)) queue_.fill(taps_.data() + tap_at_[i], 0, tap_bytes(job, i));
  launch_stages(view(job, choice, queue_.stream()), job.contract, choice);
  if (job.norm) launch_norm(job, queue_.stream());
  fetch(job);
}

/// Taps that lie side by side in one copy.
void StepRun::fetch(const StepJob& job) {
  std::size_t first = 0, end = 0;
  const auto copy = [&] { queue_.copy(host_taps_.data() + first, taps_.data() + first, end - first); };
  for (Tap tap : kOrder) {
    const auto i = static_cast<std::size_t>(tap);
    if (!is_there(job, i)) continue;
    if (end == 0 || tap_at_[i] > end + kGap) copy(), first = tap_at_[i];
    end = tap_at_[i] + tap_bytes(job, i);
  }
  copy();
}

void StepRun::take_outputs(const StepJob& job, StepOutputs& outputs) {
  for (std::size_t i = 0; i < kTaps; ++i) {
    if (is_state(i) || !outputs.want.has(tap_of(i))) continue;
    Bytes& to = outputs[tap_of(i)];
    to.resize(is_there(job, i) ? tap_bytes(job, i) : 0);
    copies_.add(to.data(), host_taps_.data() + tap_at_[i], to.size());
  }
  copies_.run();
}

void StepRun::check_guards(const StepJob& job) {
  Bytes all;
  taps_.download(all, taps_all_);
  for (std::size_t i = 0; i < kTaps; ++i) {
    const std::size_t end = tap_at_[i] + tap_bytes(job, i);
    for (std::size_t at = end; !is_state(i) && at < end + kGuard; ++at)
      if (all[at] != std::byte{kPoison})
        throw error("cuda: a kernel wrote beyond ", name_of(tap_of(i)), ", ", at - end, " bytes behind");
  }
}

/// Held to a variant, what it cannot run is an error.
void StepRun::require_none(const std::string& why) const {
  if (!why.empty()) throw Refused("cuda: variant " + held_to_ + ": refused because of " + why);
}

/// The fastest kernels that can run the contract and need not write what only the plain ones do.
StepRun::Choice StepRun::choose(const StepJob& job) const {
  if (held_to_ == "plain") return {};
  const bool any_step = held_to_.empty() || held_to_ == "resident";  // resident is a variant of windows alone
  std::string why = variant(any_step ? "fused" : held_to_).refuses(job.contract, job.model);
  TapSet inner = job.want;
  for (Tap tap : {Tap::conv_out, Tap::core_out, Tap::rstd, Tap::norm_out}) inner.remove(tap);
  if (why.empty() && !inner.empty()) why = "values inside the step";
  if (why.empty() && held_to_ == "streamed" && job.rows > kMostStreamed) why = "more than 65535 rows";
  if (why.empty() && job.held.S != nullptr) why = "a launch of several drafts whose stores round";
  if (!held_to_.empty()) require_none(why);
  return {.fused = why.empty(), .fast_norm = fast_norm_refuses(job.contract, job.model).empty()};
}

StepView StepRun::view(const StepJob& job, const Choice& choice, cudaStream_t stream) const {
  StepView view = view_of(job.model, job.contract, job.rows);
  const auto input = [this](Input which) { return in_.data() + in_at_[which]; };
  const auto words = [this](Tap tap) { return taps_.data() + tap_at_[static_cast<std::size_t>(tap)]; };
  const auto floats = [&](Tap tap) { return reinterpret_cast<float*>(words(tap)); };
  view.params = job.params;
  view.in = {reinterpret_cast<const std::int32_t*>(input(kBlock)), input(kMixedQkv), input(kA), input(kB), input(kZ)};
  view.pool = job.pool;
  view.held = job.held;
  view.out = {.conv_acc = floats(Tap::conv_acc),
              .conv_out = words(Tap::conv_out),
              .q = floats(Tap::q),
              .k = floats(Tap::k),
              .beta = floats(Tap::beta),
              .g = floats(Tap::g),
              .decay = floats(Tap::decay),
              .rstd = floats(Tap::rstd),
              .dot_k = floats(Tap::dot_k),
              .u = floats(Tap::u),
              .core_out = words(Tap::core_out),
              .norm_out = words(Tap::norm_out)};
  if (choice.fused && !job.want.has(Tap::conv_out)) view.out.conv_out = nullptr;
  view.stream = stream;
  return view;
}

void StepRun::launch_stages(const StepView& view, const Contract& contract, const Choice& choice) {
  if (choice.fused) return fuse(view, contract);
  launch_conv(view);
  launch_qk_norm(view);
  launch_gates(view);
  launch_recurrent(view);
}

void StepRun::fuse(const StepView& view, const Contract& contract) {
  FusedView f{};
  f.step = view;
  f.golden = step_preset(contract) == Preset::golden;
  f.mixed = step_preset(contract) == Preset::triton_mixed;
  f.arrived = arrived_.as<unsigned>();
  if (held_to_ == "streamed" || (held_to_.empty() && streams(view.shape, device_.major))) {
    f.windows_stay = windows_stay(view.shape, device_.cache);
    return launch_streamed(f);
  }
  if (!held_to_.empty() && held_to_ != "fused" && held_to_ != "resident")
    throw error("cuda: variant ", held_to_, ": has a row in the table and no launch in StepRun::fuse");
  cut_heads(f, device_.multiprocessors);
  f.staying = staying_heads(view.shape, device_.cache / 4 * 3);
  launch_fused(f);
}

void StepRun::launch_step(const StepJob& job, cudaStream_t stream) {
  const Choice choice = choose(job);
  launch_stages(view(job, choice, stream), job.contract, choice);
}

void StepRun::launch_norm(const StepJob& job, cudaStream_t stream) {
  const Choice choice = choose(job);
  const StepView step = view(job, choice, stream);
  choice.fast_norm ? launch_norm_fast(step, norm_preset(job.contract) == Preset::golden) : cuda::launch_norm(step);
}

}  // namespace gdnsim::cuda
