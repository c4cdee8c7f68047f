#include "crew.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gdnsim::golden {
namespace {

constexpr int kSpins = 2000;  // some 50 us: longer than from one stage to the next, shorter than others would feel

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

bool there_are_cores_for(int threads) { return static_cast<int>(std::thread::hardware_concurrency()) >= threads; }

}  // namespace

Crew::Crew(int threads)
    : lanes_(static_cast<std::size_t>(threads > 1 ? threads : 1)), spins_(there_are_cores_for(threads) ? kSpins : 0) {}

Crew::~Crew() {
  over_ = true;
  stage_.fetch_add(1);
  stage_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Crew::run(std::int64_t count, const void* task, Call call) {
  if (threads() < 2 || count < 2) {
    for (std::int64_t i = 0; i < count; ++i) call(task, i, 0);
    return;
  }
  // Not before there is something to share: a backend for a toy model comes and goes many times.
  if (helpers_.empty())
    for (int thread = 1; thread < threads(); ++thread) helpers_.emplace_back([this, thread] { serve(thread); });
  count_ = count, task_ = task, call_ = call;
  open_.store(count, std::memory_order_relaxed);
  const std::uint32_t stage = stage_.load(std::memory_order_relaxed) + 1;
  for (int lane = 0; lane < threads(); ++lane) {
    const std::int64_t begin = lane == 0 ? 0 : end_of(lane - 1);
    const std::uint64_t left = static_cast<std::uint64_t>(end_of(lane) - begin);
    lanes_[static_cast<std::size_t>(lane)].left.store(std::uint64_t{stage} << 32 | left, std::memory_order_release);
  }
  stage_.store(stage);
  stage_.notify_all();
  work(stage, 0);
  for (int spin = 0; open_.load(std::memory_order_acquire) != 0; ++spin)
    if (spin < spins_)
      relax();
    else
      std::this_thread::yield();
}

/// One's own part first, then what others have left.
void Crew::work(std::uint32_t stage, int thread) {
  std::int64_t done = 0, i = 0;
  for (int n = 0; n < threads(); ++n)
    for (const int lane = (thread + n) % threads(); take(stage, lane, i); ++done) call_(task_, i, thread);
  if (done > 0) open_.fetch_sub(done, std::memory_order_release);
}

bool Crew::take(std::uint32_t stage, int lane, std::int64_t& i) {
  std::atomic<std::uint64_t>& left = lanes_[static_cast<std::size_t>(lane)].left;
  std::uint64_t now = left.load(std::memory_order_relaxed);
  while (now >> 32 == stage && (now & 0xFFFFFFFF) != 0) {
    if (!left.compare_exchange_weak(now, now - 1, std::memory_order_acquire, std::memory_order_relaxed)) continue;
    i = end_of(lane) - static_cast<std::int64_t>(now & 0xFFFFFFFF);
    return true;
  }
  return false;
}

void Crew::wait_for_stage(std::uint32_t seen) const {
  for (int spin = 0; spin < spins_; ++spin) {
    if (stage_.load(std::memory_order_relaxed) != seen) return;
    relax();
  }
  stage_.wait(seen);
}

void Crew::serve(int thread) {
  for (std::uint32_t seen = 0; !over_;) {
    wait_for_stage(seen);
    seen = stage_.load(std::memory_order_acquire);
    work(seen, thread);
  }
}

}  // namespace gdnsim::golden
