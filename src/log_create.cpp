// Making a log, or taking one up again: the only places where a log's file appears, is locked, or is checked before writing.
#include <cerrno>
#include <memory>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "gdnsim/error.hpp"
#include "log_file.hpp"
#include "log_skeleton.hpp"
#include "log_writer.hpp"
#include "trial.hpp"

namespace gdnsim {
namespace {

/// Removes a file unless it was kept.
class Unfinished {
 public:
  explicit Unfinished(std::string path) : path_(std::move(path)) {}
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  ~Unfinished() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }
  void keep() { path_.clear(); }

 private:
  std::string path_;
};

/// A target may be absent, or with `force` a regular file that nobody is writing.
void require_target(const std::string& path, bool force) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return;
  if (!S_ISREG(status.st_mode)) throw error(path, ": expected a regular file or nothing, found another kind of file");
  if (is_locked(path)) throw error(path, ": another writer holds this log");
  if (!force) throw error(path, ": exists already; --force replaces it");
}

void must(const std::string& path, int failed, const std::string& what) {
  if (failed != 0) throw error(path, ": ", what, ": ", errno_text(failed));
}

/// Takes the lock that keeps a second writer out.
void lock(RawFile& file, const std::string& path) {
  const int failed = file.lock();
  if (failed == EAGAIN || failed == EACCES) throw error(path, ": another writer holds this log");
  must(path, failed, "cannot be locked");
}

/// A run may go on only with the log of the same run.
void require_same_run(const LogHeader& found, const LogHeader& wanted, const std::string& path) {
  const std::vector<HeaderPart> have = header_parts(found), want = header_parts(wanted);
  for (std::size_t i = 0; i < have.size(); ++i)
    if (have[i].digest != want[i].digest)
      throw error(path, ": ", have[i].object, ": the log is of another run than this one: it cannot be resumed");
}

}  // namespace

std::unique_ptr<LogWriter> create_log(const std::string& path, const LogHeader& header, const LogOptions& options) {
  require_target(path, options.force);
  Unfinished temporary(temporary_name(path));
  LogLayout layout = write_skeleton(temporary.path(), path, header);
  RawFile file(temporary.path(), RawFile::Mode::write, path);
  lock(file, path);
  must(path, file.reserve(file.size()), "the disk cannot hold its " + std::to_string(file.size()) + " bytes");
  must(path, file.sync(), "the skeleton cannot be synced");
  must(path, rename_file(temporary.path(), path, options.force), "cannot be put in place");
  temporary.keep();
  return std::make_unique<FileLogWriter>(path, header, options, std::move(layout), std::move(file), nullptr);
}

std::unique_ptr<LogWriter> resume_log(const std::string& path, const LogHeader& header, const LogOptions& options) {
  try_in_child(path, [&] { read_skeleton(path); });
  RawFile file(path, RawFile::Mode::write, path);
  lock(file, path);
  auto log = std::make_unique<LogFile>(path);
  require_same_run(log->header(), header, path);
  if (const LogFault fault = log->verify(); !fault.dataset.empty())
    throw error(path, ": ", fault.dataset, ": step ", fault.step, ": ", fault.what, ": it cannot be resumed");
  LogLayout layout = log->layout();
  return std::make_unique<FileLogWriter>(path, header, options, std::move(layout), std::move(file), std::move(log));
}

}  // namespace gdnsim
