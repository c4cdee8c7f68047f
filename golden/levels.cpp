#include "levels.hpp"

#include "gdnsim/check.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim::golden {
namespace {

std::vector<Variant> make_variants() {
  std::vector<Variant> all{{Level::plain, "plain", true, nullptr},
                           {Level::sse2, "sse2", false, nullptr},
                           {Level::avx2, "avx2", false, nullptr},
                           {Level::avx512, "avx512", false, nullptr}};
#ifdef GDNSIM_SIMD
  // The builtin asks the CPU, and whether the system saves the registers.
  const auto enable = [&all](Level level, bool has, const Kernels& (*kernels)()) {
    Variant& variant = all[static_cast<std::size_t>(level)];
    variant.available = has;
    if (has) variant.kernels = &kernels();
  };
  enable(Level::sse2, true, kernels_sse2);
  enable(Level::avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), kernels_avx2);
  enable(Level::avx512,
         __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"),
         kernels_avx512);
#endif
  return all;
}

std::string known_names() {
  std::string names;
  for (const Variant& variant : variants()) names += (names.empty() ? "" : ", ") + std::string(variant.name);
  return names;
}

}  // namespace

std::span<const Variant> variants() {
  static const std::vector<Variant> all = make_variants();
  return all;
}

std::string_view name_of(Level level) { return variants()[static_cast<std::size_t>(level)].name; }

std::optional<Level> level_from(std::string_view name) {
  for (const Variant& variant : variants())
    if (variant.name == name) return variant.level;
  return std::nullopt;
}

Level best_level() {
  Level best = Level::plain;
  for (const Variant& variant : variants())
    if (variant.available) best = variant.level;
  return best;
}

const Variant& choose_variant(const std::string& name) {
  const std::optional<Level> level = name.empty() ? best_level() : level_from(name);
  if (!level) throw error("cpu level: expected one of ", known_names(), ", found '", name, "'");
  const Variant& variant = variants()[static_cast<std::size_t>(*level)];
  if (!variant.available) throw error("cpu level: this CPU, or this build, cannot run '", name, "'");
  return variant;
}

}  // namespace gdnsim::golden

std::vector<std::string> gdnsim::golden_kernels() {
  std::vector<std::string> names;
  for (const golden::Variant& each : golden::variants())
    if (each.available) names.emplace_back(each.name);
  return names;
}
