// The units of a sweep, or of a shard of it: which are missing, and workers that compute them side by side. HDF5 has one user
// at a time; everything else of a unit is its worker's own.
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <numeric>
#include <thread>

#include "drift/parts.hpp"
#include "drift/units.hpp"
#include "file/raw_file.hpp"
#include "gdnsim/drift.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kOnDevice = 8, kOnCpu = 4096;  // units side by side at most
constexpr std::size_t kMostAgain = kOnDevice;        // failures beside others, however many are beside

void make_folder(const std::string& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) throw error(folder, ": cannot be made: ", failed.message());
  if (!fs::is_directory(folder)) throw error(folder, ": expected a folder, found another kind of file");
}

/// Those of `units`, ascending, that have no part in the folder.
std::vector<std::int64_t> without_part(const DriftSweep& sweep, const std::vector<std::int64_t>& units,
                                       const std::string& folder) {
  const std::vector<std::int64_t> there = units_with_parts(sweep, units, folder);
  std::vector<std::int64_t> missing;
  std::ranges::set_difference(units, there, std::back_inserter(missing));
  return missing;
}

/// Said before the first unit, not after hours of them.
void require_room(const DriftSweep& sweep, std::size_t units, const std::string& folder) {
  const double bytes = static_cast<double>(units) * static_cast<double>(kCurves * 4 * sweep.points().size());
  if (const auto room = free_bytes(part_path(folder, 0)); room && static_cast<double>(*room) < bytes)
    throw error(folder, ": the disk cannot hold ", units, " units of ", sweep.points().size(),
                " measured steps: ", *room, " bytes are free");
}

bool on_device(const DriftOptions& options) {
  return options.backend != "golden" &&
         choose_backend(options.backend, options.backend_options).backend->name() != "golden";
}

/// How many units run side by side, one to a thread. A few keep a device busy, and each has pools there.
int jobs_for(int threads, std::size_t units, bool device) {
  const std::size_t most = std::min<std::size_t>(units, device ? kOnDevice : kOnCpu);
  return std::max(1, std::min(threads, static_cast<int>(most)));
}

/// Takes units until there is none, or one failed.
class Workers {
 public:
  Workers(const DriftSweep& sweep, const std::string& folder, const DriftOptions& options, const UnitRunner& runner,
          std::vector<std::int64_t> todo, std::int64_t done)
      : sweep_(sweep),
        units_(sweep.units()),
        folder_(folder),
        options_(options),
        runner_(runner),
        todo_(std::move(todo)),
        done_(done) {}

  /// On a device units share its memory. `threads`: of all jobs together; those that run alone afterwards have them all.
  void run(int jobs, int threads, bool device) {
    const int threads_each = std::max(1, threads / jobs);
    share_ = device && jobs > 1;
    total_ = done_ + static_cast<std::int64_t>(todo_.size());
    if (options_.progress) options_.progress(done_, total_);
    std::vector<std::thread> others;
    for (int job = 1; job < jobs; ++job) others.emplace_back([&] { work(threads_each); });
    work(threads_each);
    for (std::thread& other : others) other.join();
    if (failed_) std::rethrow_exception(failed_);
    share_ = false;
    again_.insert(again_.end(), todo_.begin() + static_cast<std::ptrdiff_t>(std::min(next_.load(), todo_.size())),
                  todo_.end());
    next_ = 0, todo_ = std::move(again_), stop_ = false;
    work(threads);
    if (failed_) std::rethrow_exception(failed_);
  }

 private:
  void work(int threads) {
    omp_set_num_threads(threads);
    while (!stop_) {
      const std::size_t at = next_++;
      if (at >= todo_.size()) return;
      const std::int64_t unit = todo_[at];
      try {
        const DriftMeasures measures = runner_.run(units_[static_cast<std::size_t>(unit)], threads);
        const std::lock_guard<std::mutex> lock(one_at_a_time_);
        write_part(sweep_, unit, measures, part_path(folder_, unit));
        if (options_.progress) options_.progress(++done_, total_);
      } catch (...) {
        failed(unit);
      }
    }
  }

  /// Called where it was caught. What fails beside others on a device, for want of memory perhaps, has it for itself when they
  /// are done. After more failures than kMostAgain nothing more is begun beside others.
  void failed(std::int64_t unit) {
    const std::lock_guard<std::mutex> lock(one_at_a_time_);
    if (share_) {
      again_.push_back(unit);
      stop_ = stop_ || again_.size() > kMostAgain;
      return;
    }
    if (!failed_) failed_ = with_unit(units_[static_cast<std::size_t>(unit)]);
    stop_ = true;
  }

  /// The exception that is being handled; an Error of ours says of which unit it is.
  std::exception_ptr with_unit(const DriftUnit& unit) const {
    try {
      throw;
    } catch (const Error& why) {
      const DriftCell& cell = sweep_.cells[unit.cell];
      return std::make_exception_ptr(error(sweep_.where, ": cell \"", cell.name, "\", seed ", sweep_.seeds[unit.seed],
                                           ", layer ", cell.layer_ids[static_cast<std::size_t>(unit.layer)], ": ",
                                           why.what()));
    } catch (...) {
      return std::current_exception();
    }
  }

  const DriftSweep& sweep_;
  const std::vector<DriftUnit> units_;
  const std::string& folder_;
  const DriftOptions& options_;
  const UnitRunner& runner_;
  std::vector<std::int64_t> todo_, again_;
  std::int64_t done_, total_ = 0;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex one_at_a_time_;
  bool share_ = false;
  std::exception_ptr failed_;
};

}  // namespace

std::vector<std::int64_t> missing_units(const DriftSweep& sweep, const std::vector<std::string>& folders) {
  std::vector<std::int64_t> missing(sweep.units().size());
  std::iota(missing.begin(), missing.end(), 0);
  for (const std::string& folder : folders) missing = without_part(sweep, missing, folder);
  return missing;
}

void run_units(const DriftSweep& sweep, const std::string& folder, const DriftOptions& options,
               const UnitRunner& runner) {
  GDNSIM_CHECK(options.shards > 0 && options.shard >= 0 && options.shard < options.shards);
  make_folder(folder);
  std::vector<std::int64_t> mine;
  for (std::int64_t unit = options.shard, count = static_cast<std::int64_t>(sweep.units().size()); unit < count;
       unit += options.shards)
    mine.push_back(unit);
  std::vector<std::int64_t> todo = without_part(sweep, mine, folder);
  const auto done = static_cast<std::int64_t>(mine.size() - todo.size());
  require_room(sweep, todo.size(), folder);
  const int asked = options.backend_options.threads, threads = asked > 0 ? asked : omp_get_max_threads();
  const bool device = !todo.empty() && runner.on_device();
  const int jobs = jobs_for(threads, todo.size(), device);
  Workers(sweep, folder, options, runner, std::move(todo), done).run(jobs, threads, device);
}

void run_drift(const DriftSweep& sweep, const std::string& folder, const DriftOptions& options) {
  run_units(sweep, folder, options,
            {[&] { return on_device(options); },
             [&](const DriftUnit& unit, int threads) { return run_unit(sweep, unit, options, threads); }});
}

void remove_parts(const DriftSweep& sweep, const std::string& folder) {
  for (std::int64_t unit = 0, count = static_cast<std::int64_t>(sweep.units().size()); unit < count; ++unit) {
    std::error_code ignored;
    fs::remove(part_path(folder, unit), ignored);
  }
  std::error_code not_empty;
  fs::remove(folder, not_empty);
}

}  // namespace gdnsim
