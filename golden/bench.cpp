#include "bench.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

#include "gdnsim/arith.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim::golden {
namespace {

constexpr int kTries = 200, kSteps = 256;

/// The shortest of many runs, in seconds: what else the machine does only makes a run longer.
template <class Run>
double shortest(const Run& run) {
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < kTries; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

float* aligned(Bytes& storage) {
  return reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(storage.data()) + 63) / 64 * 64);
}

}  // namespace

double peak_rate(const Variant& variant) {
  GDNSIM_CHECK(variant.kernels != nullptr);
  constexpr std::int64_t kCount = 20000;
  std::int64_t instructions = 0;
  const double seconds = shortest([&] { instructions = variant.kernels->peak(kCount); });
  return static_cast<double>(instructions) / seconds;
}

RecurrenceRate recurrence_rate(const Variant& variant, const Contract& contract, DType state_dtype, int K) {
  GDNSIM_CHECK(variant.kernels != nullptr);
  const Kernels& kernels = *variant.kernels;
  Model model;
  model.H = model.HV = 1, model.K = K, model.V = kernels.width, model.W = 2, model.state_dtype = state_dtype;
  const Slow slow{exp_cr, log_cr, log1p_cr};
  const DotContext launch{state_dtype, 1, contract.multiprocessors};
  const Rules rules{&model,
                    &contract,
                    &slow,
                    resolve(contract.qk_dot, K, launch),
                    resolve(contract.state_dot, K, launch),
                    resolve(contract.norm_dot, model.V, launch),
                    0};
  const std::size_t words = static_cast<std::size_t>(model.V) * size_of(model.act_dtype);
  std::vector<float> q(static_cast<std::size_t>(K), 0.01f), k(q.size(), 0.02f);
  Bytes v(words, std::byte{0x3C}), out(words), state(model.state_bytes()),
      scratch(static_cast<std::size_t>(kernels.scratch(rules)) * 4 + 64);
  const std::vector<HeadStep> steps(
      kSteps, {&rules, q.data(), k.data(), 0.99f, 0.5f, v.data(), out.data(), nullptr, nullptr, nullptr, nullptr});
  const HeadJob job{state_dtype, K, 0, kernels.width, state.data(), nullptr, steps.data(), kSteps, aligned(scratch)};
  const double vectors = static_cast<double>(kSteps) * K / shortest([&] { kernels.head(job); });
  const bool fused = contract.update == Update::fma && contract.state_dot.product == Product::fma;
  return {vectors, vectors * (fused ? 4 : 7)};
}

}  // namespace gdnsim::golden
