// Threads that share the tasks of one stage after another. Nobody waits for a thread that has taken no task: on a busy machine
// a stage ends when its tasks are done, and not when the last thread has been woken up, as a team of OpenMP does. A task goes to
// the same thread each time unless another one is ahead, so that a core keeps what is in its cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace gdnsim::golden {

/// Elements of state (and eight times those of the projections) below which one thread is sooner done than two have met: a step
/// of a toy model is over before the second one has woken up.
constexpr std::int64_t kWorthThreads = 65536;

class Crew {
 public:
  /// `threads` includes the caller of `share`.
  explicit Crew(int threads);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  int threads() const { return static_cast<int>(lanes_.size()); }

  /// Runs task(i, thread) for every i < count, each once; returns when all are done. Tasks do not throw.
  template <class Task>
  void share(std::int64_t count, const Task& task) {
    run(count, &task,
        [](const void* what, std::int64_t i, int thread) { (*static_cast<const Task*>(what))(i, thread); });
  }

 private:
  using Call = void (*)(const void* task, std::int64_t i, int thread);

  /// A thread's own part of the tasks: the stage's number in the upper half, how many are left in the lower. The number keeps
  /// a thread that woke up late from taking a task of a later stage.
  struct alignas(64) Lane {
    std::atomic<std::uint64_t> left{0};
  };

  void run(std::int64_t count, const void* task, Call call);
  void work(std::uint32_t stage, int thread);
  bool take(std::uint32_t stage, int lane, std::int64_t& i);
  std::int64_t end_of(int lane) const { return count_ * (lane + 1) / threads(); }
  void wait_for_stage(std::uint32_t seen) const;
  void serve(int thread);

  std::vector<Lane> lanes_;
  const int spins_;

  // Written between stages by the caller; read by whoever has taken a task.
  std::int64_t count_ = 0;
  const void* task_ = nullptr;
  Call call_ = nullptr;

  alignas(64) std::atomic<std::uint32_t> stage_{0};
  alignas(64) std::atomic<std::int64_t> open_{0};  // tasks that are not done
  std::atomic<bool> over_{false};
  std::vector<std::thread> helpers_;
};

}  // namespace gdnsim::golden
