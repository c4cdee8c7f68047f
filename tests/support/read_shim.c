/* A preloaded library that notes every read of a file whose name ends in .h5, for tests of how much is read:
 *
 *   GDNSIM_READ_LOG    where each read is noted: SIZE PATH
 *   GDNSIM_READ_FAIL   from which read on (from 0, of each process) they fail with EIO
 *
 * Children of the program note theirs too. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int record = -1;
static long fail_from = -1, reads;

__attribute__((constructor)) static void start(void) {
  const char* path = getenv("GDNSIM_READ_LOG");
  const char* from = getenv("GDNSIM_READ_FAIL");
  if (from) fail_from = atol(from);
  if (path) record = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* Is it one of ours, and where does it lie? */
static int is_ours(int file, char* path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, size - 1);
  if (length < 3) return 0;
  path[length] = 0;
  return strcmp(path + length - 3, ".h5") == 0;
}

static int fails(int file) {
  char path[512];
  if (fail_from < 0 || !is_ours(file, path, sizeof path) || reads++ < fail_from) return 0;
  errno = EIO;
  return 1;
}

static long note(int file, long size) {
  char path[512], line[600];
  if (record < 0 || size <= 0 || !is_ours(file, path, sizeof path)) return size;
  const int written = snprintf(line, sizeof line, "%ld %s\n", size, path);
  syscall(SYS_write, record, line, written);
  return size;
}

#define PREAD(symbol)                                                         \
  ssize_t symbol(int file, void* bytes, size_t size, off64_t offset) {        \
    return fails(file) ? -1 : note(file, syscall(SYS_pread64, file, bytes, size, offset)); \
  }
PREAD(pread)
PREAD(pread64)

ssize_t read(int file, void* bytes, size_t size) {
  return fails(file) ? -1 : note(file, syscall(SYS_read, file, bytes, size));
}

ssize_t readv(int file, const struct iovec* parts, int count) {
  return fails(file) ? -1 : note(file, syscall(SYS_readv, file, parts, count));
}
