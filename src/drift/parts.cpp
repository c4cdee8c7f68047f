#include "drift/parts.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>

#include "file/hdf5_io.hpp"
#include "file/raw_file.hpp"
#include "file/trial.hpp"
#include "gdnsim/digest.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

constexpr std::string_view kFormat = "gdnsim-drift-part";
constexpr std::int64_t kVersion = 2;  // 1: the digest left the first changes out

/// Of all that a part holds: the curves, then the first changes.
std::string digest_of(const std::vector<float>& curves, const std::vector<std::int64_t>& changes) {
  std::vector<std::byte> bytes;
  const auto add = [&](std::span<const std::byte> more) { bytes.insert(bytes.end(), more.begin(), more.end()); };
  add(std::as_bytes(std::span(curves)));
  add(std::as_bytes(std::span(changes)));
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
  if (const std::int64_t found = root.int_attribute("version"); found != kVersion)
    throw error(path, ": @version: expected ", kVersion, ", found ", found, ": remove the part and run again");
  if (const std::string found = root.string_attribute("sweep_digest"); found != sweep.digest)
    throw error(path, ": @sweep_digest: expected ", sweep.digest, ", found ", found, ": a part of another sweep");
  if (const std::int64_t found = root.int_attribute("unit"); found != unit)
    throw error(path, ": @unit: expected ", unit, ", found ", found);
}

constexpr std::size_t kMostAtOnce = 64, kBytesAtOnce = std::size_t{16} << 20;

/// One child reads several parts. Where it fails, each gets one of its own, so that the bad one is named.
void require_sound(const DriftSweep& sweep, std::span<const std::int64_t> units, const std::string& folder) {
  const auto try_some = [&](std::span<const std::int64_t> some) {
    try_in_child(part_path(folder, some.front()), [&] {
      for (std::int64_t unit : some) read_part(sweep, unit, part_path(folder, unit));
    });
  };
  try {
    try_some(units);
  } catch (const Error&) {
    for (std::size_t i = 0; i < units.size(); ++i) try_some(units.subspan(i, 1));
    throw;
  }
}

/// What the names of the files say, ascending.
std::vector<std::int64_t> units_in(const std::string& folder) {
  std::vector<std::int64_t> units;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    long long unit = 0;
    if (std::sscanf(name.c_str(), "unit-%lld.h5", &unit) == 1 && part_path("", unit) == name) units.push_back(unit);
  }
  std::ranges::sort(units);
  return units;
}

}  // namespace

std::string part_path(const std::string& folder, std::int64_t unit) {
  char name[32];
  std::snprintf(name, sizeof name, "unit-%06lld.h5", static_cast<long long>(unit));
  return (std::filesystem::path(folder) / name).string();
}

void write_part(const DriftSweep& sweep, std::int64_t unit, const DriftMeasures& measures, const std::string& path) {
  const std::vector<float> curves = flat(measures);
  const std::vector<std::int64_t> changes{measures.first_output_change, measures.first_bf16_change};
  NewFile fresh(path);
  {
    h5::File file = h5::File::create(fresh.open(), path, 4096);
    {
      h5::Group root = file.root();
      root.set_string("format", kFormat);
      root.set_int("version", kVersion);
      root.set_string("sweep_digest", sweep.digest);
      root.set_int("unit", unit);
      root.set_string("digest", digest_of(curves, changes));
      root.create_vector("curves", {kCurves, curves.size() / kCurves}, curves);
      root.create_vector("first_changes", {2}, changes);
    }
    file.close();
  }
  if (const int failed = fresh.open().sync(); failed != 0)
    throw error(path, ": cannot be synced: ", errno_text(failed));
  if (const int failed = fresh.put_in_place(true); failed != 0)
    throw error(path, ": cannot be put in place: ", errno_text(failed));
}

std::vector<std::int64_t> units_with_parts(const DriftSweep& sweep, const std::vector<std::int64_t>& units,
                                           const std::string& folder) {
  const std::vector<std::int64_t> found = units_in(folder);
  std::vector<std::int64_t> there;
  std::ranges::set_intersection(units, found, std::back_inserter(there));
  std::size_t first = 0, bytes = 0;
  for (std::size_t i = 0; i < there.size(); ++i) {
    std::error_code gone;
    bytes += std::filesystem::file_size(part_path(folder, there[i]), gone);
    if (i + 1 < there.size() && i + 1 - first < kMostAtOnce && bytes < kBytesAtOnce) continue;
    require_sound(sweep, std::span(there).subspan(first, i + 1 - first), folder);
    first = i + 1, bytes = 0;
  }
  return there;
}

DriftMeasures read_part(const DriftSweep& sweep, std::int64_t unit, const std::string& path) {
  const h5::File file = h5::File::open(path);
  const h5::Group root = file.root();
  require_same(root, sweep, unit, path);
  const std::size_t points = sweep.points().size();
  const auto curves = root.read_vector<float>("curves", {kCurves, points});
  const auto changes = root.read_vector<std::int64_t>("first_changes", {2});
  if (root.string_attribute("digest") != digest_of(curves, changes))
    throw error(path, ": @digest: not that of what the part holds: it is damaged; remove it and run again");
  DriftMeasures measures;
  for (std::size_t i = 0; i < kCurves; ++i)
    measures.curves[i].assign(curves.begin() + static_cast<std::ptrdiff_t>(i * points),
                              curves.begin() + static_cast<std::ptrdiff_t>((i + 1) * points));
  measures.first_output_change = changes[0];
  measures.first_bf16_change = changes[1];
  return measures;
}

}  // namespace gdnsim
