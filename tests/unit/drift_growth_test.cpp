// How a curve goes on: made-up curves of every class, with noise, with seeds that disagree, with too little to tell.
#include <gdnsim/drift.hpp>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include <doctest/doctest.h>

using namespace gdnsim;

namespace {

constexpr int kSteps = 4096;

std::vector<std::int32_t> all_steps() {
  std::vector<std::int32_t> steps;
  for (int step = 0; step < kSteps; ++step) steps.push_back(step);
  return steps;
}

/// `seeds` curves value(x) * (1 + noise), x counting from 1; `factor(seed)` multiplies a whole curve.
std::vector<std::vector<float>> curves_of(
    const std::function<double(double)>& value, double noise, int seeds = 8,
    const std::function<double(int)>& factor = [](int) { return 1.0; }) {
  std::vector<std::vector<float>> curves;
  for (int seed = 0; seed < seeds; ++seed) {
    std::mt19937 bits(static_cast<unsigned>(seed));
    auto& curve = curves.emplace_back();
    for (int x = 1; x <= kSteps; ++x) {
      const double uniform = static_cast<double>(bits()) / 4294967296.0 - 0.5;
      curve.push_back(static_cast<float>(factor(seed) * value(x) * (1 + 2 * noise * uniform)));
    }
  }
  return curves;
}

GrowthFit fit(const std::function<double(double)>& value, double noise = 0.05) {
  return fit_growth(all_steps(), curves_of(value, noise));
}

}  // namespace

TEST_CASE("zeros are none, a level is a plateau at its height") {
  CHECK(fit([](double) { return 0.0; }).kind == Growth::none);
  const GrowthFit level = fit([](double x) { return 9e-3 * (1 - std::exp(-x / 100)); });
  CHECK(level.kind == Growth::plateau);
  CHECK(level.level == doctest::Approx(9e-3).epsilon(0.01));
  CHECK(std::abs(level.exponent) < 0.02);
}

TEST_CASE("lines, roots and squares have their exponent") {
  const GrowthFit line = fit([](double x) { return 2e-6 * x; });
  CHECK(line.kind == Growth::linear);
  CHECK(line.gain == doctest::Approx(2e-6).epsilon(0.03));
  CHECK(line.gain_error > 0);
  CHECK(std::abs(line.gain - 2e-6f) < 4 * line.gain_error);
  CHECK(line.gain_error < 0.02f * line.gain);
  const GrowthFit root = fit([](double x) { return 1e-3 * std::sqrt(x); });
  CHECK(root.kind == Growth::power);
  CHECK(std::abs(root.exponent - 0.5) < 0.05);
  CHECK(std::abs(root.exponent - 0.5) < 4 * root.exponent_error + 0.01);
  const GrowthFit square = fit([](double x) { return 1e-9 * x * x; });
  CHECK(square.kind == Growth::power);
  CHECK(std::abs(square.exponent - 2) < 0.05);
  const GrowthFit falling = fit([](double x) { return 1 / x; });
  CHECK(falling.kind == Growth::power);
  CHECK(std::abs(falling.exponent + 1) < 0.05);
}

TEST_CASE("an exponential has its rate, and is no power") {
  const GrowthFit found = fit([](double x) { return 1e-8 * std::exp(0.002 * x); });
  CHECK(found.kind == Growth::exponential);
  CHECK(found.rate == doctest::Approx(0.002).epsilon(0.02));
}

TEST_CASE("factors between the seeds change the level's error, not the class") {
  const auto value = [](double x) { return 1e-6 * x; };
  const GrowthFit apart =
      fit_growth(all_steps(), curves_of(value, 0.05, 8, [](int seed) { return seed % 2 == 0 ? 1.0 : 3.0; }));
  CHECK(apart.kind == Growth::linear);
  CHECK(apart.level_error > 0.4f * apart.level);
}

TEST_CASE("who cannot tell says so") {
  // Seeds that go different ways.
  auto mixed = curves_of([](double x) { return 1e-9 * x * x; }, 0.05, 4);
  const auto more = curves_of([](double) { return 1e-3; }, 0.05, 4);
  mixed.insert(mixed.end(), more.begin(), more.end());
  CHECK(fit_growth(all_steps(), mixed).kind == Growth::undecided);
  // Noise alone, however loud, is no reason: eight seeds of it leave the power to be seen.
  const auto noisy = fit_growth(all_steps(), curves_of([](double x) { return 1e-9 * std::pow(x, 2.5); }, 0.9));
  CHECK(noisy.kind == Growth::power);
  // Few points; zeros among them; numbers that are none.
  CHECK(fit_growth({0, 1, 2}, {{1, 2, 3}}).kind == Growth::undecided);
  auto holes = curves_of([](double x) { return x < 3000 ? 0.0 : 1.0; }, 0);
  CHECK(fit_growth(all_steps(), holes).kind == Growth::undecided);
  auto one_nan = curves_of([](double) { return 1.0; }, 0.05);
  one_nan[0][4000] = std::numeric_limits<float>::quiet_NaN();
  CHECK(fit_growth(all_steps(), one_nan).kind == Growth::plateau);
}

TEST_CASE("a crossing is the first point at or above") {
  const std::vector<std::int32_t> points{9, 19, 29};
  CHECK(crossing(points, {0.1f, 0.5f, 0.2f}, 0.5f) == 19);
  CHECK(crossing(points, {0.1f, 0.5f, 0.2f}, 0.05f) == 9);
  CHECK(crossing(points, {0.1f, 0.5f, 0.2f}, 0.6f) == -1);
  CHECK(crossing(points, {std::nanf(""), 0.5f, 0.2f}, 0.05f) == 19);
}
