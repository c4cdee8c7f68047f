#include "norm_rows.hpp"

#include <algorithm>

#include "gdnsim/error.hpp"
#include "norm_fast.hpp"
#include "variants.hpp"
#include "view.hpp"

namespace gdnsim::cuda {
namespace {

constexpr std::size_t kGuard = 256;  // bytes watched beyond an output
constexpr int kPoison = 0xA5;
constexpr int kReplays = 5;

/// A model whose steps have this norm, one head a row; state and keys are as narrow as can be and nobody's.
Model model_of(const NormSpec& spec) {
  Model model;
  model.H = model.HV = 1;
  model.K = model.V = spec.width;
  model.act_dtype = spec.act;
  model.norm_eps = spec.eps;
  model.norm_gate = spec.gate;
  return model;
}

bool fits_fast(const NormArgs& args) {
  const NormSpec& spec = args.spec;
  return spec.gated && spec.weight_offset == 0 && fast_norm_refuses(args.contract, model_of(spec)).empty();
}

/// Seconds of one of `calls` calls in a graph; the median of a few replays.
double graph_seconds(Queue& queue, int calls, const std::function<void()>& call) {
  call();
  const Graph graph = Graph::record(queue, [&] {
    for (int i = 0; i < calls; ++i) call();
  });
  std::vector<double> seconds;
  Mark begin, end;
  for (int i = 0; i < kReplays; ++i) {
    begin.set(queue);
    graph.launch(queue);
    end.set(queue);
    seconds.push_back(end.seconds_since(begin) / calls);
  }
  std::ranges::sort(seconds);
  return seconds[kReplays / 2];
}

}  // namespace

NormView NormRun::view(const NormArgs& args, cudaStream_t stream) const {
  const NormSpec& spec = args.spec;
  const StepView step = view_of(model_of(spec), args.contract, args.rows);
  return {.rows = args.rows,
          .width = spec.width,
          .act_type = spec.act,
          .gate_silu = spec.gate == NormGate::silu,
          .eps = spec.eps,
          .weight_offset = spec.weight_offset,
          .rules = step.rules,
          .order = step.norm_order,
          .x = x_.data(),
          .z = spec.gated ? z_.data() : nullptr,
          .weight = weight_.data(),
          .out = out_.data(),
          .rstd = rstd_.as<float>(),
          .stream = stream};
}

void NormRun::launch(const NormArgs& args, cudaStream_t stream) const {
  const NormView norm = view(args, stream);
  if (held_to_ == "plain" || !fits_fast(args)) return launch_norm_rows(norm);
  StepView step = view_of(model_of(args.spec), args.contract, args.rows);
  step.params.norm_weight = norm.weight;
  step.in.z = norm.z;
  step.out.core_out = x_.data();
  step.out.norm_out = norm.out;
  step.out.rstd = norm.rstd;
  step.stream = stream;
  launch_norm_fast(step, norm_preset(args.contract) == Preset::golden);
}

void NormRun::run(const NormArgs& args, NormOutputs& outputs) {
  const std::size_t bytes = args.x.size(), rows = static_cast<std::size_t>(args.rows);
  outputs.out.resize(bytes), outputs.rstd.resize(rows), outputs.seconds = 0;
  if (rows == 0) return;
  for (auto [buffer, size] : {std::pair{&x_, bytes}, {&z_, args.z.size()}, {&weight_, args.weight.size()}})
    buffer->resize(size);
  out_.resize(bytes + kGuard), rstd_.resize(rows * sizeof(float) + kGuard);
  queue_.copy(x_.data(), args.x.data(), bytes);
  queue_.copy(z_.data(), args.z.data(), args.z.size());
  queue_.copy(weight_.data(), args.weight.data(), args.weight.size());
  if (poison_) queue_.fill(out_.data(), kPoison, bytes + kGuard);
  if (poison_) queue_.fill(rstd_.data(), kPoison, rows * sizeof(float) + kGuard);
  launch(args, queue_.stream());
  queue_.copy(outputs.out.data(), out_.data(), bytes);
  queue_.copy(outputs.rstd.data(), rstd_.data(), rows * sizeof(float));
  queue_.wait();
  if (poison_) check_guards(args);
  if (args.timed > 0) outputs.seconds = graph_seconds(queue_, args.timed, [&] { launch(args, queue_.stream()); });
}

void NormRun::check_guards(const NormArgs& args) {
  Bytes words;
  const auto check = [&](const Buffer& buffer, std::size_t bytes, const char* what) {
    buffer.download(words, bytes + kGuard);
    const auto written = std::ranges::find_if(words.begin() + static_cast<std::ptrdiff_t>(bytes), words.end(),
                                              [](std::byte b) { return b != std::byte{kPoison}; });
    if (written != words.end()) throw error("cuda: the norm's kernel wrote beyond its ", what);
  };
  check(out_, args.x.size(), "rows");
  check(rstd_, static_cast<std::size_t>(args.rows) * sizeof(float), "roots");
}

double measured_memory_rate() {
  constexpr std::size_t bytes = std::size_t{2} << 30;
  Queue queue;
  Buffer words(bytes);
  words.zero(bytes);
  return 2.0 * bytes / graph_seconds(queue, 4, [&] { launch_change(words.data(), bytes, queue.stream()); });
}

}  // namespace gdnsim::cuda
