// The long sweeps' program.
#include "support/long_sweep.hpp"

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

namespace gdnsim::second {
namespace {

constexpr std::uint64_t kAll = std::uint64_t{1} << 32;
constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;

/// Takes chunks until none are left.
void work(const Pair& pair, std::uint64_t first, std::uint64_t end, std::atomic<std::uint64_t>& next,
          std::atomic<std::uint64_t>& compared, std::atomic<std::uint64_t>& wrong) {
  for (std::uint64_t at; (at = next.fetch_add(kChunk)) < end;) {
    const Swept swept = sweep(pair, at, std::min(kChunk, end - at), 1);
    wrong += swept.wrong;
    const std::uint64_t before = compared.fetch_add(swept.compared), after = before + swept.compared;
    if (before >> 28 != after >> 28)
      std::fprintf(stderr, "%s: %3.0f %%\n", pair.name.c_str(),
                   100.0 * static_cast<double>(after) / static_cast<double>(end - first));
  }
}

}  // namespace

Swept long_sweep(const Pair& pair, std::uint64_t first, std::uint64_t count) {
  std::atomic<std::uint64_t> next{first}, compared{0}, wrong{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back([&] { work(pair, first, first + count, next, compared, wrong); });
  for (std::thread& thread : threads) thread.join();
  return {compared, wrong};
}

int run_long(const std::vector<Pair>& pairs, int argc, char** argv) try {
  const std::string only = argc > 1 ? argv[1] : "";
  const std::uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 0;
  const std::uint64_t count = argc > 3 ? std::strtoull(argv[3], nullptr, 0) : kAll - std::min(first, kAll);
  std::uint64_t compared = 0, wrong = 0;
  for (const Pair& pair : pairs) {
    if (!only.empty() && only != pair.name) continue;
    static_cast<void>(pair.want(1.0f));  // what cannot run (no tables) says so here, not in a thread
    const Swept swept = long_sweep(pair, first, std::min(count, kAll - std::min(first, kAll)));
    std::printf("%s: %" PRIu64 " compared, %" PRIu64 " wrong\n", pair.name.c_str(), swept.compared, swept.wrong);
    std::fflush(stdout);
    compared += swept.compared;
    wrong += swept.wrong;
  }
  if (compared == 0) std::fprintf(stderr, "nothing compared: no such function, or an empty range\n");
  return compared == 0 ? 2 : wrong == 0 ? 0 : 1;
} catch (const std::exception& problem) {
  std::fprintf(stderr, "%s\n", problem.what());
  return 2;
}

}  // namespace gdnsim::second
