// Reading a result file.
#include <algorithm>
#include <limits>

#include "drift/json.hpp"
#include "drift/layout.hpp"
#include "file/hdf5_io.hpp"
#include "file/json_reader.hpp"
#include "file/trial.hpp"
#include "gdnsim/drift.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

using h5::Type;

constexpr std::uint64_t kMostUnits = std::uint64_t{1} << 32;

class DriftFile final : public DriftResult {
 public:
  explicit DriftFile(const std::string& path) : file_(h5::File::open(path)), path_(path) {
    const h5::Group root = file_.root();
    if (!root.has_attribute("format") || root.string_attribute("format") != kDriftFormat)
      throw error(path, ": @format: expected ", kDriftFormat, ": not the result of a drift sweep");
    if (const std::int64_t found = root.int_attribute("version"); found != kDriftVersion)
      throw error(path, ": @version: expected ", kDriftVersion, ", found ", found);
    digest_ = root.string_attribute("sweep_digest");
    sweep_text_ = root.read_text("sweep");
    if (root.has("note")) note_ = root.read_text("note");
    seeds_ = root.read_vector<std::uint64_t>("seeds", {h5::kAny});
    points_ = root.read_vector<std::int32_t>("steps", {h5::kAny});
    thresholds_ = root.read_vector<float>("thresholds", {h5::kAny});
    read_cells(root.read_text("cells"));
    if (cells_.empty() || seeds_.empty() || points_.empty()) throw error(path, ": expected cells, seeds and steps");
    check_shapes(root);
  }

  const std::string& path() const override { return path_; }
  const std::string& sweep_text() const override { return sweep_text_; }
  const std::string& note() const override { return note_; }
  const std::string& digest() const override { return digest_; }
  const std::vector<std::string>& axes() const override { return axes_; }
  const std::vector<DriftCellNames>& cells() const override { return cells_; }
  const std::vector<std::uint64_t>& seeds() const override { return seeds_; }
  const std::vector<std::int32_t>& points() const override { return points_; }
  const std::vector<float>& thresholds() const override { return thresholds_; }

  std::vector<float> curve(Curve curve, std::size_t cell, std::size_t seed, int layer) override {
    h5::Dataset data = curve_data(file_.root().group("curves"), curve);
    std::vector<float> all(layers_ * points_.size());
    data.require_whole();
    data.read_entry(cell, seed, std::as_writable_bytes(std::span(all)));
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(layer) * points_.size());
    return {first, first + static_cast<std::ptrdiff_t>(points_.size())};
  }

  DriftSummary summary(std::size_t cell, std::size_t seed, int layer) override {
    const h5::Group group = file_.root().group("summary");
    const std::size_t unit = (cell * seeds_.size() + seed) * layers_ + static_cast<std::size_t>(layer);
    if (summary_.empty())
      for (int i = 0; i < 4; ++i) summary_.push_back(read_summary(group, i));
    const auto crossings = [&](std::size_t i) {
      const auto first = summary_[i].begin() + static_cast<std::ptrdiff_t>(unit * thresholds_.size());
      return std::vector<std::int64_t>(first, first + static_cast<std::ptrdiff_t>(thresholds_.size()));
    };
    return {summary_[0][unit], summary_[1][unit], crossings(2), crossings(3)};
  }

  GrowthFit growth(std::size_t cell, bool output) override {
    const h5::Group group = file_.root().group("growth").group(kGrowthOf[output ? 1 : 0]);
    const h5::Dims dims{cells_.size()};
    GrowthFit fit;
    const std::int8_t kind = group.read_vector<std::int8_t>("class", dims)[cell];
    if (kind < 0 || kind > static_cast<std::int8_t>(Growth::undecided))
      throw error(group.where("class"), "[", cell, "]: expected 0..5, found ", static_cast<int>(kind));
    fit.kind = static_cast<Growth>(kind);
    for (const GrowthField& field : kGrowthFields)
      fit.*field.member = field.later && !group.has(field.name) ? std::numeric_limits<float>::quiet_NaN()
                                                                : group.read_vector<float>(field.name, dims)[cell];
    return fit;
  }

 private:
  void read_cells(const std::string& text) {
    const std::string where = path_ + ": /cells";
    const Json json = parse_json(text, where);
    if (!json.is_array()) throw error(where, ": expected an array");
    for (std::size_t i = 0; i < json.size(); ++i) {
      JsonReader reader(json[i], where, "[" + std::to_string(i) + "]");
      DriftCellNames cell;
      reader.require("name").text("name", cell.name);
      reader.require("pair").text("pair", cell.pair);
      JsonReader labels = reader.require("labels").object("labels");
      std::vector<std::string> axes;
      for (const auto& [axis, label] : reader.at("labels").items()) {
        axes.push_back(axis);
        labels.text(axis, cell.labels.emplace_back());
      }
      cell.layer_ids = reader.require("layer_ids").integers("layer_ids", 0, (1 << 24) - 1);
      reader.done();
      if (i == 0) axes_ = axes;
      if (axes != axes_ || cell.layer_ids.empty()) throw error(where, ": [", i, "]: expected every axis and a layer");
      for (const auto* names : {&axes, &cell.labels})
        if (!std::ranges::all_of(*names, is_drift_name))
          throw error(where, ": [", i, "]: expected names without control characters");
      if (!is_drift_name(cell.name) || !is_drift_name(cell.pair))
        throw error(where, ": [", i, "]: expected names without control characters");
      layers_ = std::max(layers_, cell.layer_ids.size());
      cells_.push_back(std::move(cell));
    }
  }

  h5::Dims unit_dims() const { return {cells_.size(), seeds_.size(), layers_}; }

  h5::Dataset curve_data(const h5::Group& group, Curve curve) const {
    h5::Dims dims = unit_dims();
    dims.push_back(points_.size());
    return group.dataset(name_of(curve), Type::f32, dims);
  }

  std::vector<std::int64_t> read_summary(const h5::Group& group, int i) const {
    h5::Dims dims = unit_dims();
    if (i >= 2) dims.push_back(thresholds_.size());
    return group.read_vector<std::int64_t>(i < 2 ? kFirstChanges[i] : kCrossings[i - 2], dims);
  }

  void check_shapes(const h5::Group& root) const {
    if (cells_.size() * seeds_.size() * layers_ > kMostUnits) throw error(path_, ": expected fewer units");
    const h5::Group curves = root.group("curves");
    for (std::size_t i = 0; i < kCurves; ++i) static_cast<void>(curve_data(curves, static_cast<Curve>(i)));
  }

  h5::File file_;
  const std::string path_;
  std::string digest_, sweep_text_, note_;
  std::vector<std::string> axes_;
  std::vector<DriftCellNames> cells_;
  std::vector<std::uint64_t> seeds_;
  std::vector<std::int32_t> points_;
  std::vector<float> thresholds_;
  std::size_t layers_ = 0;
  std::vector<std::vector<std::int64_t>> summary_;  // first changes, crossings
};

}  // namespace

std::unique_ptr<DriftResult> open_drift(const std::string& path) {
  try_in_child(path, [&] { DriftFile(path).growth(0, false); });
  return std::make_unique<DriftFile>(path);
}

}  // namespace gdnsim
