// The sweep file ("gdnsim.drift/1"), read strictly.
#include "drift/file.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

#include "drift/json.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

constexpr std::size_t kMaxFile = std::size_t{1} << 24, kMaxSeeds = 4096, kMaxValues = 1024;

void set_field(ContractSet& contracts, const std::string& field, const Json& value) {
  const std::string words = value.is_string() ? value.get<std::string>() : value.dump();
  set_contract_field(contracts.decode, field, words);
  set_contract_field(contracts.mixed, field, words);
}

class SweepReader {
 public:
  SweepReader(const std::string& where, const std::string& folder) : where_(where), folder_(folder) {
    sweep_.where = where;
  }

  SweepFile parse(const std::string& text) {
    const Json json = parse_json(text, where_);
    JsonReader reader(json, where_, "");
    std::string schema;
    reader.require("schema").text("schema", schema);
    if (schema != kDriftSchema) reader.refuse("schema", std::string("\"") + kDriftSchema + "\"", json.at("schema"));
    reader.text("note", sweep_.note);
    reader.require("steps").integer("steps", 1, 1 << 24, sweep_.steps);
    read_seeds(reader);
    if (reader.has("base")) read_base(reader);
    if (reader.has("axes")) read_axes(reader.at("axes"));
    read_pairs(reader);
    if (reader.has("measure")) {
      JsonReader measure = reader.object("measure");
      measure.integer("every", 1, 1 << 24, sweep_.every);
      measure.done();
    }
    read_thresholds(reader);
    reader.done();
    return std::move(file_);
  }

 private:
  [[noreturn]] void refuse(const std::string& path, const std::string& why) const {
    throw error(where_, ": ", path, ": ", why);
  }

  /// `allowed`: as far as the caller knows.
  void require_name(const std::string& path, const std::string& name, bool allowed) const {
    if (!is_drift_name(name)) refuse(path + ".name", "expected a text without control characters");
    if (!allowed) refuse(path + ".name", "expected a name that is its own, found \"" + name + "\"");
  }

  std::string resolved(const std::string& path) const {
    return (std::filesystem::path(folder_) / path).lexically_normal().string();
  }

  void read_seeds(JsonReader& reader) {
    const Json& seeds = reader.require("seeds").at("seeds");
    if (seeds.is_object()) {
      JsonReader range = reader.object("seeds");
      std::uint64_t first = 0;
      std::int64_t count = 0;
      range.require("first").seed("first", first);
      range.require("count").integer("count", 1, kMaxSeeds, count);
      range.done();
      if (first > std::numeric_limits<std::uint64_t>::max() - static_cast<std::uint64_t>(count - 1))
        refuse("seeds", "expected " + std::to_string(count) +
                            " seeds of at most 18446744073709551615, found the first at " + std::to_string(first));
      for (std::int64_t i = 0; i < count; ++i) sweep_.seeds.push_back(first + static_cast<std::uint64_t>(i));
    } else {
      if (!seeds.is_array() || seeds.empty() || seeds.size() > kMaxSeeds)
        reader.refuse("seeds", "{\"first\": 1, \"count\": 8}, or an array of 1 to 4096 seeds", seeds);
      for (const Json& seed : seeds) {
        if (!seed.is_number_unsigned()) reader.refuse("seeds", "whole numbers from 0 to 18446744073709551615", seed);
        sweep_.seeds.push_back(seed.get<std::uint64_t>());
      }
    }
    std::set<std::uint64_t> once(sweep_.seeds.begin(), sweep_.seeds.end());
    if (once.size() != sweep_.seeds.size()) refuse("seeds", "expected each seed once, found one twice");
  }

  void read_base(JsonReader& reader) {
    const Json& base = reader.at("base");
    if (base.is_string()) {
      const std::string path = resolved(base.get<std::string>());
      file_.base = parse_json(text_of_json_file(path), path);
    } else {
      file_.base = base;
    }
    if (!file_.base.is_object()) reader.refuse("base", "a recipe, or the path of one", base);
    for (const char* own : {"note", "seed", "steps"}) file_.base.erase(own);  // the sweep says them
    if (!file_.base.contains("schema")) file_.base["schema"] = "gdnsim.recipe/1";
  }

  AxisValue read_value(const Json& json, const std::string& path) {
    JsonReader reader(json, where_, path);
    AxisValue value;
    reader.require("name").text("name", value.name);
    require_name(path, value.name, !value.name.empty());
    if (reader.has("set")) {
      value.set = reader.at("set");
      if (!value.set.is_object()) reader.refuse(path + ".set", "an object: parts of a recipe", value.set);
      for (const char* own : {"schema", "note", "seed", "steps"})
        if (value.set.contains(own)) refuse(path + ".set." + own, "the sweep says this itself: expected other keys");
    }
    if (reader.has("trace")) {
      reader.text("trace", value.trace);
      value.trace = resolved(value.trace);
      std::string extend = "loop";
      reader.text("extend", extend);
      const auto known = extend_from(extend);
      if (!known) refuse(path + ".extend", "expected \"loop\" or \"fresh\", found \"" + extend + "\"");
      value.extend = *known;
      reader.integer("rows", 1, 8192, value.rows);
    }
    reader.done();
    return value;
  }

  void read_axes(const Json& axes) {
    if (!axes.is_array()) refuse("axes", "expected an array");
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const std::string path = "axes[" + std::to_string(i) + "]";
      JsonReader reader(axes[i], where_, path);
      Axis axis;
      reader.require("name").text("name", axis.name);
      require_name(path, axis.name,
                   axis.name != "pair" && std::ranges::find(sweep_.axes, axis.name) == sweep_.axes.end());
      const Json& values = reader.require("values").at("values");
      if (!values.is_array() || values.empty() || values.size() > kMaxValues)
        reader.refuse(path + ".values", "an array of 1 to 1024 values", values);
      reader.done();
      std::set<std::string> names;
      for (std::size_t j = 0; j < values.size(); ++j) {
        const std::string at = path + ".values[" + std::to_string(j) + "]";
        axis.values.push_back(read_value(values[j], at));
        if (!names.insert(axis.values.back().name).second)
          refuse(at + ".name", "expected each name once, found \"" + axis.values.back().name + "\" twice");
      }
      sweep_.axes.push_back(axis.name);
      file_.axes.push_back(std::move(axis));
    }
  }

  DriftSide read_side(const Json& json, const std::string& path) {
    DriftSide side;
    if (json == "f64" || json == "f64-act") {
      side.words = json.get<std::string>();
      side.round_activations = side.words == "f64-act";
      return side;
    }
    if (json.is_string())
      refuse(path, "expected {\"contract\": ...}, \"f64\" or \"f64-act\", found \"" + json.get<std::string>() + "\"");
    JsonReader reader(json, where_, path);
    std::string state;
    reader.require("contract").text("contract", side.words);
    reader.text("state", state);
    const Json set = reader.has("set") ? reader.at("set") : Json::object();
    if (!set.is_object()) reader.refuse(path + ".set", "an object: fields of a contract", set);
    reader.done();
    if (!state.empty()) {
      side.state = dtype_from(state);
      if (!side.state || *side.state == DType::f16) refuse(path + ".state", "expected \"f32\" or \"bf16\"");
    }
    const std::string file = resolved(side.words);
    try {
      side.contracts = load_contracts(std::filesystem::is_regular_file(file) ? file : side.words);
      for (const auto& [field, value] : set.items()) set_field(*side.contracts, field, value);
    } catch (const Error& bad) {
      refuse(path + ".contract", bad.what());
    }
    return side;
  }

  void read_pairs(JsonReader& reader) {
    const Json& pairs = reader.require("pairs").at("pairs");
    if (!pairs.is_array() || pairs.empty() || pairs.size() > kMaxValues)
      reader.refuse("pairs", "an array of 1 to 1024 pairs", pairs);
    std::set<std::string> names;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const std::string path = "pairs[" + std::to_string(i) + "]";
      JsonReader one(pairs[i], where_, path);
      DriftPair pair;
      one.require("name").text("name", pair.name);
      require_name(path, pair.name, names.insert(pair.name).second);
      pair.reference = read_side(one.require("reference").at("reference"), path + ".reference");
      pair.other = read_side(one.require("other").at("other"), path + ".other");
      one.done();
      sweep_.pairs.push_back(std::move(pair));
    }
  }

  void read_thresholds(JsonReader& reader) {
    if (!reader.has("thresholds")) {
      sweep_.thresholds = {1e-3f, 1e-2f, 1e-1f};
      return;
    }
    const Json& thresholds = reader.at("thresholds");
    if (!thresholds.is_array() || thresholds.size() > 64)
      reader.refuse("thresholds", "an array of at most 64 numbers", thresholds);
    sweep_.thresholds = reader.numbers("thresholds", thresholds.size());
    for (std::size_t i = 0; i < sweep_.thresholds.size(); ++i)
      if (!(sweep_.thresholds[i] > 0) || (i > 0 && sweep_.thresholds[i] <= sweep_.thresholds[i - 1]))
        refuse("thresholds", "expected numbers above 0, ascending");
  }

  const std::string where_, folder_;
  SweepFile file_;
  DriftSweep& sweep_ = file_.sweep;
};

}  // namespace

std::string text_of_json_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFile + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) throw error(path, ": expected a readable file");
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxFile) throw error(path, ": expected at most 16 MiB");
  return text;
}

SweepFile read_sweep_file(const std::string& text, const std::string& where, const std::string& folder) {
  return SweepReader(where, folder).parse(text);
}

}  // namespace gdnsim
