// The result file of a sweep: laid out by HDF5, filled from the parts with pwrite in the order of the units, put in place whole.
// Nothing in it depends on who computed what, when or where.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>

#include <nlohmann/json.hpp>

#include "drift/json.hpp"
#include "drift/layout.hpp"
#include "drift/parts.hpp"
#include "file/hdf5_io.hpp"
#include "file/raw_file.hpp"
#include "gdnsim/drift.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

using h5::Dims;
using h5::Group;
using h5::Type;

void must(const std::string& path, int failed, const std::string& what) {
  if (failed != 0) throw error(path, ": ", what, ": ", errno_text(failed), limit_text());
}

std::uint64_t axis(std::size_t size) { return size; }

/// A file whose datasets are made first and filled afterwards.
class ResultFile {
 public:
  ResultFile(const DriftSweep& sweep, const std::string& path)
      : sweep_(sweep), path_(path), points_(sweep.points()), layers_(static_cast<std::size_t>(sweep.layers())) {
    units_ = sweep.cells.size() * sweep.seeds.size() * layers_;
    const std::uint64_t bytes = std::uint64_t{units_} * kCurves * points_.size() * 4;
    if (const auto room = free_bytes(path); room && *room < bytes)
      throw error(path, ": the disk cannot hold its ", bytes, " bytes: ", *room, " bytes are free");
    fresh_.emplace(path);
    lay_out();
    out_ = fresh_->open();
  }

  void write(const std::string& name, std::size_t at, std::span<const std::byte> bytes) {
    must(path_, out_.write_at(offsets_.at(name) + at, bytes), "cannot be written");
  }
  template <class T>
  void write_all(const std::string& name, const std::vector<T>& values) {
    if (!values.empty()) write(name, 0, std::as_bytes(std::span(values)));
  }

  void finish(bool replace) {
    must(path_, out_.sync(), "cannot be synced");
    must(path_, out_.close(), "cannot be closed");
    must(path_, fresh_->put_in_place(replace), "cannot be put in place");
  }

  std::size_t units() const { return units_; }
  std::size_t unit_at(std::size_t cell, std::size_t seed, std::size_t layer) const {
    return (cell * sweep_.seeds.size() + seed) * layers_ + layer;
  }

 private:
  void lay_out() {
    h5::File file = h5::File::create(fresh_->open(), path_, 4096);
    {
      Group root = file.root();
      root.set_string("format", kDriftFormat);
      root.set_int("version", kDriftVersion);
      root.set_string("sweep_digest", sweep_.digest);
      root.create_text("sweep", sweep_.text);
      if (!sweep_.note.empty()) root.create_text("note", sweep_.note);
      root.create_text("cells", cells_text(sweep_));
      root.create_vector("seeds", {axis(sweep_.seeds.size())}, sweep_.seeds);
      root.create_vector("steps", {axis(points_.size())}, points_);
      add(root, "thresholds", Type::f32, {axis(sweep_.thresholds.size())}, "thresholds");
      const Dims unit{axis(sweep_.cells.size()), axis(sweep_.seeds.size()), axis(layers_)};
      const auto with = [&](std::size_t more) { return Dims{unit[0], unit[1], unit[2], axis(more)}; };
      Group curves = root.create_group("curves"), summary = root.create_group("summary"),
            growth = root.create_group("growth");
      for (std::size_t i = 0; i < kCurves; ++i) {
        const std::string name(name_of(static_cast<Curve>(i)));
        add(curves, name, Type::f32, with(points_.size()), "curves/" + name);
      }
      for (const char* name : kFirstChanges) add(summary, name, Type::i64, unit, std::string("summary/") + name);
      for (const char* name : kCrossings)
        add(summary, name, Type::i64, with(sweep_.thresholds.size()), std::string("summary/") + name);
      for (const char* of : kGrowthOf) {
        Group group = growth.create_group(of);
        const std::string prefix = std::string("growth/") + of + "/";
        add(group, "class", Type::i8, {unit[0]}, prefix + "class");
        for (const GrowthField& field : kGrowthFields)
          add(group, field.name, Type::f32, {unit[0]}, prefix + field.name);
      }
    }
    file.close();
  }

  void add(Group& group, std::string_view name, Type type, const Dims& dims, const std::string& full) {
    h5::Dataset data = group.create_dataset(name, type, dims);
    offsets_[full] = data.bytes() > 0 ? data.file_offset() : 0;
    data.close();
  }

  const DriftSweep& sweep_;
  const std::string path_;
  const std::vector<std::int32_t> points_;
  const std::size_t layers_;
  std::size_t units_ = 0;
  std::optional<NewFile> fresh_;
  RawFile out_;
  std::map<std::string, std::uint64_t> offsets_;
};

/// What is gathered while the parts go by.
struct Gathered {
  std::vector<std::int64_t> first_changes[2], crossings[2];
  std::vector<std::int8_t> classes[2];
  std::vector<float> growth[2][std::size(kGrowthFields)];
};

DriftMeasures read_one(const DriftSweep& sweep, std::int64_t unit, const std::vector<std::string>& folders) {
  for (const std::string& folder : folders)
    if (const std::string path = part_path(folder, unit); std::filesystem::exists(path))
      return read_part(sweep, unit, path);
  throw error(folders.front(), ": unit ", unit, " of ", sweep.units().size(), " has no part: run the sweep again");
}

void write_curves(ResultFile& file, std::size_t at, std::size_t points, const DriftMeasures* measures) {
  const std::vector<float> absent(points, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < kCurves; ++i) {
    const auto& curve = measures != nullptr ? measures->curves[i] : absent;
    file.write("curves/" + std::string(name_of(static_cast<Curve>(i))), at * points * 4,
               std::as_bytes(std::span(curve)));
  }
}

void write_gathered(ResultFile& file, const Gathered& gathered) {
  for (int i = 0; i < 2; ++i) {
    file.write_all(std::string("summary/") + kFirstChanges[i], gathered.first_changes[i]);
    file.write_all(std::string("summary/") + kCrossings[i], gathered.crossings[i]);
    const std::string prefix = std::string("growth/") + kGrowthOf[i] + "/";
    file.write_all(prefix + "class", gathered.classes[i]);
    for (std::size_t f = 0; f < std::size(kGrowthFields); ++f)
      file.write_all(prefix + kGrowthFields[f].name, gathered.growth[i][f]);
  }
}

void gather_unit(const DriftSweep& sweep, const std::vector<std::int32_t>& points, std::size_t at,
                 const DriftMeasures& measures, Gathered& gathered) {
  gathered.first_changes[0][at] = measures.first_output_change;
  gathered.first_changes[1][at] = measures.first_bf16_change;
  for (std::size_t t = 0; t < sweep.thresholds.size(); ++t) {
    const std::size_t place = at * sweep.thresholds.size() + t;
    gathered.crossings[0][place] = crossing(points, measures[Curve::state_relative], sweep.thresholds[t]);
    gathered.crossings[1][place] = crossing(points, output_of(measures), sweep.thresholds[t]);
  }
}

void gather_growth(const std::vector<std::int32_t>& points, const std::vector<std::vector<float>>& curves, int of,
                   Gathered& gathered) {
  const GrowthFit fit = fit_growth(points, curves);
  gathered.classes[of].push_back(static_cast<std::int8_t>(fit.kind));
  for (std::size_t f = 0; f < std::size(kGrowthFields); ++f)
    gathered.growth[of][f].push_back(fit.*kGrowthFields[f].member);
}

}  // namespace

std::string cells_text(const DriftSweep& sweep) {
  nlohmann::ordered_json cells = nlohmann::ordered_json::array();
  for (const DriftCell& cell : sweep.cells) {
    nlohmann::ordered_json labels = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < sweep.axes.size(); ++i) labels[sweep.axes[i]] = cell.labels[i];
    cells.push_back({{"name", cell.name},
                     {"pair", sweep.pairs[cell.pair].name},
                     {"labels", labels},
                     {"layer_ids", cell.layer_ids}});
  }
  return cells.dump();
}

void write_drift(const DriftSweep& sweep, const std::vector<std::string>& folders, const std::string& path,
                 bool force) {
  if (!force && std::filesystem::exists(path)) throw error(path, ": exists already; --force replaces it");
  for (const std::string& folder : folders)
    if (!std::filesystem::is_directory(folder)) throw error(folder, ": expected a folder of parts");
  if (const auto missing = missing_units(sweep, folders); !missing.empty())
    throw error(path, ": ", missing.size(), " of ", sweep.units().size(), " units have no part yet, the first is ",
                missing.front(), ": run the sweep, or its other shards, first");
  ResultFile file(sweep, path);
  const auto points = sweep.points();
  Gathered gathered;
  for (int i = 0; i < 2; ++i) {
    gathered.first_changes[i].assign(file.units(), kAbsent);
    gathered.crossings[i].assign(file.units() * sweep.thresholds.size(), kAbsent);
  }
  std::int64_t unit = 0;
  for (std::size_t cell = 0; cell < sweep.cells.size(); ++cell) {
    std::vector<std::vector<float>> states, outputs;
    for (std::size_t seed = 0; seed < sweep.seeds.size(); ++seed)
      for (std::size_t layer = 0; layer < static_cast<std::size_t>(sweep.layers()); ++layer) {
        const std::size_t at = file.unit_at(cell, seed, layer);
        if (layer >= sweep.cells[cell].layer_ids.size()) {
          write_curves(file, at, points.size(), nullptr);
          continue;
        }
        const DriftMeasures measures = read_one(sweep, unit++, folders);
        write_curves(file, at, points.size(), &measures);
        gather_unit(sweep, points, at, measures, gathered);
        states.push_back(measures[Curve::state_relative]);
        outputs.push_back(output_of(measures));
      }
    gather_growth(points, states, 0, gathered);
    gather_growth(points, outputs, 1, gathered);
  }
  file.write_all("thresholds", sweep.thresholds);
  write_gathered(file, gathered);
  file.finish(force);
}

}  // namespace gdnsim
