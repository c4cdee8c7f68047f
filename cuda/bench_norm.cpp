#include "bench_norm.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "gdnsim/error.hpp"
#include "gdnsim/norm.hpp"
#include "gdnsim/recipe.hpp"
#include "norm_rows.hpp"

namespace gdnsim::cuda {
namespace {

constexpr int kBatch = 64;   // of the step whose words are normalised: 2,048 rows that differ, again and again
constexpr int kCalls = 20;   // in a graph
constexpr int kRepeats = 3;  // of the whole
constexpr const char* kVariants[] = {"plain", "fast"};

/// Rows of words, as many as one likes.
struct Words {
  Bytes x, z, weight;
  NormSpec spec;
  std::int64_t different;

  Words() {
    Recipe recipe;
    recipe.seed = 1, recipe.model = bench_model(kBatch, DType::bf16), recipe.steps = 1, recipe.rows = kBatch;
    const auto stream = make_recipe_stream(recipe);
    StepInputs in;
    stream->inputs(0, 0, in);
    spec.width = recipe.model.V;
    different = 1LL * kBatch * recipe.model.HV;
    z = in.z, weight = stream->params(0).norm_weight;
    x.assign(in.mixed_qkv.begin(), in.mixed_qkv.begin() + static_cast<std::ptrdiff_t>(z.size()));
  }
  std::size_t bytes(std::int64_t rows) const {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(spec.width) * size_of(spec.act);
  }
  Bytes of(const Bytes& words, std::int64_t rows) const {
    Bytes all(bytes(rows));
    for (std::size_t at = 0; at < all.size(); at += words.size())
      std::copy_n(words.begin(), std::min(words.size(), all.size() - at),
                  all.begin() + static_cast<std::ptrdiff_t>(at));
    return all;
  }
};

void measure(const BenchOptions& options, const Words& words, const Contract& contract, std::int64_t rows, double rate,
             std::vector<Measure>& measures) {
  const Bytes x = words.of(words.x, rows), z = words.of(words.z, rows);
  NormOutputs golden, out;
  make_golden(options.backend)->norm({words.spec, contract, words.different, words.x, words.z, words.weight}, golden);
  const Bytes want = words.of(golden.out, rows);
  for (const char* variant : kVariants) {
    if (!options.wants_variant(variant)) continue;
    Measure& m = measures.emplace_back();
    m.stage = "norm", m.variant = variant, m.contract = contract.name;
    m.shape = std::to_string(rows) + " rows x " + std::to_string(words.spec.width) + " bf16";
    NormRun run(variant == std::string_view("plain") ? variant : "", false);
    std::vector<double> seconds;
    for (int i = 0; i < kRepeats; ++i) {
      run.run({words.spec, contract, rows, x, z, words.weight, kCalls}, out);
      seconds.push_back(out.seconds);
    }
    if (out.out != want)
      throw error("cuda: norm, variant ", variant, ", contract ", contract.name, ", ", m.shape,
                  ": is not golden's: nothing is measured");
    std::ranges::sort(seconds);
    m.seconds = seconds[kRepeats / 2], m.best = seconds[0];
    m.floor = norm_bytes(rows, words.spec.width) / rate, m.floor_is = bytes_at(rate);
  }
}

}  // namespace

std::string bytes_at(double rate) {
  return "all bytes at " + std::to_string(std::lround(rate / 1e9)) + " GB/s, measured by reading and writing in place";
}

void bench_norms(const BenchOptions& options, double rate, std::vector<Measure>& measures) {
  if (!options.wants_stage("norm")) return;
  const Words words;
  std::set<std::int64_t> batches{kNormRows};
  for (int rows : options.rows) batches.insert(1LL * rows * bench_model(rows, DType::bf16).HV);
  for (std::int64_t rows : batches)
    for (const char* preset : kBenchContracts)
      if (options.wants_contract(preset)) measure(options, words, contract_set(preset).decode, rows, rate, measures);
}

}  // namespace gdnsim::cuda
