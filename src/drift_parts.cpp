#include "drift_parts.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "gdnsim/digest.hpp"
#include "gdnsim/error.hpp"
#include "hdf5_io.hpp"
#include "raw_file.hpp"

namespace gdnsim {
namespace {

constexpr std::string_view kFormat = "gdnsim-drift-part";

std::string hex_of(std::span<const std::byte> bytes) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(xxh3_64(bytes)));
  return text;
}

std::vector<float> flat(const DriftMeasures& measures) {
  std::vector<float> values;
  for (const auto& curve : measures.curves) values.insert(values.end(), curve.begin(), curve.end());
  return values;
}

void require_same(const h5::Group& root, const DriftSweep& sweep, std::int64_t unit, const std::string& path) {
  if (!root.has_attribute("format") || root.string_attribute("format") != kFormat)
    throw error(path, ": @format: expected ", kFormat, ": not a part of a drift sweep");
  if (const std::string found = root.string_attribute("sweep_digest"); found != sweep.digest)
    throw error(path, ": @sweep_digest: expected ", sweep.digest, ", found ", found, ": a part of another sweep");
  if (const std::int64_t found = root.int_attribute("unit"); found != unit)
    throw error(path, ": @unit: expected ", unit, ", found ", found);
}

}  // namespace

std::string part_path(const std::string& folder, std::int64_t unit) {
  char name[32];
  std::snprintf(name, sizeof name, "unit-%06lld.h5", static_cast<long long>(unit));
  return (std::filesystem::path(folder) / name).string();
}

void write_part(const DriftSweep& sweep, std::int64_t unit, const DriftMeasures& measures, const std::string& path) {
  const std::vector<float> curves = flat(measures);
  NewFile fresh(path);
  {
    h5::File file = h5::File::create(fresh.open(), path, 4096);
    {
      h5::Group root = file.root();
      root.set_string("format", kFormat);
      root.set_int("version", 1);
      root.set_string("sweep_digest", sweep.digest);
      root.set_int("unit", unit);
      root.set_string("digest", hex_of(std::as_bytes(std::span(curves))));
      root.create_vector("curves", {kCurves, curves.size() / kCurves}, curves);
      root.create_vector("first_changes", {2},
                         std::vector<std::int64_t>{measures.first_output_change, measures.first_bf16_change});
    }
    file.close();
  }
  if (const int failed = fresh.open().sync(); failed != 0)
    throw error(path, ": cannot be synced: ", errno_text(failed));
  if (const int failed = fresh.put_in_place(true); failed != 0)
    throw error(path, ": cannot be put in place: ", errno_text(failed));
}

void check_part(const DriftSweep& sweep, std::int64_t unit, const std::string& path) {
  const h5::File file = h5::File::open(path);
  require_same(file.root(), sweep, unit, path);
}

DriftMeasures read_part(const DriftSweep& sweep, std::int64_t unit, const std::string& path) {
  const h5::File file = h5::File::open(path);
  const h5::Group root = file.root();
  require_same(root, sweep, unit, path);
  const std::size_t points = sweep.points().size();
  const auto curves = root.read_vector<float>("curves", {kCurves, points});
  if (root.string_attribute("digest") != hex_of(std::as_bytes(std::span(curves))))
    throw error(path, ": curves: do not match their digest: the part is damaged; remove it and run again");
  DriftMeasures measures;
  for (std::size_t i = 0; i < kCurves; ++i)
    measures.curves[i].assign(curves.begin() + static_cast<std::ptrdiff_t>(i * points),
                              curves.begin() + static_cast<std::ptrdiff_t>((i + 1) * points));
  const auto changes = root.read_vector<std::int64_t>("first_changes", {2});
  measures.first_output_change = changes[0];
  measures.first_bf16_change = changes[1];
  return measures;
}

}  // namespace gdnsim
