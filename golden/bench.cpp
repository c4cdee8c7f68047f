#include "bench.hpp"

#include "gdnsim/arith.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim::golden {
namespace {

constexpr int kSteps = 256;
constexpr std::int64_t kPeakCount = 20000;

float* aligned(Bytes& storage) {
  return reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(storage.data()) + 63) / 64 * 64);
}

}  // namespace

double peak_rate(const Variant& variant, double seconds) {
  GDNSIM_CHECK(variant.kernels != nullptr);
  std::int64_t instructions = 0;
  const Times times = times_of(seconds, [&] { instructions = variant.kernels->peak(kPeakCount); });
  return static_cast<double>(instructions) / times.best;
}

int instructions_a_vector(const Contract& contract) {
  const bool fused = contract.update == Update::fma && contract.state_dot.product == Product::fma;
  return fused ? 4 : 7;
}

double state_vectors(const Variant& variant, const Model& model) {
  const int width = variant.kernels->width;
  return 1.0 * model.HV * model.K * ((model.V + width - 1) / width);
}

Recurrence recurrence_times(const Variant& variant, const Contract& contract, const Model& model, double seconds) {
  const Kernels& kernels = *variant.kernels;
  const Slow slow{exp_cr, log_cr, log1p_cr};
  const DotContext launch{model.state_dtype, model.HV, contract.multiprocessors};
  const Rules rules{&model,
                    &contract,
                    &slow,
                    resolve(contract.qk_dot, model.K, launch),
                    resolve(contract.state_dot, model.K, launch),
                    resolve(contract.norm_dot, model.V, launch),
                    0};
  const std::size_t K = static_cast<std::size_t>(model.K), V = static_cast<std::size_t>(model.V);
  const std::vector<float> q(K, 0.01f), k(K, 0.02f);
  const Bytes v(V * size_of(model.act_dtype), std::byte{0x3C});
  Bytes out(v.size()), state(V * K * size_of(model.state_dtype)),
      scratch(static_cast<std::size_t>(kernels.scratch(rules)) * 4 + 64);
  const std::vector<HeadStep> steps(
      kSteps, {&rules, q.data(), k.data(), 0.99f, 0.5f, v.data(), out.data(), nullptr, nullptr, nullptr, nullptr});
  const auto head = [&] {
    kernels.head(
        {model.state_dtype, model.K, 0, model.V, state.data(), nullptr, steps.data(), kSteps, aligned(scratch)});
  };
  std::vector<double> peaks;
  const Times times = times_of(seconds, head, [&] { peaks.push_back(peak_rate(variant, 0)); });
  std::ranges::sort(peaks);
  return {{times.median / kSteps * model.HV, times.best / kSteps * model.HV}, peaks[peaks.size() / 2]};
}

}  // namespace gdnsim::golden
