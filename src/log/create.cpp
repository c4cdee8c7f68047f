// Making a log, or taking one up again: the only places where a log's file appears, is locked, or is checked before writing.
#include <cerrno>
#include <memory>
#include <utility>

#include <sys/stat.h>

#include "file/trial.hpp"
#include "gdnsim/error.hpp"
#include "log/file.hpp"
#include "log/skeleton.hpp"
#include "log/writer.hpp"

namespace gdnsim {
namespace {

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

/// Said at once: reserving would fill the disk first. What the file system does not tell, `reserve` finds out.
void require_room(const std::string& path, std::uint64_t bytes) {
  const std::optional<std::uint64_t> room = free_bytes(path);
  if (room && *room < bytes)
    throw error(path, ": the disk cannot hold its ", bytes, " bytes: ", *room, " bytes are free");
  if (const auto limit = file_size_limit(); limit && *limit < bytes)
    throw error(path, ": cannot have its ", bytes, " bytes", limit_text());
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
  for (std::size_t i = 0; i < want.size(); ++i)
    if (i >= have.size() || have[i].digest != want[i].digest)
      throw error(path, ": ", have[i].object, ": the log is of another run than this one: it cannot be resumed");
}

}  // namespace

std::unique_ptr<LogWriter> create_log(const std::string& path, const LogHeader& header, const LogOptions& options) {
  require_target(path, options.force);
  static_cast<void>(lay_out(header, path));  // a header that cannot be a log is refused by the path's name
  require_room(path, log_size(header));
  NewFile fresh(path);
  RawFile file = fresh.open();
  lock(file, path);
  LogLayout layout;
  try {
    layout = write_skeleton(fresh.open(), path, header);
  } catch (const Error& failed) {  // HDF5 does not say why it could not write
    throw Error(failed.what() + limit_text());
  }
  must(path, file.reserve(file.size()), "the disk cannot hold its " + std::to_string(file.size()) + " bytes");
  must(path, file.sync(), "the skeleton cannot be synced");
  must(path, fresh.put_in_place(options.force), "cannot be put in place");
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
