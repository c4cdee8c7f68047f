// A result, a line a cell: CSV for programs, a table for people, JSON.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <sstream>

#include <nlohmann/json.hpp>

#include "drift/layout.hpp"
#include "gdnsim/drift.hpp"

namespace gdnsim {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

std::string number(double value, const char* format = "%.6g") {
  if (std::isnan(value)) return "";
  char text[40];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// Of what was measured there; NaN where nothing was.
double end_of(const std::vector<float>& curve) {
  double sum = 0, count = 0;
  for (std::size_t i = curve.size() - std::max<std::size_t>(1, curve.size() / 16); i < curve.size(); ++i)
    if (!std::isnan(curve[i])) sum += curve[i], count += 1;
  return sum / count;
}

DriftSpread spread_of(std::vector<double> values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  const double none = std::numeric_limits<double>::quiet_NaN();
  if (values.empty()) return {none, none, none};
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {median, values.front(), values.back()};
}

/// The lower one of the middle two; -1 when it is never.
std::int64_t median_step(std::vector<std::int64_t> steps) {
  for (std::int64_t& step : steps)
    if (step < 0) step = kNever;
  std::ranges::sort(steps);
  const std::int64_t middle = steps[steps.size() / 2];
  return middle == kNever ? -1 : middle;
}

/// Everything of a cell's units, gathered.
struct Gathered {
  std::vector<double> state, output, lost_reference, lost_other;
  std::vector<std::int64_t> first_output, first_bf16;
  std::vector<std::vector<std::int64_t>> crossing_state, crossing_output;  // [thresholds][units]
  double nonfinite = 0;
};

void add_unit(DriftResult& result, std::size_t cell, std::size_t seed, int layer, Gathered& all) {
  const auto end = [&](Curve curve) { return end_of(result.curve(curve, cell, seed, layer)); };
  all.state.push_back(end(Curve::state_relative));
  const double norm = end(Curve::norm_relative);
  all.output.push_back(std::isnan(norm) ? end(Curve::core_relative) : norm);
  all.lost_reference.push_back(end(Curve::decay_lost_reference));
  all.lost_other.push_back(end(Curve::decay_lost_other));
  for (float value : result.curve(Curve::nonfinite, cell, seed, layer)) all.nonfinite += std::isnan(value) ? 0 : value;
  const DriftSummary summary = result.summary(cell, seed, layer);
  all.first_output.push_back(summary.first_output_change);
  all.first_bf16.push_back(summary.first_bf16_change);
  for (std::size_t t = 0; t < summary.crossing_state.size(); ++t) {
    all.crossing_state[t].push_back(summary.crossing_state[t]);
    all.crossing_output[t].push_back(summary.crossing_output[t]);
  }
}

/// With two standard errors, where the file has them.
std::string with_error(float value, float error, const char* format) {
  return number(value, format) + (std::isnan(error) ? "" : " +- " + number(2 * error, format));
}

/// "plateau 9.1e-03", "power 0.50 +- 0.10", ...
std::string growth_text(const GrowthFit& fit) {
  const std::string kind(name_of(fit.kind));
  switch (fit.kind) {
    case Growth::plateau:
      return kind + " " + number(fit.level, "%.2e");
    case Growth::linear:
      return kind + " " + with_error(fit.gain, fit.gain_error, "%.1e") + "/step";
    case Growth::power:
      return kind + " " + with_error(fit.exponent, fit.exponent_error, "%.2f");
    case Growth::exponential:
      return kind + " " + with_error(fit.rate, fit.rate_error, "%.1e") + "/step";
    default:
      return kind;
  }
}

std::string step_text(std::int64_t step) { return step < 0 ? "never" : std::to_string(step); }

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == text.npos) return text;
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

void add_line(std::string& out, const std::vector<std::string>& cells) {
  for (std::size_t i = 0; i < cells.size(); ++i) out += (i > 0 ? "," : "") + csv_cell(cells[i]);
  out += "\n";
}

std::vector<std::string> csv_head(const DriftResult& result) {
  std::vector<std::string> head{"cell"};
  head.insert(head.end(), result.axes().begin(), result.axes().end());
  head.insert(head.end(), {"pair", "seeds", "layers"});
  for (const std::string what : {"state_", "output_"}) {
    for (const char* column : {"end", "end_lowest", "end_highest", "growth"}) head.push_back(what + column);
    for (const GrowthField& field : kGrowthFields) head.push_back(what + field.name);
  }
  head.insert(head.end(), {"decay_lost_reference", "decay_lost_other", "first_output_change", "first_bf16_change"});
  for (const char* what : {"state", "output"})
    for (float threshold : result.thresholds()) head.push_back(std::string(what) + "_crosses_" + number(threshold));
  head.push_back("nonfinite");
  return head;
}

void add_curve_columns(std::vector<std::string>& line, const DriftSpread& end, const GrowthFit& fit) {
  for (double value : {end.median, end.lowest, end.highest}) line.push_back(number(value));
  line.emplace_back(name_of(fit.kind));
  for (const GrowthField& field : kGrowthFields) line.push_back(number(fit.*field.member));
}

Json json_of(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json json_of(const DriftSpread& spread) {
  return {{"median", json_of(spread.median)}, {"lowest", json_of(spread.lowest)}, {"highest", json_of(spread.highest)}};
}

Json json_of(const GrowthFit& fit) {
  Json json;
  json["class"] = name_of(fit.kind);
  for (const GrowthField& field : kGrowthFields) json[field.name] = json_of(fit.*field.member);
  return json;
}

}  // namespace

DriftRow row_of(DriftResult& result, std::size_t cell) {
  Gathered all;
  all.crossing_state.resize(result.thresholds().size());
  all.crossing_output.resize(result.thresholds().size());
  for (std::size_t seed = 0; seed < result.seeds().size(); ++seed)
    for (int layer = 0; layer < static_cast<int>(result.cells()[cell].layer_ids.size()); ++layer)
      add_unit(result, cell, seed, layer, all);
  DriftRow row{spread_of(all.state),
               spread_of(all.output),
               spread_of(all.lost_reference),
               spread_of(all.lost_other),
               result.growth(cell, false),
               result.growth(cell, true),
               median_step(all.first_output),
               median_step(all.first_bf16),
               {},
               {},
               static_cast<std::int64_t>(all.nonfinite)};
  for (const auto& steps : all.crossing_state) row.crossing_state.push_back(median_step(steps));
  for (const auto& steps : all.crossing_output) row.crossing_output.push_back(median_step(steps));
  return row;
}

std::string drift_csv(DriftResult& result) {
  std::string out;
  add_line(out, csv_head(result));
  for (std::size_t i = 0; i < result.cells().size(); ++i) {
    const DriftCellNames& cell = result.cells()[i];
    const DriftRow row = row_of(result, i);
    std::vector<std::string> line{cell.name};
    line.insert(line.end(), cell.labels.begin(), cell.labels.end());
    line.insert(line.end(), {cell.pair, std::to_string(result.seeds().size()), std::to_string(cell.layer_ids.size())});
    add_curve_columns(line, row.state_end, row.state_growth);
    add_curve_columns(line, row.output_end, row.output_growth);
    line.push_back(number(row.lost_reference_end.median));
    line.push_back(number(row.lost_other_end.median));
    line.push_back(std::to_string(row.first_output_change));
    line.push_back(std::to_string(row.first_bf16_change));
    for (const auto* steps : {&row.crossing_state, &row.crossing_output})
      for (std::int64_t step : *steps) line.push_back(std::to_string(step));
    line.push_back(std::to_string(row.nonfinite));
    add_line(out, line);
  }
  return out;
}

std::string drift_table(DriftResult& result) {
  std::vector<std::vector<std::string>> lines{
      {"cell", "state", "growth", "output", "growth", "lost", "output parts", "bf16 parts"}};
  for (std::size_t i = 0; i < result.cells().size(); ++i) {
    const DriftRow row = row_of(result, i);
    lines.push_back({result.cells()[i].name, number(row.state_end.median, "%.2e"), growth_text(row.state_growth),
                     number(row.output_end.median, "%.2e"), growth_text(row.output_growth),
                     number(row.lost_other_end.median, "%.3f"), step_text(row.first_output_change),
                     step_text(row.first_bf16_change)});
  }
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::ostringstream out;
  for (const auto& line : lines) {
    std::string text;
    for (std::size_t i = 0; i < line.size(); ++i) text += line[i] + std::string(widths[i] - line[i].size() + 2, ' ');
    out << text.substr(0, text.find_last_not_of(' ') + 1) << "\n";
  }
  return out.str();
}

Json drift_json(DriftResult& result) {
  Json cells = Json::array();
  for (std::size_t i = 0; i < result.cells().size(); ++i) {
    const DriftCellNames& cell = result.cells()[i];
    const DriftRow row = row_of(result, i);
    Json labels = Json::object();
    for (std::size_t axis = 0; axis < result.axes().size(); ++axis) labels[result.axes()[axis]] = cell.labels[axis];
    cells.push_back({{"name", cell.name},
                     {"labels", labels},
                     {"pair", cell.pair},
                     {"layer_ids", cell.layer_ids},
                     {"state_end", json_of(row.state_end)},
                     {"state_growth", json_of(row.state_growth)},
                     {"output_end", json_of(row.output_end)},
                     {"output_growth", json_of(row.output_growth)},
                     {"decay_lost_reference", json_of(row.lost_reference_end)},
                     {"decay_lost_other", json_of(row.lost_other_end)},
                     {"first_output_change", row.first_output_change},
                     {"first_bf16_change", row.first_bf16_change},
                     {"crossing_state", row.crossing_state},
                     {"crossing_output", row.crossing_output},
                     {"nonfinite", row.nonfinite}});
  }
  return {{"schema", "gdnsim.drift-report/1"},
          {"sweep_digest", result.digest()},
          {"steps", result.points().back() + 1},
          {"points", result.points().size()},
          {"seeds", result.seeds()},
          {"thresholds", result.thresholds()},
          {"cells", cells}};
}

}  // namespace gdnsim
