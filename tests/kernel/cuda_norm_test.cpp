// The norm by itself on the device against golden, bit for bit: every preset and variant, widths that the fast kernel has and
// others, gated and plain, outputs poisoned and what lies beyond them watched. Without a device the cases are skipped.
#include <doctest/doctest.h>

#include <gdnsim/contract.hpp>
#include <gdnsim/norm.hpp>

#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "kernel/device.hpp"
#include "support/one_layer.hpp"

using namespace gdnsim;
using namespace gdnsim::second;

namespace {

constexpr int kWidths[] = {1, 33, 64, 128, 256, 4096};
constexpr std::uint32_t kHostile[] = {0, 3000, 60};

/// One norm's rows, and what golden makes of them.
struct Norm {
  NormSpec spec;
  Contract contract;
  std::int64_t rows;
  Bytes x, z, weight;

  Norm(const NormSpec& spec_, const Contract& contract_, std::int64_t rows_, unsigned n)
      : spec(spec_), contract(contract_), rows(rows_) {
    Random random(n);
    const std::uint32_t hostile = kHostile[n % 3];
    x = random_values(random, rows * spec.width, spec.act, 0, 1, hostile);
    if (spec.gated) z = random_values(random, rows * spec.width, spec.act, 0, 2, hostile);
    weight = random_values(random, spec.width, spec.act, 1 - spec.weight_offset, 0.1f, hostile);
  }
  NormOutputs of(Backend& backend) const {
    NormOutputs outputs;
    backend.norm({spec, contract, rows, x, z, weight}, outputs);
    return outputs;
  }
};

void compare(Backend& backend, const Norm& norm, const NormOutputs& want, std::uint64_t& elements) {
  for (int twice = 0; twice < 2; ++twice) {
    const NormOutputs got = norm.of(backend);
    CHECK(first_difference(got.out, want.out, size_of(norm.spec.act)) == "");
    REQUIRE(got.rstd.size() == want.rstd.size());
    CHECK(std::memcmp(got.rstd.data(), want.rstd.data(), want.rstd.size() * sizeof(float)) == 0);
  }
  elements += want.out.size() / size_of(norm.spec.act) + want.rstd.size();
}

/// The backend as the program makes it, then each variant that the device has; none without a device.
std::vector<std::unique_ptr<Backend>> poisoned_backends() {
  std::vector<std::unique_ptr<Backend>> result;
  for (const cuda::Variant& variant : cuda::variants())
    if (auto backend = test::try_variant(variant.name, true)) result.push_back(std::move(backend));
  if (!result.empty()) result.insert(result.begin(), make_cuda({.threads = 0, .device = 0, .poison = true}));
  return result;
}

/// Gated and plain, with and without an offset, each type and these numbers of rows. Elements compared of one backend.
std::uint64_t compare_width(const std::vector<std::unique_ptr<Backend>>& backends, const Contract& contract, int width,
                            std::initializer_list<std::int64_t> row_counts, unsigned& n) {
  const auto golden = make_golden({});
  std::uint64_t elements = 0;
  for (const bool gated : {true, false})
    for (const float offset : {0.0f, 1.0f})
      for (const DType act : {DType::bf16, DType::f16, DType::f32})
        for (const std::int64_t rows : row_counts) {
          const NormGate gate = ++n % 2 == 0 ? NormGate::silu : NormGate::sigmoid;
          const NormSpec spec{width, act, gated, gate, 1e-6f, offset};
          if (!undefined_because(contract, spec).empty()) continue;
          CAPTURE(contract.name);
          CAPTURE(describe(spec));
          CAPTURE(rows);
          const Norm norm(spec, contract, rows, n);
          const NormOutputs want = norm.of(*golden);
          for (const auto& backend : backends) compare(*backend, norm, want, elements);
        }
  return elements / backends.size();
}

}  // namespace

TEST_CASE("cuda norm: by itself, every preset, width and variant gives golden's bits") {
  const auto backends = poisoned_backends();
  if (backends.empty()) return;
  unsigned n = 0;
  for (const Contract& preset : contract_presets()) {
    std::uint64_t elements = 0;
    for (const int multiprocessors : {preset.multiprocessors, 1}) {  // lanes by rows: others in each
      Contract contract = preset;
      contract.multiprocessors = multiprocessors;
      for (const int width : kWidths) elements += compare_width(backends, contract, width, {1, 5, 301}, n);
    }
    MESSAGE(preset.name << ": elements compared " << elements);
    CHECK(elements > 100000);
  }
}

TEST_CASE("cuda norm: a few rows, which sanitizers have the time for") {
  const auto backends = poisoned_backends();
  if (backends.empty()) return;
  unsigned n = 0;
  for (const char* preset : {"golden", "triton-sm90", "triton-sm90-tiled-norm"}) {
    std::uint64_t elements = 0;
    for (const int width : kWidths) elements += compare_width(backends, contract_preset(preset), width, {1, 7}, n);
    CHECK(elements > 1000);
  }
}
