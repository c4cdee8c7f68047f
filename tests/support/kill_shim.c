/* LD_PRELOAD for the tests of bad luck: counts the calls of one program that change a file, and at one of them ends it, or fails
 * from there on. Calls of its children, and those on stderr, pass. For `at`, calls count from 0.
 *
 *   GDNSIM_SHIM_MODE   count (nothing happens), kill (SIGKILL before the call), half (SIGKILL after half of it; what has no half
 *                      is done whole), or a number: the call and all later ones fail with that errno
 *   GDNSIM_SHIM_AT     at which call
 *   GDNSIM_SHIM_LOG    a file: one line "NAME OFFSET SIZE" a call that was done, so that its last line counts them
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL, HALF, FAIL };

static int mode = COUNT, failure, record = -1;
static long at, calls;
static pid_t owner;

__attribute__((constructor)) static void start(void) {
  const char *text = getenv("GDNSIM_SHIM_MODE"), *call = getenv("GDNSIM_SHIM_AT"), *path = getenv("GDNSIM_SHIM_LOG");
  owner = getpid();
  if (call) at = atol(call);
  if (text && strcmp(text, "kill") == 0) mode = KILL;
  if (text && strcmp(text, "half") == 0) mode = HALF;
  if (text && atoi(text) > 0) mode = FAIL, failure = atoi(text);
  if (path) record = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
}

static void note(const char* name, long long offset, long long size) {
  char line[96];
  if (record < 0) return;
  const int length = snprintf(line, sizeof line, "%s %lld %lld\n", name, offset, size);
  syscall(SYS_write, record, line, length);
}

static void die(void) {
  syscall(SYS_kill, owner, SIGKILL);
  for (;;) pause();
}

/* Calls that pass: another process's, messages, and what only looks like a file. */
static int passes(int file) {
  char link[64], name[16] = "";
  if (getpid() != owner || file == STDERR_FILENO) return 1;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  return file >= 0 && readlink(link, name, sizeof name - 1) > 0 && strncmp(name, "/memfd:", 7) == 0;
}

/* What the present call has to do. */
static int next(int file) {
  if (passes(file)) return COUNT;
  const long call = calls++;
  if (mode == FAIL) return call >= at ? FAIL : COUNT;
  if (call != at) return COUNT;
  if (mode == KILL) die();
  return mode;
}

/* The three outcomes of a call: `whole` does all of it, `half` a part. */
#define CALL(name, file, offset, size, failed, half, whole)   \
  const int todo = next(file);                                \
  if (todo == FAIL) return failed;                            \
  if (todo == HALF) {                                         \
    half;                                                     \
    die();                                                    \
  }                                                           \
  const long result = whole;                                  \
  if (!passes(file) && result >= 0) note(name, offset, size); \
  return result

static long broken(void) { return errno = failure, -1L; }

#define PWRITE(symbol)                                                                                            \
  ssize_t symbol(int file, const void* bytes, size_t size, off64_t offset) {                                      \
    CALL("pwrite", file, offset, (long long)size, broken(), syscall(SYS_pwrite64, file, bytes, size / 2, offset), \
         syscall(SYS_pwrite64, file, bytes, size, offset));                                                       \
  }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t write(int file, const void* bytes, size_t size) {
  CALL("write", file, 0LL, (long long)size, broken(), syscall(SYS_write, file, bytes, size / 2),
       syscall(SYS_write, file, bytes, size));
}

ssize_t writev(int file, const struct iovec* parts, int count) {
  CALL("writev", file, 0LL, (long long)count, broken(), syscall(SYS_writev, file, parts, count / 2),
       syscall(SYS_writev, file, parts, count));
}

#define PWRITEV(symbol)                                                            \
  ssize_t symbol(int file, const struct iovec* parts, int count, off64_t offset) { \
    CALL("pwritev", file, offset, (long long)count, broken(),                      \
         syscall(SYS_pwritev, file, parts, count / 2, (long)offset, 0),            \
         syscall(SYS_pwritev, file, parts, count, (long)offset, 0));               \
  }
PWRITEV(pwritev)
PWRITEV(pwritev64)

#define TRUNCATE(symbol)                                                                                 \
  int symbol(int file, off64_t size) {                                                                   \
    CALL("ftruncate", file, 0LL, (long long)size, (int)broken(), syscall(SYS_ftruncate, file, size / 2), \
         (int)syscall(SYS_ftruncate, file, size));                                                       \
  }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

/* Gives its error as the result. */
static int allocate(int file, off64_t offset, off64_t size) {
  return syscall(SYS_fallocate, file, 0, offset, size) == 0 ? 0 : errno;
}
#define ALLOCATE(symbol)                                                                             \
  int symbol(int file, off64_t offset, off64_t size) {                                               \
    CALL("allocate", file, offset, (long long)size, failure, allocate(file, offset, (size + 1) / 2), \
         allocate(file, offset, size));                                                              \
  }
ALLOCATE(posix_fallocate)
ALLOCATE(posix_fallocate64)

/* These have no half. */
#define WHOLE(name, file, whole) CALL(name, file, 0LL, 0LL, (int)broken(), whole, (int)(whole))

int fallocate(int file, int how, off64_t offset, off64_t size) {
  WHOLE("fallocate", file, syscall(SYS_fallocate, file, how, offset, size));
}
int fsync(int file) { WHOLE("fsync", file, syscall(SYS_fsync, file)); }
int fdatasync(int file) { WHOLE("fdatasync", file, syscall(SYS_fdatasync, file)); }
int rename(const char* from, const char* to) {
  WHOLE("rename", -1, syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  WHOLE("rename", -1, syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
int link(const char* from, const char* to) { WHOLE("link", -1, syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0)); }
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  WHOLE("link", -1, syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
}

/* libc writes a FILE by itself. What is only read, and what the program says, pass. */
static int passes_stream(FILE* stream) {
  const int file = fileno(stream);
  return file < 0 || stream == stdout || (fcntl(file, F_GETFL) & O_ACCMODE) == O_RDONLY || passes(file);
}

typedef size_t (*fwrite_call)(const void*, size_t, size_t, FILE*);
size_t fwrite(const void* bytes, size_t size, size_t count, FILE* stream) {
  const fwrite_call real = (fwrite_call)dlsym(RTLD_NEXT, "fwrite");
  if (passes_stream(stream)) return real(bytes, size, count, stream);
  CALL("fwrite", fileno(stream), 0LL, (long long)(size * count), (errno = failure, (size_t)0),
       (real(bytes, size, count / 2, stream), fflush(stream)), (long)real(bytes, size, count, stream));
}

typedef int (*fclose_call)(FILE*);
int fclose(FILE* stream) {
  const fclose_call real = (fclose_call)dlsym(RTLD_NEXT, "fclose");
  if (passes_stream(stream)) return real(stream);
  const int todo = next(fileno(stream));
  if (todo == FAIL) return real(stream), (int)broken();
  const int result = real(stream);
  if (todo == HALF) die();
  if (result == 0) note("fclose", 0LL, 0LL);
  return result;
}
