// A sweep: axes and pairs become cells, everything that decides a bit becomes the canonical text.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <map>

#include "drift/file.hpp"
#include "drift/json.hpp"
#include "gdnsim/digest.hpp"
#include "gdnsim/drift.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/trace.hpp"
#include "gdnsim/version.hpp"

namespace gdnsim {
namespace {

constexpr std::size_t kMaxText = std::size_t{1} << 20, kMaxCells = 4096;
/// Parts of a recipe that are merged key by key; any other value replaces the one before it.
constexpr std::string_view kSections[] = {"model",    "params", "inputs",   "keys",
                                          "specials", "states", "schedule", "speculative"};

void lay_over(Json& base, const Json& patch) {
  for (const auto& [key, value] : patch.items()) {
    const bool section = std::ranges::find(kSections, key) != std::end(kSections);
    if (section && value.is_object() && base.contains(key) && base[key].is_object())
      lay_over(base[key], value);
    else
      base[key] = value;
  }
}

class CellMaker {
 public:
  explicit CellMaker(SweepFile file) : file_(std::move(file)) {}

  DriftSweep make() {
    make_cells();
    seal();
    return std::move(sweep_);
  }

 private:
  [[noreturn]] void refuse(const std::string& path, const std::string& why) const {
    throw error(where_, ": ", path, ": ", why);
  }

  /// What was captured from a trace, and what its bytes are: read once, however many cells use it.
  struct Source {
    std::shared_ptr<const Captured> captured;
    std::string digest;
    Model model;
  };

  const Source& source_of(const AxisValue& value) {
    const auto [at, fresh] = sources_.try_emplace({value.trace, value.rows});
    if (!fresh) return at->second;
    const auto trace = open_trace(value.trace);
    CaptureOptions options;
    options.rows = value.rows;
    at->second = {capture(*trace, options, value.trace), trace->content_digest(), trace->model()};
    return at->second;
  }

  DriftStream stream_of(const std::vector<const AxisValue*>& values, const std::string& name) {
    DriftStream stream;
    const AxisValue* traced = nullptr;
    bool sets = false;
    for (const AxisValue* value : values) {
      if (!value->trace.empty() && traced != nullptr) refuse("axes", "cell \"" + name + "\" has two traces");
      if (!value->trace.empty()) traced = value;
      sets |= !value->set.empty();
    }
    if (traced != nullptr) {
      if (sets) refuse("axes", "cell \"" + name + "\" sets parts of a recipe, but its stream is a trace");
      stream.captured = source_of(*traced).captured;
      stream.extend = traced->extend;
      return stream;
    }
    if (file_.base.is_null()) refuse("base", "expected this key, found none: cell \"" + name + "\" has no trace");
    Json recipe = file_.base;
    for (const AxisValue* value : values)
      if (!value->set.is_null()) lay_over(recipe, value->set);
    recipe["seed"] = std::uint64_t{0};
    recipe["steps"] = sweep_.steps;
    stream.recipe = parse_recipe(recipe.dump(), where_ + ": cell \"" + name + "\"");
    return stream;
  }

  const Model& model_of(const DriftStream& stream, const std::vector<const AxisValue*>& values) {
    if (stream.recipe) return stream.recipe->model;
    for (const AxisValue* value : values)
      if (!value->trace.empty()) return source_of(*value).model;
    GDNSIM_CHECK(false);
    return stream.recipe->model;
  }

  void require_defined_for(const DriftSide& side, Model model, const std::string& cell) const {
    if (side.state) model.state_dtype = *side.state;
    if (!side.contracts) return;
    for (const Contract* contract : {&side.contracts->decode, &side.contracts->mixed})
      if (const std::string why = undefined_because(*contract, model); !why.empty())
        throw error(where_, ": cell \"", cell, "\": ", why);
  }

  void add_cells(const std::vector<const AxisValue*>& values) {
    std::string name;
    std::vector<std::string> labels;
    for (const AxisValue* value : values) {
      name += (name.empty() ? "" : ", ") + value->name;
      labels.push_back(value->name);
    }
    DriftStream stream = stream_of(values, name);
    const Model& model = model_of(stream, values);
    for (std::size_t pair = 0; pair < sweep_.pairs.size(); ++pair) {
      const std::string& pair_name = sweep_.pairs[pair].name;
      DriftCell cell{name.empty() ? pair_name : name + ", " + pair_name, labels, pair, sweep_.streams.size(),
                     model.layer_ids};
      require_defined_for(sweep_.pairs[pair].reference, model, cell.name);
      require_defined_for(sweep_.pairs[pair].other, model, cell.name);
      sweep_.cells.push_back(std::move(cell));
    }
    sweep_.streams.push_back(std::move(stream));
  }

  void make_cells() {
    std::size_t count = sweep_.pairs.size();
    for (const Axis& axis : file_.axes) {
      count *= axis.values.size();
      if (count > kMaxCells) refuse("axes", "expected at most 4096 cells (the product of axes and pairs)");
    }
    std::vector<std::size_t> at(file_.axes.size());
    for (;;) {
      std::vector<const AxisValue*> values;
      for (std::size_t i = 0; i < file_.axes.size(); ++i) values.push_back(&file_.axes[i].values[at[i]]);
      add_cells(values);
      std::size_t axis = file_.axes.size();
      while (axis > 0 && ++at[axis - 1] == file_.axes[axis - 1].values.size()) at[--axis] = 0;
      if (axis == 0) return;
    }
  }

  Json json_of(const DriftSide& side) const {
    if (!side.contracts) return side.words;
    Json json = {{"contract", side.words}, {"text", to_text(*side.contracts)}};
    if (side.state) json["state"] = std::string(name_of(*side.state));
    return json;
  }

  Json json_of(const Axis& axis) {
    Json values = Json::array();
    for (const AxisValue& value : axis.values) {
      Json json = {{"name", value.name}};
      if (!value.set.is_null()) json["set"] = value.set;
      if (!value.trace.empty()) {
        json["trace"] = source_of(value).digest;
        json["extend"] = std::string(name_of(value.extend));
        if (value.rows > 0) json["rows"] = value.rows;
      }
      values.push_back(std::move(json));
    }
    return {{"name", axis.name}, {"values", values}};
  }

  void seal() {
    Json axes = Json::array(), pairs = Json::array(), thresholds = Json::array();
    for (const Axis& axis : file_.axes) axes.push_back(json_of(axis));
    for (const DriftPair& pair : sweep_.pairs)
      pairs.push_back({{"name", pair.name}, {"reference", json_of(pair.reference)}, {"other", json_of(pair.other)}});
    for (float threshold : sweep_.thresholds) thresholds.push_back(gdnsim::json_of(threshold));
    const Json json = {{"schema", kDriftSchema},
                       {"base", file_.base},
                       {"steps", sweep_.steps},
                       {"seeds", sweep_.seeds},
                       {"axes", axes},
                       {"pairs", pairs},
                       {"measure", {{"every", sweep_.every}}},
                       {"thresholds", thresholds}};
    sweep_.text = json.dump();
    if (std::max({sweep_.text.size(), sweep_.note.size(), cells_text(sweep_).size()}) > kMaxText)
      throw error(where_, ": expected a sweep whose text, note and cells' names take at most 1 MiB each");
    const std::string sealed = std::string(version()) + "\n" + sweep_.text;
    const auto hash = xxh3_128(std::as_bytes(std::span(sealed)));
    char hex[33];
    std::snprintf(hex, sizeof hex, "%016llx%016llx", static_cast<unsigned long long>(hash[1]),
                  static_cast<unsigned long long>(hash[0]));
    sweep_.digest = hex;
  }

  SweepFile file_;
  DriftSweep& sweep_ = file_.sweep;
  const std::string& where_ = sweep_.where;
  std::map<std::pair<std::string, int>, Source> sources_;
};

}  // namespace

int DriftSweep::layers() const {
  std::size_t most = 0;
  for (const DriftCell& cell : cells) most = std::max(most, cell.layer_ids.size());
  return static_cast<int>(most);
}

std::vector<DriftUnit> DriftSweep::units() const {
  std::vector<DriftUnit> units;
  for (std::size_t cell = 0; cell < cells.size(); ++cell)
    for (std::size_t seed = 0; seed < seeds.size(); ++seed)
      for (int layer = 0; layer < static_cast<int>(cells[cell].layer_ids.size()); ++layer)
        units.push_back({cell, seed, layer});
  return units;
}

std::vector<std::int32_t> DriftSweep::points() const {
  std::vector<std::int32_t> points;
  for (std::int64_t step = 0; step < steps; ++step)
    if (measured(*this, step)) points.push_back(static_cast<std::int32_t>(step));
  return points;
}

DriftSweep parse_sweep(const std::string& text, const std::string& where, const std::string& folder) {
  return CellMaker(read_sweep_file(text, where, folder)).make();
}

DriftSweep load_sweep(const std::string& path) {
  return parse_sweep(text_of_json_file(path), path, std::filesystem::path(path).parent_path().string());
}

std::unique_ptr<Stream> open_drift_stream(const DriftSweep& sweep, const DriftUnit& unit) {
  const DriftStream& stream = sweep.streams[sweep.cells[unit.cell].stream];
  if (stream.captured) return make_captured_stream(stream.captured, stream.extend, sweep.steps, sweep.seeds[unit.seed]);
  Recipe recipe = *stream.recipe;
  recipe.seed = sweep.seeds[unit.seed];
  return make_recipe_stream(recipe);
}

}  // namespace gdnsim
