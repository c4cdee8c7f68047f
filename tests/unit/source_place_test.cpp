// What is said of a place in the source names the project's folders and none of the machine's.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gdnsim/error.hpp>
#include <gdnsim/source_place.hpp>

#include <array>
#include <csignal>
#include <string>

using namespace gdnsim;

namespace {

/// What a broken invariant in `file` says before it aborts.
std::string said_of(const char* file) {
  std::array<int, 2> ends;
  REQUIRE(pipe(ends.data()) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    signal(SIGABRT, SIG_DFL);
    check_failed(file, 12, "rows > 0");
  }
  close(ends[1]);
  std::string text;
  std::array<char, 256> some;
  for (ssize_t count; (count = read(ends[0], some.data(), some.size())) > 0;)
    text.append(some.data(), static_cast<std::size_t>(count));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  return text;
}

}  // namespace

TEST_CASE("source place: from the last of the project's folders on") {
  CHECK(source_place("../../a/b/gdnsim/cuda/device.cpp") == "cuda/device.cpp");
  CHECK(source_place("/usr/cuda/gdnsim/src/core/types.cpp") == "src/core/types.cpp");
  CHECK(source_place("/x/src/gdnsim/golden/conv.cpp") == "golden/conv.cpp");
  CHECK(source_place("../tools/main.cpp") == "tools/main.cpp");
  CHECK(source_place("cuda/queue.cpp") == "cuda/queue.cpp");
  CHECK(source_place("/x/mysrc/file.cpp") == "/x/mysrc/file.cpp");
  CHECK(source_place("file.cpp") == "file.cpp");
  CHECK(source_place("") == "");
}

TEST_CASE("source place: a broken invariant says it so") {
  CHECK(said_of("../../a/b/src/core/pool.cpp") ==
        "gdnsim: internal error at src/core/pool.cpp:12: rows > 0 does not hold; please report this\n");
}
