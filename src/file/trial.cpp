#include "file/trial.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

#include "gdnsim/error.hpp"

namespace gdnsim {

namespace {

constexpr rlim_t kSpareSeconds = 3, kFileBytesPerSecond = rlim_t{16} << 20;  // of processor time
constexpr unsigned kWallSeconds = 300;                                       // a slow disk is no damage
constexpr rlim_t kSpareBytes = rlim_t{256} << 20, kBytesPerFileByte = 4;
constexpr std::size_t kMaxMessage = 4096;

enum ExitCode { kGood = 0, kRefused = 113, kOther = 114 };  // not what a sanitizer or a library would exit with

struct Limits {
  rlim_t memory = 0;  // 0: unknown
  rlim_t seconds = kSpareSeconds;
};

/// What opening a file of this size may need, on top of the memory that the process has now.
Limits limits_for(const std::string& path) {
  Limits limits;
  struct stat status {};
  const rlim_t size = ::stat(path.c_str(), &status) == 0 ? static_cast<rlim_t>(status.st_size) : 0;
  limits.seconds += size / kFileBytesPerSecond;
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  if (pages != 0)
    limits.memory = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + kSpareBytes + kBytesPerFileByte * size;
  return limits;
}

/// Faults end the child quietly: no handler of the parent's, no core, no words of malloc's.
void become_disposable(const Limits& limits) {
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM, SIGXCPU}) std::signal(fault, SIG_DFL);
  const struct rlimit no_core { 0, 0 }, space{limits.memory, limits.memory}, time{limits.seconds, limits.seconds};
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::setrlimit(RLIMIT_CPU, &time);
  if (limits.memory != 0) ::setrlimit(RLIMIT_AS, &space);
  const int nowhere = ::open("/dev/null", O_WRONLY);
  if (nowhere >= 0) ::dup2(nowhere, STDERR_FILENO);
  ::alarm(kWallSeconds);
}

[[noreturn]] void run_child(const std::function<void()>& open, int pipe) {
  try {
    open();
  } catch (const Error& bad) {
    const std::size_t length = std::min(std::strlen(bad.what()), kMaxMessage);  // less than a pipe holds
    ::_exit(::write(pipe, bad.what(), length) == static_cast<ssize_t>(length) ? kRefused : kOther);
  } catch (...) {
    ::_exit(kOther);
  }
  ::_exit(kGood);
}

std::string receive(int pipe) {
  std::string text;
  char part[512];
  for (;;) {
    const ssize_t got = ::read(pipe, part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(part, static_cast<std::size_t>(got));
  }
}

}  // namespace

void try_in_child(const std::string& path, const std::function<void()>& open) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw error(path, ": cannot be opened: ", std::strerror(errno));
  const Limits limits = limits_for(path);
  const pid_t child = ::fork();
  const int fork_failed = errno;
  if (child == 0) {
    become_disposable(limits);
    run_child(open, ends[1]);
  }
  ::close(ends[1]);
  const std::string message = child > 0 ? receive(ends[0]) : "";
  ::close(ends[0]);
  if (child < 0) throw error(path, ": cannot be opened: ", std::strerror(fork_failed));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kGood) return;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kRefused) throw Error(message);
  throw error(path, ": expected a whole HDF5 file, found one so damaged that the HDF5 library fails on it");
}

}  // namespace gdnsim
