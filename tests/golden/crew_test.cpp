// The threads that share golden's tasks: each task runs once, whoever takes it, and a stage is over only when all of it is done.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "golden/crew.hpp"

using gdnsim::golden::Crew;

TEST_CASE("crew: each task once, by a thread of the crew, done when share returns") {
  for (int threads : {1, 2, 3, 7}) {
    CAPTURE(threads);
    Crew crew(threads);
    CHECK(crew.threads() == threads);
    for (int stage = 0; stage < 3000; ++stage) {
      const std::int64_t count = stage % 41;
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      std::atomic<int> strangers{0};
      crew.share(count, [&](std::int64_t i, int thread) {
        strangers += thread < 0 || thread >= threads ? 1 : 0;
        runs[static_cast<std::size_t>(i)] += stage + 1;
      });
      std::int64_t once = 0;
      for (const std::atomic<int>& run : runs) once += run == stage + 1 ? 1 : 0;
      REQUIRE(once == count);
      REQUIRE(strangers == 0);
    }
  }
}

TEST_CASE("crew: a thread that is held up holds up no task but its own") {
  Crew crew(2);
  std::set<std::int64_t> by_caller;
  std::atomic<bool> helper_has_one{false};
  std::atomic<int> done{0};
  crew.share(40, [&](std::int64_t i, int thread) {
    if (thread == 0) {
      by_caller.insert(i);
      if (by_caller.size() < 20) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else {
      helper_has_one = true;
      while (done < 39) std::this_thread::yield();
    }
    ++done;
  });
  CHECK(done == 40);
  if (helper_has_one) CHECK(by_caller.size() == 39);
}

TEST_CASE("crew: made and ended without work") {
  for (int n = 0; n < 50; ++n) Crew crew(1 + n % 5);
}
