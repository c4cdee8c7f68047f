// HDF5 access: text of variable length, which h5py writes for a Python string. HDF5 1.10 trusts the lengths it finds in such
// text: damaged ones make it overrun its buffers, loop, or ask for 4 GiB (about 1 in 300 random mutations of a file with
// such attributes). So it is read in a child process with little memory and time, and only the text comes back.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

#include <fcntl.h>

#include "hdf5_io_impl.hpp"

namespace gdnsim::h5 {

namespace {

constexpr unsigned kSeconds = 10;
constexpr rlim_t kMoreBytes = rlim_t{64} << 20;  // on top of what the process has

/// Faults end the child quietly: no handler of the parent's, no core, no words of malloc's.
void become_disposable(rlim_t address_space) {
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM}) std::signal(fault, SIG_DFL);
  const struct rlimit none {0, 0}, memory {address_space, address_space};
  ::setrlimit(RLIMIT_CORE, &none);
  if (address_space != 0) ::setrlimit(RLIMIT_AS, &memory);
  const int nowhere = ::open("/dev/null", O_WRONLY);
  if (nowhere >= 0) ::dup2(nowhere, STDERR_FILENO);
  ::alarm(kSeconds);
}

/// In the child: the text goes into the pipe; the exit status says whether it is all there.
[[noreturn]] void send_text(hid_t attribute, hid_t type, int pipe) {
  char* raw = nullptr;
  if (H5Aread(attribute, type, &raw) < 0) ::_exit(1);
  std::size_t left = raw == nullptr ? 0 : ::strnlen(raw, Group::kMaxText + 1);
  if (left > Group::kMaxText) ::_exit(1);
  while (left > 0) {
    const ssize_t put = ::write(pipe, raw, left);
    if (put <= 0) ::_exit(1);
    raw += put;
    left -= static_cast<std::size_t>(put);
  }
  ::_exit(0);
}

std::string receive_text(int pipe) {
  std::string text;
  char part[4096];
  for (;;) {
    const ssize_t got = ::read(pipe, part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || text.size() > Group::kMaxText) return text;
    text.append(part, static_cast<std::size_t>(got));
  }
}

rlim_t address_space_limit() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages == 0 ? 0 : pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + kMoreBytes;
}

}  // namespace

std::string vlen_text(hid_t attribute, hid_t type, const std::string& where) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw error(where, ": cannot be read: ", std::strerror(errno));
  const rlim_t limit = address_space_limit();
  const pid_t child = ::fork();
  if (child == 0) {
    become_disposable(limit);
    send_text(attribute, type, ends[1]);
  }
  ::close(ends[1]);
  const std::string text = child > 0 ? receive_text(ends[0]) : "";
  ::close(ends[0]);
  if (child < 0) throw error(where, ": cannot be read: ", std::strerror(errno));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) throw error(where, ": expected a text, found damaged text of variable length");
  return text;
}

}  // namespace gdnsim::h5
