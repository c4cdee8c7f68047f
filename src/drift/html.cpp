// A result as a page: curves with bands over seeds, heat maps, a regime map (src/drift/page.html).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include <nlohmann/json.hpp>

#include "gdnsim/drift.hpp"
#include "report/page.hpp"

namespace gdnsim {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kPage =
#include "drift_page.inc"
    ;
constexpr std::size_t kCurvePoints = 160, kHeatPoints = 60;
constexpr Curve kShown[] = {Curve::state_relative,    Curve::core_relative,     Curve::norm_relative,
                            Curve::norm_bf16_changed, Curve::core_bf16_changed, Curve::decay_lost_other};

/// Places 0 .. count - 1, dense up to about k and then further apart, each by a k-th of where it is; the last is there.
std::vector<std::size_t> thinned(std::size_t count, std::size_t k) {
  std::vector<std::size_t> places;
  for (std::size_t at = 0; at + 1 < count; at += std::max<std::size_t>(1, (at + 1) / k)) places.push_back(at);
  places.push_back(count - 1);
  return places;
}

/// As many of them as `most` allows (but no fewer than 33), about evenly spread on a logarithmic axis.
std::vector<std::size_t> spread_places(std::size_t count, std::size_t most) {
  std::size_t k = most;
  while (k > 1 && thinned(count, k).size() > most) --k;
  return thinned(count, k);
}

/// Every n-th of the places, the last among them.
std::vector<std::size_t> every_nth(std::size_t count, std::size_t most) {
  std::vector<std::size_t> places;
  const std::size_t n = (count + most - 1) / most;
  for (std::size_t at = (count - 1) % n; at < count; at += n) places.push_back(at);
  return places;
}

/// Four digits are more than a picture shows.
Json short_number(double value) {
  if (!std::isfinite(value)) return nullptr;
  char text[32];
  std::snprintf(text, sizeof text, "%.3e", value);
  return std::strtod(text, nullptr);
}

/// Sorts. NaN: nothing is there.
double median_of(std::vector<double>& values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// A cell's curves of one quantity.
struct CellCurves {
  std::vector<std::vector<std::vector<float>>> of;  // [layers][seeds][points]
  CellCurves(DriftResult& result, std::size_t cell, Curve curve) : of(result.cells()[cell].layer_ids.size()) {
    for (std::size_t layer = 0; layer < of.size(); ++layer)
      for (std::size_t seed = 0; seed < result.seeds().size(); ++seed)
        of[layer].push_back(result.curve(curve, cell, seed, static_cast<int>(layer)));
  }
};

/// Over seeds and layers.
Json bands_of(const CellCurves& curves, const std::vector<std::size_t>& places) {
  Json median = Json::array(), low = Json::array(), high = Json::array();
  std::vector<double> values;
  for (std::size_t place : places) {
    values.clear();
    for (const auto& layer : curves.of)
      for (const auto& seed : layer) values.push_back(seed[place]);
    median.push_back(short_number(median_of(values)));
    low.push_back(values.empty() ? Json(nullptr) : short_number(values.front()));
    high.push_back(values.empty() ? Json(nullptr) : short_number(values.back()));
  }
  return {{"median", median}, {"low", low}, {"high", high}};
}

/// Layers, as medians over seeds; the seeds themselves where there is one layer.
Json rows_of(const CellCurves& curves, const std::vector<std::size_t>& places) {
  Json rows = Json::array();
  const bool one = curves.of.size() == 1;
  for (std::size_t r = 0; r < (one ? curves.of[0].size() : curves.of.size()); ++r) {
    Json row = Json::array();
    for (std::size_t place : places) {
      std::vector<double> values;
      if (one)
        values.push_back(curves.of[0][r][place]);
      else
        for (const auto& seed : curves.of[r]) values.push_back(seed[place]);
      row.push_back(short_number(median_of(values)));
    }
    rows.push_back(row);
  }
  return rows;
}

Json row_names_of(const DriftResult& result, const DriftCellNames& cell) {
  Json names = Json::array();
  if (cell.layer_ids.size() > 1)
    for (std::int32_t id : cell.layer_ids) names.push_back("layer " + std::to_string(id));
  else
    for (std::uint64_t seed : result.seeds()) names.push_back("seed " + std::to_string(seed));
  return names;
}

Json growth_of(DriftResult& result, std::size_t cell) {
  Json both;
  for (const bool output : {false, true}) {
    const GrowthFit fit = result.growth(cell, output);
    both[output ? "output" : "state"] = {{"class", name_of(fit.kind)},
                                         {"level", short_number(fit.level)},
                                         {"exponent", short_number(fit.exponent)},
                                         {"rate", short_number(fit.rate)}};
  }
  return both;
}

/// What some cell has.
std::vector<Curve> quantities_of(DriftResult& result) {
  std::vector<Curve> found;
  for (Curve curve : kShown) {
    bool there = false;
    for (std::size_t cell = 0; cell < result.cells().size() && !there; ++cell)
      for (float value : result.curve(curve, cell, 0, 0)) there |= !std::isnan(value);
    if (there) found.push_back(curve);
  }
  return found;
}

}  // namespace

std::string drift_html(DriftResult& result) {
  const std::vector<std::size_t> places = spread_places(result.points().size(), kCurvePoints);
  const std::vector<std::size_t> heat = every_nth(places.size(), kHeatPoints);
  std::vector<std::size_t> heat_places;
  for (std::size_t i : heat) heat_places.push_back(places[i]);
  const std::string path = result.path();
  Json page{{"schema", "gdnsim.drift-page/1"}, {"file", path.substr(path.find_last_of('/') + 1)},
            {"sweep_digest", result.digest()}, {"note", result.note()},
            {"axes", result.axes()},           {"seeds", result.seeds().size()}};
  for (std::size_t place : places) page["steps"].push_back(result.points()[place]);
  page["heat_steps"] = heat;
  const std::vector<Curve> quantities = quantities_of(result);
  for (Curve curve : quantities) page["quantities"].push_back(name_of(curve));
  for (std::size_t c = 0; c < result.cells().size(); ++c) {
    const DriftCellNames& names = result.cells()[c];
    Json cell{{"name", names.name},
              {"pair", names.pair},
              {"labels", names.labels},
              {"growth", growth_of(result, c)},
              {"row_names", row_names_of(result, names)}};
    for (Curve curve : quantities) {
      const CellCurves curves(result, c, curve);
      cell["bands"][name_of(curve)] = bands_of(curves, places);
      cell["rows"][name_of(curve)] = rows_of(curves, heat_places);
    }
    page["cells"].push_back(cell);
  }
  return filled_page(kPage, page);
}

}  // namespace gdnsim
