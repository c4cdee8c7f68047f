// Times the CUDA kernels of one step on the present device: microseconds, and how many times longer than the memory needs for
// the same bytes. Every configuration is first checked against the plain kernels, from the same state, bit for bit.
//
//   cuda_bench [rows...]      default 1 16 64 256 1024
//   cuda_bench profile        launches each kernel once, for a profiler
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/fused.hpp"
#include "cuda/norm_fast.hpp"
#include "cuda/variants.hpp"
#include "cuda/view.hpp"
#include "cuda/window.hpp"
#include "gdnsim/error.hpp"
#include "support/one_layer.hpp"

using namespace gdnsim;
using namespace gdnsim::cuda;

namespace {

cudaStream_t the_stream;
bool conv_out_wanted = true;  // by whoever takes a step's outputs; Triton's conv writes it

/// Median microseconds of a graph of `launches` calls, replayed.
double time_graph(int launches, const std::function<void(int)>& call) {
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  GDNSIM_CUDA(cudaStreamBeginCapture(the_stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) call(i);
  GDNSIM_CUDA(cudaStreamEndCapture(the_stream, &graph));
  GDNSIM_CUDA(cudaGraphInstantiate(&ready, graph, 0));
  cudaEvent_t begin, end;
  GDNSIM_CUDA(cudaEventCreate(&begin));
  GDNSIM_CUDA(cudaEventCreate(&end));
  constexpr int kSamples = 9;
  int replays = 1;  // as many as take ten milliseconds, at most
  std::vector<double> samples;
  for (int sample = 0; sample <= kSamples; ++sample) {  // the first warms up
    GDNSIM_CUDA(cudaEventRecord(begin, the_stream));
    for (int i = 0; i < replays; ++i) GDNSIM_CUDA(cudaGraphLaunch(ready, the_stream));
    GDNSIM_CUDA(cudaEventRecord(end, the_stream));
    GDNSIM_CUDA(cudaEventSynchronize(end));
    float milliseconds = 0;
    GDNSIM_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
    if (sample > 0) samples.push_back(1e3 * milliseconds / replays / launches);
    if (sample == 0) replays = std::clamp(static_cast<int>(10.0f / milliseconds), 1, 20);
  }
  GDNSIM_CUDA(cudaGraphExecDestroy(ready));
  GDNSIM_CUDA(cudaGraphDestroy(graph));
  GDNSIM_CUDA(cudaEventDestroy(begin));
  GDNSIM_CUDA(cudaEventDestroy(end));
  std::ranges::sort(samples);
  return samples[samples.size() / 2];
}

/// Bytes a microsecond, read and written together, of a kernel that changes two gigabytes in place.
double memory_rate() {
  constexpr std::size_t bytes = std::size_t{2} << 30;
  Buffer words(bytes);
  words.zero(bytes);
  return 2.0 * bytes / time_graph(4, [&](int) { launch_change(words.data(), bytes, the_stream); });
}

Model real_model(DType state, std::int64_t blocks) {
  Model m;
  m.H = 16, m.HV = 32, m.K = 128, m.V = 128, m.W = 4;
  m.scale = 0.088388346f;
  m.state_dtype = state;
  m.norm_eps = 1e-6f;
  m.num_blocks = blocks;
  m.layer_ids = {0};
  return m;
}

/// One layer with random contents, several sets of blocks.
struct Layer {
  Model model;
  int rows, sets;
  std::size_t cache = open_device(0).cache;
  Buffer recurrent, conv, x, a, b, z, A_log, dt_bias, weight, norm_weight, conv_out, core_out, norm_out, rstd, arrived;
  Buffer q, k, beta, g, decay, dot_k, u, conv_acc;
  std::vector<Buffer> index;

  Layer(DType state, int rows_, int sets_)
      : model(real_model(state, 1 + 1LL * rows_ * sets_)), rows(rows_), sets(sets_) {
    second::Recipe recipe;
    recipe.model = model;
    second::OneLayer stream(recipe, 11, 1);
    StepInputs in;
    stream.inputs(0, 0, in);
    const LayerParams& p = stream.params(0);
    A_log.upload(p.A_log), dt_bias.upload(p.dt_bias);
    weight.upload(p.conv_weight), norm_weight.upload(p.norm_weight);
    repeat(x, in.mixed_qkv, rows), repeat(a, in.a, rows), repeat(b, in.b, rows), repeat(z, in.z, rows);
    fill_pool();
    const std::size_t heads = static_cast<std::size_t>(rows * model.HV),
                      values = heads * static_cast<std::size_t>(model.V);
    const std::size_t dims = static_cast<std::size_t>(rows * model.dim()),
                      keys = static_cast<std::size_t>(rows * model.H * model.K);
    conv_out.zero(2 * dims), core_out.zero(2 * values), norm_out.zero(2 * values), rstd.zero(4 * heads);
    arrived.zero(static_cast<std::size_t>(8 * rows * model.H));
    q.zero(4 * keys), k.zero(4 * keys), beta.zero(4 * heads), g.zero(4 * heads), decay.zero(4 * heads);
    dot_k.zero(4 * values), u.zero(4 * values), conv_acc.zero(4 * dims);
    for (int set = 0; set < sets; ++set) {
      std::vector<std::int32_t> block;
      const int turn = set == 0 || rows % 7 == 0 ? 1 : 7;  // the first set's blocks lie in the order of the rows
      for (int row = 0; row < rows; ++row) block.push_back(1 + set * rows + row * turn % rows);
      index.emplace_back().upload(block);
    }
  }

  static void repeat(Buffer& to, const Bytes& row, int rows) {
    to.resize(row.size() * static_cast<std::size_t>(rows));
    for (int r = 0; r < rows; ++r)
      GDNSIM_CUDA(cudaMemcpy(to.data() + row.size() * static_cast<std::size_t>(r), row.data(), row.size(),
                             cudaMemcpyHostToDevice));
  }

  void fill_pool() {
    second::Recipe recipe;
    recipe.model = model;
    const second::Block block = second::OneLayer(recipe, 11, 1).random_block(5);
    Buffer one_state, one_conv;
    one_state.upload(block.recurrent), one_conv.upload(block.conv);
    recurrent.resize(block.recurrent.size() * static_cast<std::size_t>(model.num_blocks));
    conv.resize(block.conv.size() * static_cast<std::size_t>(model.num_blocks));
    for (std::size_t i = 0; i < static_cast<std::size_t>(model.num_blocks); ++i) {
      GDNSIM_CUDA(cudaMemcpyAsync(recurrent.data() + i * block.recurrent.size(), one_state.data(),
                                  block.recurrent.size(), cudaMemcpyDeviceToDevice, the_stream));
      GDNSIM_CUDA(cudaMemcpyAsync(conv.data() + i * block.conv.size(), one_conv.data(), block.conv.size(),
                                  cudaMemcpyDeviceToDevice, the_stream));
    }
    GDNSIM_CUDA(cudaStreamSynchronize(the_stream));
  }

  StepView view(const Contract& contract, int set) {
    StepView v = view_of(model, contract, rows);
    v.params = {A_log.as<float>(), dt_bias.as<float>(), weight.data(), nullptr, norm_weight.data()};
    v.in = {index[static_cast<std::size_t>(set)].as<const std::int32_t>(), x.data(), a.data(), b.data(), z.data()};
    v.pool = {recurrent.data(), conv.data()};
    v.out = {conv_acc.as<float>(), conv_out.data(), q.as<float>(),     k.as<float>(),
             beta.as<float>(),     g.as<float>(),   decay.as<float>(), rstd.as<float>(),
             dot_k.as<float>(),    u.as<float>(),   core_out.data(),   norm_out.data()};
    v.stream = the_stream;
    if (!conv_out_wanted) v.out.conv_out = nullptr;
    return v;
  }

  /// What a step must move: state and window in and out, x, core_out, a, b, conv_out if wanted; parameters are small.
  double bytes() const {
    const double state = 2.0 * static_cast<double>(model.state_bytes() + model.conv_bytes());
    return rows * (state + 2.0 * ((conv_out_wanted ? 2.0 : 1.0) * static_cast<double>(model.dim()) +
                                  model.HV * model.V + 2.0 * model.HV));
  }
};

/// How a step is cut: rows of a block's tile, and megabytes of the state that should stay in the cache; or streamed.
struct Cut {
  int tile, staying, streamed = 0;
};

FusedView fused_view(Layer& layer, const Contract& contract, int set, int multiprocessors, const Cut& cut) {
  FusedView f{};
  f.step = layer.view(contract, set);
  f.golden = step_preset(contract) == Preset::golden;
  f.mixed = step_preset(contract) == Preset::triton_mixed;
  f.arrived = layer.arrived.as<unsigned>();
  f.staying = staying_heads(f.step.shape, static_cast<std::size_t>(cut.staying) << 20);
  cut_heads(f, multiprocessors, cut.tile);
  f.windows_stay = windows_stay(f.step.shape, layer.cache);
  return f;
}

void launch(const FusedView& f, const Cut& cut) { cut.streamed != 0 ? launch_streamed(f) : launch_fused(f); }

struct Result {
  Bytes state, conv, conv_out, core_out;
  bool operator==(const Result&) const = default;
};

Result run_from_start(Layer& layer, const std::function<void()>& step) {
  layer.fill_pool();
  GDNSIM_CUDA(cudaMemset(layer.conv_out.data(), 0xA5, 2 * static_cast<std::size_t>(layer.rows * layer.model.dim())));
  GDNSIM_CUDA(cudaMemset(layer.core_out.data(), 0xA5,
                         2 * static_cast<std::size_t>(layer.rows * layer.model.HV * layer.model.V)));
  for (int i = 0; i < 2; ++i) step();
  GDNSIM_CUDA(cudaStreamSynchronize(the_stream));
  Result result;
  const std::size_t blocks = static_cast<std::size_t>(layer.model.num_blocks);
  layer.recurrent.download(result.state, blocks * layer.model.state_bytes());
  layer.conv.download(result.conv, blocks * layer.model.conv_bytes());
  layer.conv_out.download(result.conv_out, 2 * static_cast<std::size_t>(layer.rows * layer.model.dim()));
  layer.core_out.download(result.core_out, 2 * static_cast<std::size_t>(layer.rows * layer.model.HV * layer.model.V));
  return result;
}

int failures = 0;

void check_fused(const Contract& contract, DType state, int multiprocessors) {
  Layer layer(state, 5, 1);
  const StepView plain = layer.view(contract, 0);
  const Result want = run_from_start(
      layer, [&] { launch_conv(plain), launch_qk_norm(plain), launch_gates(plain), launch_recurrent(plain); });
  for (const Cut& cut : {Cut{0, 0}, Cut{128, 5}, Cut{64, 100}, Cut{32, 0}, Cut{16, 5}, Cut{0, 0, 1}}) {
    const FusedView f = fused_view(layer, contract, 0, multiprocessors, cut);
    const Result got = run_from_start(layer, [&] { launch(f, cut); });
    if (got == want) continue;
    ++failures;
    std::printf("DIFFERS: %s state %s tile %d streamed %d: state %d conv %d conv_out %d core_out %d equal\n",
                contract.name.c_str(), std::string(name_of(state)).c_str(), cut.tile, cut.streamed,
                got.state == want.state, got.conv == want.conv, got.conv_out == want.conv_out,
                got.core_out == want.core_out);
  }
}

std::vector<Cut> cuts_for(int rows) {
  if (rows > 16) return {{0, 0, 1}};
  return {{0, 100}, {0, 0, 1}};
}

void time_step(const Contract& contract, DType state, int rows, double rate, int multiprocessors) {
  const int sets = std::clamp(600 / rows, 2, 100);
  Layer layer(state, rows, sets);
  const double floor = layer.bytes() / rate;
  for (const Cut& cut : cuts_for(rows)) {
    const auto same = [&](int) { launch(fused_view(layer, contract, 0, multiprocessors, cut), cut); };
    const auto other = [&](int i) { launch(fused_view(layer, contract, i, multiprocessors, cut), cut); };
    const double one = time_graph(1, same), many = time_graph(20, same), cold = time_graph(sets, other);
    std::printf(
        "%s %-11s %-4s B %4d %s %3d staying %3d | %8.2f us (alone %8.2f), other blocks %8.2f | floor %8.2f: %5.3f, "
        "%5.3f\n",
        conv_out_wanted ? "with conv_out" : "step", contract.name.c_str(), std::string(name_of(state)).c_str(), rows,
        cut.streamed != 0 ? "streamed" : "tile",
        cut.streamed != 0 ? cut.streamed : fused_view(layer, contract, 0, multiprocessors, cut).tile, cut.staying, many,
        one, cold, floor, many / floor, cold / floor);
  }
  std::fflush(stdout);
}

// ---- windows ----

/// A window of steps over the same rows, on the device.
struct DeviceWindow {
  Layer& layer;
  int steps;
  Buffer row_block, mixed, block, first, visit, segment, look, slot, bytes, heads, convs;
  Buffer x, a, b, z, conv_out, core_out, norm_out, rstd, q, k, beta, g, decay;
  WindowPlan plan;

  DeviceWindow(Layer& layer_, int steps_, bool looks) : layer(layer_), steps(steps_) {
    std::vector<StepPlan> plans(static_cast<std::size_t>(steps));
    std::vector<std::vector<Look>> seen(plans.size());
    for (std::size_t t = 0; t < plans.size(); ++t)
      for (int row = 0; row < layer.rows; ++row) {
        plans[t].block.push_back(1 + row);
        if (looks) seen[t].push_back({1 + row, false});
      }
    plan = plan_window(plans, seen);
    const std::vector<std::uint8_t> none(plan.row_block.size());
    mixed.upload(none), row_block.upload(plan.row_block), block.upload(plan.block);
    first.upload(plan.first), visit.upload(plan.visit), segment.upload(plan.segments);
    look.upload(plan.look), slot.upload(plan.slots), bytes.upload(plan.bytes);
    heads.zero(8 * plan.slots.size() * static_cast<std::size_t>(layer.model.HV) + 8),
        convs.zero(8 * plan.slots.size() + 8);
    repeat(x, layer.x), repeat(a, layer.a), repeat(b, layer.b), repeat(z, layer.z);
    const std::size_t heads = static_cast<std::size_t>(flat() * layer.model.HV),
                      values = heads * static_cast<std::size_t>(layer.model.V);
    const std::size_t dims = static_cast<std::size_t>(flat() * layer.model.dim()),
                      keys = static_cast<std::size_t>(flat() * layer.model.H * layer.model.K);
    conv_out.zero(2 * dims), core_out.zero(2 * values), norm_out.zero(2 * values), rstd.zero(4 * heads);
    q.zero(4 * keys), k.zero(4 * keys), beta.zero(4 * heads), g.zero(4 * heads), decay.zero(4 * heads);
  }

  std::int64_t flat() const { return 1LL * steps * layer.rows; }

  /// The layer's inputs again and again, turned by a few words a step so that no step equals another.
  void repeat(Buffer& to, const Buffer& from) {
    Bytes once;
    const std::size_t each = &from == &layer.x ? 2 * static_cast<std::size_t>(layer.rows * layer.model.dim())
                             : &from == &layer.z
                                 ? 2 * static_cast<std::size_t>(layer.rows * layer.model.HV * layer.model.V)
                                 : 2 * static_cast<std::size_t>(layer.rows * layer.model.HV);
    from.download(once, each);
    Bytes all;
    for (int t = 0; t < steps; ++t) {
      const std::size_t turn = 2 * static_cast<std::size_t>(t * 5) % each;
      all.insert(all.end(), once.begin() + static_cast<std::ptrdiff_t>(turn), once.end());
      all.insert(all.end(), once.begin(), once.begin() + static_cast<std::ptrdiff_t>(turn));
    }
    to.upload(all);
  }

  WindowView view(const Contract& contract) {
    WindowView w{};
    w.step = layer.view(contract, 0);
    w.step.shape.rows = flat();
    w.step.in = {row_block.as<const std::int32_t>(), x.data(), a.data(), b.data(), z.data()};
    w.step.out = {nullptr,           conv_out.data(),  q.as<float>(), k.as<float>(), beta.as<float>(), g.as<float>(),
                  decay.as<float>(), rstd.as<float>(), nullptr,       nullptr,       core_out.data(),  norm_out.data()};
    w.golden = step_preset(contract) == Preset::golden;
    w.chains = static_cast<int>(plan.block.size()), w.segments = static_cast<int>(plan.segments.size()),
    w.slots = static_cast<int>(plan.slots.size()), w.longest = plan.longest();
    w.mixed = mixed.as<std::uint8_t>(), w.block = block.as<std::int32_t>(), w.first = first.as<std::int32_t>();
    w.visit = visit.as<std::int32_t>(), w.segment = segment.as<Segment>(), w.look = look.as<std::int32_t>(),
    w.slot = slot.as<Slot>();
    w.bytes = bytes.as<std::uint8_t>(), w.heads = heads.as<unsigned long long>(),
    w.convs = convs.as<unsigned long long>();
    return w;
  }

  /// One step of it by the plain kernels.
  void plain_step(const Contract& contract, int t) {
    StepView v = layer.view(contract, 0);
    const std::size_t rows = static_cast<std::size_t>(layer.rows), at = static_cast<std::size_t>(t) * rows,
                      HV = static_cast<std::size_t>(layer.model.HV);
    v.in = {row_block.as<const std::int32_t>() + at, x.data() + 2 * at * static_cast<std::size_t>(layer.model.dim()),
            a.data() + 2 * at * HV, b.data() + 2 * at * HV, nullptr};
    launch_conv(v), launch_qk_norm(v), launch_gates(v), launch_recurrent(v);
  }
};

void check_window(const Contract& contract, DType state, int rows_each) {
  Layer layer(state, 3, 1);
  DeviceWindow window(layer, 21, false);
  const Result want = run_from_start(layer, [&] {
    for (int t = 0; t < window.steps; ++t) window.plain_step(contract, t);
  });
  const WindowView w = window.view(contract);
  Result got = run_from_start(layer, [&] {
    launch_window_prepare(w), launch_window_resident(w, 132, rows_each), launch_window_roll(w);
    // the last step's outputs, where the plain kernels have theirs
    const std::size_t dims = 2 * static_cast<std::size_t>(layer.rows * layer.model.dim()),
                      values = 2 * static_cast<std::size_t>(layer.rows * layer.model.HV * layer.model.V);
    const std::size_t last = static_cast<std::size_t>(window.steps - 1);
    GDNSIM_CUDA(cudaMemcpyAsync(layer.conv_out.data(), window.conv_out.data() + last * dims, dims,
                                cudaMemcpyDeviceToDevice, the_stream));
    GDNSIM_CUDA(cudaMemcpyAsync(layer.core_out.data(), window.core_out.data() + last * values, values,
                                cudaMemcpyDeviceToDevice, the_stream));
  });
  if (got == want) return;
  ++failures;
  std::printf("DIFFERS: window %s state %s rows each %d: state %d conv %d conv_out %d core_out %d equal\n",
              contract.name.c_str(), std::string(name_of(state)).c_str(), rows_each, got.state == want.state,
              got.conv == want.conv, got.conv_out == want.conv_out, got.core_out == want.core_out);
}

void time_window(const Contract& contract, DType state, int rows, int steps, bool looks) {
  Layer layer(state, rows, 1);
  DeviceWindow window(layer, steps, looks);
  const WindowView w = window.view(contract);
  const bool golden = norm_preset(contract) == Preset::golden;
  const auto each = [&](const std::function<void()>& call) { return time_graph(1, [&](int) { call(); }) / steps; };
  const double prepare = each([&] { launch_window_prepare(w); }), roll = each([&] { launch_window_roll(w); });
  const double norm = each([&] { launch_norm_fast(w.step, golden); }),
               look = looks ? each([&] { launch_window_looks(w); }) : 0.0;
  for (int rows_each : {1, 4}) {
    const double resident = each([&] { launch_window_resident(w, 132, rows_each); });
    std::printf(
        "resident %-12s %s B %3d, %d steps%s, %d rows a thread | a step: resident %7.3f us, prepare %6.3f, roll %6.3f, "
        "looks %6.3f, norm %6.3f, all %7.3f\n",
        contract.name.c_str(), std::string(name_of(state)).c_str(), rows, steps, looks ? " digested" : "", rows_each,
        resident, prepare, roll, look, norm, resident + prepare + roll + look + norm);
  }
  std::fflush(stdout);
}

void time_norm(const Contract& contract, int rows, double rate) {
  Layer layer(DType::bf16, rows, 1);
  FusedView f = fused_view(layer, contract, 0, 132, Cut{0, 0});
  launch_fused(f);
  const bool golden = norm_preset(contract) == Preset::golden;
  const std::size_t bytes = 2 * static_cast<std::size_t>(rows * layer.model.HV * layer.model.V);
  GDNSIM_CUDA(cudaStreamSynchronize(the_stream));
  Bytes want, got;
  GDNSIM_CUDA(cudaMemset(layer.norm_out.data(), 0x5A, bytes));
  launch_norm(f.step);
  GDNSIM_CUDA(cudaStreamSynchronize(the_stream));
  layer.norm_out.download(want, bytes);
  GDNSIM_CUDA(cudaMemset(layer.norm_out.data(), 0xA5, bytes));
  launch_norm_fast(f.step, golden);
  GDNSIM_CUDA(cudaStreamSynchronize(the_stream));
  layer.norm_out.download(got, bytes);
  failures += want == got ? 0 : 1;
  const double us = time_graph(20, [&](int) { launch_norm_fast(f.step, golden); }),
               floor = 3.0 * static_cast<double>(bytes) / rate;
  const double plain = time_graph(3, [&](int) { launch_norm(f.step); });
  std::printf("norm  %-12s %7d rows x 128 %s | %8.2f us, %5.3f of the floor | plain %8.2f us\n", contract.name.c_str(),
              rows * 32, want == got ? "equal" : "DIFFERS", us, us / floor, plain);
  std::fflush(stdout);
}

/// One launch of each kernel that matters, for a profiler.
void profile(int multiprocessors) {
  for (const char* name : {"golden", "triton-sm90"}) {
    const Contract& contract = contract_preset(name);
    for (int rows : {1, 64, 256}) {
      Layer layer(DType::f32, rows, 1);
      launch_fused(fused_view(layer, contract, 0, multiprocessors, Cut{0, 0}));
      if (rows > 1) launch_streamed(fused_view(layer, contract, 0, multiprocessors, Cut{0, 0, 1}));
      GDNSIM_CUDA(cudaStreamSynchronize(the_stream));
    }
    for (int rows : {1, 64}) {
      Layer layer(DType::f32, rows, 1);
      DeviceWindow window(layer, 32, false);
      const WindowView w = window.view(contract);
      launch_window_prepare(w);
      for (int rows_each : {1, 4}) launch_window_resident(w, multiprocessors, rows_each);
      GDNSIM_CUDA(cudaStreamSynchronize(the_stream));
    }
    Layer layer(DType::bf16, 8192, 1);
    launch_norm_fast(layer.view(contract, 0), norm_preset(contract) == Preset::golden);
    GDNSIM_CUDA(cudaStreamSynchronize(the_stream));
  }
}

}  // namespace

int main(int argc, char** argv) try {
  std::vector<int> rows;
  if (argc == 2 && std::string(argv[1]) == "profile") {
    const DeviceInfo device = open_device(0);
    GDNSIM_CUDA(cudaStreamCreate(&the_stream));
    profile(device.multiprocessors);
    return 0;
  }
  for (int i = 1; i < argc; ++i) rows.push_back(std::atoi(argv[i]));
  if (rows.empty()) rows = {1, 16, 64, 256, 1024};
  const DeviceInfo device = open_device(0);
  GDNSIM_CUDA(cudaStreamCreate(&the_stream));
  std::printf("%s\n", describe(device).c_str());
  for (const char* name : {"golden", "triton-sm90", "triton-sm90-mixed"})
    for (DType state : {DType::f32, DType::bf16}) check_fused(contract_preset(name), state, device.multiprocessors);
  std::printf("fused against plain: %d configurations differ\n", failures);
  for (const char* name : {"golden", "triton-sm90"})
    for (DType state : {DType::f32, DType::bf16})
      for (int rows_each : {1, 4}) check_window(contract_preset(name), state, rows_each);
  std::printf("windows too: %d configurations differ\n", failures);
  const double rate = memory_rate();
  std::printf("memory, read and written: %.0f GB/s\n", rate / 1e3);
  for (const char* name : {"golden", "triton-sm90"}) time_norm(contract_preset(name), 8192, rate);
  for (const char* name : {"triton-sm90", "golden"}) {
    for (int B : {1, 64}) time_window(contract_preset(name), DType::f32, B, B == 1 ? 512 : 256, false);
  }
  for (const bool wanted : {false, true})
    for (DType state : {DType::f32, DType::bf16})
      for (const char* name : {"triton-sm90", "golden"})
        for (int B : rows) {
          conv_out_wanted = wanted;
          time_step(contract_preset(name), state, B, rate, device.multiprocessors);
        }
  return failures == 0 ? 0 : 1;
} catch (const Error& problem) {
  std::fprintf(stderr, "%s\n", problem.what());
  return 2;
}
