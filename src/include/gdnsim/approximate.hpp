// The approximate functions that contracts are made of (docs/arithmetic.md, rules S3-S5): what the contracts mean, what a device
// computes, and whether they are the same.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace gdnsim {

enum class Approximate : std::uint8_t { ex2, rcp, sqrt, rsqrt };
inline constexpr Approximate kApproximate[] = {Approximate::ex2, Approximate::rcp, Approximate::sqrt,
                                               Approximate::rsqrt};
inline constexpr std::uint64_t kAllInputs = std::uint64_t{1} << 32;
/// The instruction: "ex2.approx.f32".
std::string_view name_of(Approximate function);

/// Bits of the results for the inputs with the bits first, first + 1, ...; each NaN the canonical one.
using ApproximateResults = std::function<void(Approximate, std::uint32_t first, std::span<std::uint32_t> results)>;
/// As the contracts mean them, in software. Defined in golden/.
void approximate_meant(Approximate function, std::uint32_t first, std::span<std::uint32_t> results);
/// As device number `device` computes them. Defined in cuda/; throws Error with the reason where there is none.
ApproximateResults approximate_of_device(int device);

struct ApproximateCheck {
  std::uint64_t inputs = 0, differing = 0;
  std::uint32_t first_input = 0, got = 0, meant = 0;  // of the first that differs
};
/// Compares `count` inputs from `first` on. `done`, if given, hears how many are.
ApproximateCheck check_approximate(Approximate function, const ApproximateResults& of_device, std::uint64_t first,
                                   std::uint64_t count, const std::function<void(std::uint64_t)>& done = {});

}  // namespace gdnsim
