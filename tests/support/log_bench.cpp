// Measures the log: a program, never a test (times depend on the machine).
//
//   log_bench write DIR [ROUNDS]            the writer fed ready buffers - outputs and full state at TP1 shapes - against plain
//                                           write() of the same bytes, in turns
//   log_bench digest DIR RECIPE [ROUNDS]    a run with --state digest against the same run with no log at all, in turns
//   log_bench long LOG                      writes a digest log of 4,096 steps and 36 layers (small heads) and opens it;
//                                           then try `gdnsim info LOG`
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <random>

#include <fcntl.h>
#include <unistd.h>

#include <gdnsim/backend.hpp>
#include <gdnsim/error.hpp>
#include <gdnsim/log.hpp>
#include <gdnsim/recipe.hpp>

namespace {

using namespace gdnsim;

/// Wall time, or with LOG_BENCH_CPU set the processor time of all threads: what to look at on a busy machine.
double seconds(const std::function<void()>& work) {
  static const clockid_t clock = std::getenv("LOG_BENCH_CPU") ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
  timespec start{}, end{};
  clock_gettime(clock, &start);
  work();
  clock_gettime(clock, &end);
  return static_cast<double>(end.tv_sec - start.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Every row in its own block, the same ones in every step; no events, no inputs.
class Rows final : public Stream {
 public:
  Rows(Model model, std::int64_t steps, int rows) : model_(std::move(model)), steps_(steps), rows_(rows) {}
  const Model& model() const override { return model_; }
  const LayerParams& params(int) const override { return params_; }
  std::int64_t steps() const override { return steps_; }
  int rows() const override { return rows_; }
  std::span<const Event> events() const override { return {}; }
  bool has_z(int) const override { return false; }
  void inputs(std::int64_t, int, StepInputs&) override {}
  void load_row(std::int32_t, Bytes&, Bytes&) override {}
  std::string source() override { return "trace:00000000000000000000000000000000"; }
  StepPlan plan(std::int64_t step) const override {
    std::vector<std::int32_t> index;
    std::vector<std::int64_t> sequence;
    for (int row = 0; row < rows_; ++row) index.push_back(row + 1), sequence.push_back(row);
    return make_plan(model_, step, Path::decode, index, sequence, rows_, "rows");
  }

 private:
  Model model_;
  std::int64_t steps_;
  int rows_;
  LayerParams params_;
};

Model model_of(int H, int HV, int K, int V, int layers, int blocks) {
  Model model;
  model.H = H, model.HV = HV, model.K = K, model.V = V, model.W = 4;
  model.scale = 0.5f;
  model.num_blocks = blocks;
  model.norm_eps = 1e-6f;
  for (int layer = 0; layer < layers; ++layer) model.layer_ids.push_back(layer);
  return model;
}

LogHeader header_of(Stream& stream, const char* policy) {
  LogHeader header;
  header.model = stream.model();
  for (int layer = 0; layer < stream.model().layers(); ++layer) header.layers.push_back(layer);
  header.contracts = contract_set("golden");
  header.source = stream.source();
  header.steps = stream.steps();
  header.rows = stream.rows();
  header.state = state_policy_from(policy);
  for (std::int64_t step = 0; step < stream.steps(); ++step) header.plans.push_back(stream.plan(step));
  return header;
}

/// What a step would leave: a pool and outputs of random words.
struct Ready {
  Ready(const LogHeader& header) : pool(header.model, header.layers) {
    std::mt19937_64 random(1);
    const auto fill = [&](std::span<std::byte> bytes) {
      for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
        const std::uint64_t word = random();
        std::memcpy(bytes.data() + i, &word, 8);
      }
    };
    for (int layer : header.layers)
      for (int row = 0; row < header.rows; ++row) fill(pool.recurrent(layer, row + 1)), fill(pool.conv(layer, row + 1));
    for (std::size_t i = 0; i < kTaps; ++i)
      if (header.taps.has(static_cast<Tap>(i))) {
        Bytes& words = outputs[static_cast<Tap>(i)];
        words.resize(shape_of(static_cast<Tap>(i), header.model).bytes() * static_cast<std::size_t>(header.rows));
        fill(words);
      }
  }
  HostPool pool;
  StepOutputs outputs;
};

void feed(LogWriter& log, const LogHeader& header, Ready& ready) {
  const StepInputs inputs;
  for (const StepPlan& plan : header.plans) {
    for (int layer : header.layers) log.after({plan.step, layer, plan, inputs, ready.outputs, ready.pool, true});
    log.step_done(plan.step);
  }
  log.close();
}

void write_plainly(const std::string& path, const LogHeader& header, const Ready& ready) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  const auto put = [&](std::span<const std::byte> bytes) {
    if (::write(file, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) throw error(path, ": write");
  };
  for (std::int64_t step = 0; step < header.steps; ++step)
    for (int layer : header.layers) {
      for (const Bytes& words : ready.outputs.taps)
        if (!words.empty()) put(words);
      for (int row = 0; row < header.rows; ++row)
        put(ready.pool.recurrent(layer, row + 1)), put(ready.pool.conv(layer, row + 1));
    }
  if (::close(file) != 0) throw error(path, ": close");
}

int bench_write(const std::string& folder, int rounds) {
  Rows stream(model_of(16, 32, 128, 128, 6, 5), 8, 4);
  const LogHeader header = header_of(stream, "full");
  Ready ready(header);
  const double bytes = static_cast<double>(log_size(header));
  const std::string path = folder + "/log_bench.h5";
  std::vector<double> plain, steps, whole, ratio, whole_ratio;
  for (int round = 0; round < rounds; ++round) {
    std::filesystem::remove(path);
    plain.push_back(seconds([&] { write_plainly(path, header, ready); }));
    std::filesystem::remove(path);
    std::unique_ptr<LogWriter> log;
    const double made = seconds([&] { log = create_log(path, header, {true}); });
    steps.push_back(seconds([&] { feed(*log, header, ready); }));
    whole.push_back(made + steps.back());
    ratio.push_back(plain.back() / steps.back());
    whole_ratio.push_back(plain.back() / whole.back());
    std::printf("  plain %.3f s, log %.3f s to reserve and %.3f s to write: %.2f, with the reserving %.2f\n",
                plain.back(), made, steps.back(), ratio.back(), whole_ratio.back());
  }
  std::filesystem::remove(path);
  const auto rate = [&](double time) { return bytes / time / 1e9; };
  std::printf("%.2f GB, medians of %d: plain %.2f GB/s, log %.2f GB/s: %.2f; with the reserving %.2f GB/s: %.2f\n",
              bytes / 1e9, rounds, rate(median(plain)), rate(median(steps)), median(ratio), rate(median(whole)),
              median(whole_ratio));
  return 0;
}

int bench_digest(const std::string& folder, const std::string& recipe, int rounds) {
  const auto stream = open_recipe(recipe);
  const auto backend = choose_backend("golden", {}).backend;
  const LogHeader header = header_of(*stream, "digest");
  const std::string path = folder + "/log_bench.h5";
  const auto run = [&](Observer& observer) {
    const auto pool = backend->make_pool(stream->model(), header.layers);
    simulate({*stream, *backend, header.contracts, header.layers, header.steps, header.taps}, *pool, observer);
  };
  std::vector<double> with, without, ratio;
  for (int round = 0; round < rounds; ++round) {
    Nobody nobody;
    without.push_back(seconds([&] { run(nobody); }));
    with.push_back(seconds([&] {
      const auto log = create_log(path, header, {true});
      run(*log);
      log->close();
    }));
    ratio.push_back(with.back() / without.back());
    std::printf("  no log %.3f s, digest log %.3f s, %.3f\n", without.back(), with.back(), ratio.back());
  }
  std::filesystem::remove(path);
  std::printf("no log %.3f s, digest log %.3f s, ratio %.3f (medians of %d)\n", median(without), median(with),
              median(ratio), rounds);
  return 0;
}

int bench_long(const std::string& path) {
  Rows stream(model_of(1, 2, 8, 8, 36, 6), 4096, 4);
  const LogHeader header = header_of(stream, "digest");
  Ready ready(header);
  std::printf("written in %.2f s\n", seconds([&] {
                const auto log = create_log(path, header, {true});
                feed(*log, header, ready);
              }));
  std::printf("opened in %.2f s\n", seconds([&] {
                if (open_log(path)->steps() != header.steps) throw error(path, ": steps are missing");
              }));
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::vector<std::string> arguments(words + 1, words + count);
  const auto number = [&](std::size_t i) { return arguments.size() > i ? std::max(1, std::atoi(words[i + 1])) : 5; };
  try {
    if (arguments.size() >= 2 && arguments[0] == "write") return bench_write(arguments[1], number(2));
    if (arguments.size() >= 3 && arguments[0] == "digest") return bench_digest(arguments[1], arguments[2], number(3));
    if (arguments.size() == 2 && arguments[0] == "long") return bench_long(arguments[1]);
  } catch (const std::exception& failed) {
    std::fprintf(stderr, "log_bench: %s\n", failed.what());
    return 2;
  }
  std::fprintf(stderr, "log_bench write DIR [ROUNDS] | digest DIR RECIPE [ROUNDS] | long LOG\n");
  return 2;
}
