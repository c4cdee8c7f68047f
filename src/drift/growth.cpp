// How a curve goes on: lines through its second half, all seeds and layers together.
//
// Each curve's half is cut in 16 bins of equal width; a bin is the mean of its points, so that neighbours that move together do not
// count as many. Curves are divided by their level and averaged, then power and exponential are straight lines in log-log and
// lin-log. The error of a slope is the jackknife's: how much it moves when one curve is left out; with fewer than three curves the
// line's own. Logarithms are correctly rounded: no libm decides a class.
#include <algorithm>
#include <array>
#include <cmath>

#include "drift/layout.hpp"
#include "gdnsim/arith.hpp"
#include "gdnsim/drift.hpp"

namespace gdnsim {
namespace {

constexpr std::size_t kBins = 16, kFewestBins = 4;
constexpr double kLevel = 0.1;  // an exponent this near to 0 is level, to 1 is linear
constexpr double kVague = 0.5;  // an exponent that is less certain than this says nothing
constexpr double kClearly = 2;  // one fit is better than the other: so many times less squared residual
constexpr double kFast = 1.25;  // below this exponent a curve is no candidate for exponential growth
constexpr double kTwoSigma = 2;

struct Line {
  double slope = 0, error = 0, residual = 0;  // standard error of the slope; squared residuals
};

/// Least squares.
Line line_through(const std::vector<double>& x, const std::vector<double>& y) {
  const double n = static_cast<double>(x.size());
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sx += x[i], sy += y[i];
  const double mx = sx / n, my = sy / n;
  for (std::size_t i = 0; i < x.size(); ++i) sxx += (x[i] - mx) * (x[i] - mx), sxy += (x[i] - mx) * (y[i] - my);
  Line line;
  line.slope = sxy / sxx;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double off = y[i] - my - line.slope * (x[i] - mx);
    line.residual += off * off;
  }
  line.error = n > 2 ? std::sqrt(line.residual / (n - 2) / sxx) : 0;
  return line;
}

/// One curve's second half: the means of its bins.
struct Half {
  std::vector<double> step, value;  // steps count from 1
  double level = 0;
};

Half half_of(const std::vector<std::int32_t>& points, const std::vector<float>& curve) {
  Half half;
  const std::size_t first = points.size() / 2, count = points.size() - first, bins = std::min(kBins, count);
  for (std::size_t bin = 0; bin < bins; ++bin) {
    double step = 0, value = 0, n = 0;
    for (std::size_t i = first + bin * count / bins; i < first + (bin + 1) * count / bins; ++i)
      if (std::isfinite(curve[i])) step += points[i] + 1.0, value += curve[i], n += 1;
    if (n == 0) continue;
    half.step.push_back(step / n);
    half.value.push_back(value / n);
  }
  for (double value : half.value) half.level += value / static_cast<double>(half.value.size());
  return half;
}

double log_of(double value) { return log_cr(static_cast<float>(value)); }

/// The lines through the mean of the halves, each of level 1, but the one at `without`.
struct Lines {
  Line power, exponential, linear;
  bool known = false;  // false: too few bins, or one that is zero or was never measured
};

Lines lines_of(const std::vector<Half>& halves, std::size_t without) {
  const std::size_t bins = halves.front().value.size();
  std::vector<double> step(bins), value(bins), log_step, log_value;
  double n = 0;
  for (std::size_t i = 0; i < halves.size(); ++i) {
    if (halves[i].value.size() != bins) return {};
    if (i == without || halves[i].level == 0) continue;
    n += 1;
    for (std::size_t bin = 0; bin < bins; ++bin)
      step[bin] += halves[i].step[bin], value[bin] += halves[i].value[bin] / halves[i].level;
  }
  if (n == 0 || bins < kFewestBins || std::ranges::any_of(value, [](double mean) { return !(mean > 0); })) return {};
  for (std::size_t bin = 0; bin < bins; ++bin) {
    step[bin] /= n, value[bin] /= n;
    log_step.push_back(log_of(step[bin])), log_value.push_back(log_of(value[bin]));
  }
  return {line_through(log_step, log_value), line_through(step, log_value), line_through(step, value), true};
}

/// The jackknife's error of a slope; of few curves the line's own.
double error_of(const std::vector<Lines>& left_out, const Line& whole, Line Lines::*line) {
  const double n = static_cast<double>(left_out.size());
  if (n < 3) return whole.error;
  double mean = 0, squares = 0;
  for (const Lines& lines : left_out) mean += (lines.*line).slope / n;
  for (const Lines& lines : left_out) squares += ((lines.*line).slope - mean) * ((lines.*line).slope - mean);
  return std::sqrt(squares * (n - 1) / n);
}

Growth kind_of(const Lines& lines, double error) {
  const double p = lines.power.slope, reach = kTwoSigma * error;
  if (reach > kVague) return Growth::undecided;
  if (p > kFast && p - reach > 1 + kLevel) {
    if (lines.power.residual > kClearly * lines.exponential.residual) return Growth::exponential;
    if (lines.exponential.residual > kClearly * lines.power.residual) return Growth::power;
    return Growth::undecided;
  }
  if (std::abs(p) <= std::max(kLevel, reach)) return Growth::plateau;
  if (std::abs(p - 1) <= std::max(kLevel, reach)) return Growth::linear;
  return Growth::power;
}

void set_level(const std::vector<Half>& halves, GrowthFit& fit) {
  const double n = static_cast<double>(halves.size());
  double mean = 0, squares = 0;
  for (const Half& half : halves) mean += half.level / n;
  for (const Half& half : halves) squares += (half.level - mean) * (half.level - mean);
  fit.level = static_cast<float>(mean);
  fit.level_error = static_cast<float>(n > 1 ? std::sqrt(squares / (n - 1)) : 0);
}

}  // namespace

GrowthFit fit_growth(const std::vector<std::int32_t>& points, const std::vector<std::vector<float>>& curves) {
  GrowthFit fit;
  std::vector<Half> halves;
  for (const auto& curve : curves) halves.push_back(half_of(points, curve));
  if (halves.empty()) return fit;
  set_level(halves, fit);
  if (std::ranges::all_of(halves, [](const Half& half) { return half.level == 0 && !half.value.empty(); })) return fit;
  fit.kind = Growth::undecided;
  const Lines whole = lines_of(halves, halves.size());
  std::vector<Lines> left_out;
  for (std::size_t i = 0; halves.size() >= 3 && i < halves.size(); ++i) left_out.push_back(lines_of(halves, i));
  if (!whole.known || !std::ranges::all_of(left_out, &Lines::known)) return fit;
  fit.exponent = static_cast<float>(whole.power.slope);
  fit.exponent_error = static_cast<float>(error_of(left_out, whole.power, &Lines::power));
  fit.rate = static_cast<float>(whole.exponential.slope);
  fit.rate_error = static_cast<float>(error_of(left_out, whole.exponential, &Lines::exponential));
  fit.gain = static_cast<float>(whole.linear.slope * fit.level);
  fit.gain_error = static_cast<float>(error_of(left_out, whole.linear, &Lines::linear) * fit.level);
  fit.kind = kind_of(whole, fit.exponent_error);
  return fit;
}

std::int64_t crossing(const std::vector<std::int32_t>& points, const std::vector<float>& curve, float threshold) {
  const auto found = std::ranges::find_if(curve, [&](float value) { return value >= threshold; });
  return found == curve.end() ? -1 : points[static_cast<std::size_t>(found - curve.begin())];
}

std::string_view name_of(Growth growth) {
  constexpr std::string_view words[] = {"none", "plateau", "linear", "power", "exponential", "undecided"};
  return words[static_cast<std::size_t>(growth)];
}

std::string_view name_of(Curve curve) {
  constexpr std::string_view words[] = {
      "state_relative", "state_max_abs",     "state_differing",      "state_norm",       "core_relative",
      "core_max_abs",   "core_differing",    "core_bf16_changed",    "norm_relative",    "norm_max_abs",
      "norm_differing", "norm_bf16_changed", "decay_lost_reference", "decay_lost_other", "nonfinite"};
  return words[static_cast<std::size_t>(curve)];
}

const std::vector<float>& output_of(const DriftMeasures& measures) {
  const auto& norm = measures[Curve::norm_relative];
  return std::ranges::all_of(norm, [](float value) { return std::isnan(value); }) ? measures[Curve::core_relative]
                                                                                  : norm;
}

}  // namespace gdnsim
