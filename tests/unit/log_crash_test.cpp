// Logs under bad luck: existing targets, a second writer, no room, failing writes, kills at every write, and resuming.
#include <gdnsim/log.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "support/log_files.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

/// While one lives, this process's pwrite misbehaves at call `at`, counted from 0 (crumble: at every call).
class Shim {
 public:
  enum class Mode { none, count, kill, tear, full, crumble };
  Shim(Mode mode, int at) { mode_ = mode, at_ = at, calls_ = 0; }
  ~Shim() { mode_ = Mode::none; }
  static int calls() { return calls_; }

  static ssize_t pwrite(int file, const void* bytes, std::size_t size, off_t offset) {
    const auto write = [&](std::size_t part) {
      return static_cast<ssize_t>(::syscall(SYS_pwrite64, file, bytes, part, offset));
    };
    if (mode_ == Mode::none) return write(size);
    const int call = calls_++;
    if (mode_ == Mode::crumble && call % 2 == 0) return errno = EINTR, -1;
    if (mode_ == Mode::crumble) return write(std::min<std::size_t>(size, 40));
    if (call < at_ || mode_ == Mode::count) return write(size);
    if (mode_ == Mode::full) return errno = ENOSPC, -1;
    if (mode_ == Mode::tear) write(size / 2);
    ::kill(::getpid(), SIGKILL);
    return -1;
  }

 private:
  static inline Mode mode_ = Mode::none;
  static inline int at_ = 0, calls_ = 0;
};

/// Writes a whole log; how many writes that takes.
int count_writes(const std::string& path, const LogHeader& header) {
  const Shim shim(Shim::Mode::count, 0);
  write_log(path, header);
  std::filesystem::remove(path);
  return Shim::calls();
}

/// A child writes a log until it is killed at write n; the number of steps that it reported before.
int run_until_killed(const std::string& path, const LogHeader& header, Shim::Mode mode, int n) {
  struct Reporter final : Observer {
    Reporter(LogWriter& w, int p) : writer(w), pipe(p) {}
    void event_coming(const Event& event, int layer, Pool& pool) override { writer.event_coming(event, layer, pool); }
    void event_applied(const Event& event, int layer, Pool& pool) override { writer.event_applied(event, layer, pool); }
    void before(std::int64_t step, int layer, const StepPlan& plan, Pool& pool) override {
      writer.before(step, layer, plan, pool);
    }
    void after(const StepView& view) override { writer.after(view); }
    void step_done(std::int64_t step) override {
      writer.step_done(step);
      const char count = static_cast<char>(writer.committed());
      if (::write(pipe, &count, 1) != 1) std::abort();
    }
    LogWriter& writer;
    int pipe;
  };
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const int status = in_child([&] {
    FakeStream stream(kSteps, kRows);
    const Shim shim(mode, n);
    const auto writer = create_log(path, header, {false, n % 3});
    Reporter reporter(*writer, ends[1]);
    fake_run(stream, header, reporter);
    return 0;
  });
  ::close(ends[1]);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  char acknowledged = 0;
  for (char next = 0; ::read(ends[0], &next, 1) == 1;) acknowledged = next;
  ::close(ends[0]);
  return acknowledged;
}

}  // namespace

// Both names that the library may call, whatever the width of off_t it was built for.
extern "C" ssize_t shim_pwrite(int file, const void* bytes, std::size_t size, off_t offset) __asm__("pwrite");
extern "C" ssize_t shim_pwrite64(int file, const void* bytes, std::size_t size, off_t offset) __asm__("pwrite64");
ssize_t shim_pwrite(int file, const void* bytes, std::size_t size, off_t offset) {
  return Shim::pwrite(file, bytes, size, offset);
}
ssize_t shim_pwrite64(int file, const void* bytes, std::size_t size, off_t offset) {
  return Shim::pwrite(file, bytes, size, offset);
}

TEST_CASE("an existing target needs force, and keeps its content until the new file is whole") {
  const Folder folder;
  const std::string path = folder / "a";
  std::ofstream(path) << "mine";
  const LogHeader header = header_of(state_policy_from("digest"));
  CHECK(contains(error_of([&] { create_log(path, header, {}); }), "exists already"));
  CHECK(text_of_file(path) == "mine");
  LogHeader bad = header;
  bad.layers = {2, 0};
  CHECK(contains(error_of([&] { create_log(path, bad, {true}); }), "ascending"));
  CHECK(text_of_file(path) == "mine");
  CHECK(folder.entries() == 1);
  write_log(path, header, {true});
  CHECK(open_log(path)->steps() == kSteps);
  CHECK(folder.entries() == 1);
  CHECK(contains(error_of([&] { create_log(folder.path.string(), header, {true}); }), "regular file"));
  CHECK(contains(error_of([&] { create_log(folder / "none" + "/a", header, {}); }), "cannot be created"));
}

TEST_CASE("a second writer is kept out while the first one lives, readers are not") {
  const Folder folder;
  const std::string path = folder / "a";
  const LogHeader header = header_of(state_policy_from("digest"));
  auto writer = create_log(path, header, {});
  for (bool force : {false, true}) {
    CHECK(contains(error_of([&] { create_log(path, header, {force}); }), "another writer holds this log"));
    const int status = in_child(
        [&] { return contains(error_of([&] { create_log(path, header, {force}); }), "another writer") ? 0 : 1; });
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  }
  CHECK(open_log(path)->steps() == 0);
  CHECK(folder.entries() == 1);
  writer->close();
  CHECK_NOTHROW(create_log(path, header, {true}));
}

TEST_CASE("no room: nothing is left behind, one line says so") {
  const Folder folder;
  const LogHeader header = header_of(state_policy_from("full"));
  const int status = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{40000, 40000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string text = error_of([&] { create_log(folder / "a", header, {}); });
    return contains(text, folder / "a") && text.find('\n') == text.npos && text != "no error" ? 0 : 1;
  });
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK(folder.entries() == 0);
}

TEST_CASE("interrupted calls and short writes change nothing") {
  const Folder folder;
  const LogHeader header = header_of(state_policy_from("every:3"));
  write_log(folder / "plain", header);
  const Shim shim(Shim::Mode::crumble, 0);
  write_log(folder / "crumbled", header);
  CHECK(Shim::calls() > 1000);
  CHECK((text_of_file(folder / "crumbled") == text_of_file(folder / "plain")));
}

TEST_CASE("a full disk at any write ends the run with one error that names the last complete step") {
  const Folder folder;
  const std::string path = folder / "a";
  const LogHeader header = checkpointed(header_of(state_policy_from("every:3")), 3);
  const int writes = count_writes(path, header);
  int named = 0;
  for (int n = 0; n < writes; n += 3) {
    CAPTURE(n);
    std::filesystem::remove(path);
    FakeStream stream(kSteps, kRows);
    const Shim shim(Shim::Mode::full, n);
    std::unique_ptr<LogWriter> writer;
    const std::string before = error_of([&] { writer = create_log(path, header, {}); });
    if (!writer) {  // the skeleton did not fit
      CHECK_MESSAGE(contains(before, path + ": cannot be written: No space left on device"), before);
      CHECK(folder.entries() == 0);
      continue;
    }
    const std::string text = error_of([&] { fake_run(stream, header, *writer); });
    const std::int64_t done = writer->committed();
    const std::string last =
        done == 0 ? "no step is complete" : "the last complete step is " + std::to_string(done - 1);
    CHECK_MESSAGE((contains(text, path + ": /") && contains(text, ": No space left on device; " + last)), text);
    CHECK(error_of([&] { writer->close(); }) == text);
    named += done > 0;
    CHECK(open_log(path)->steps() == done);
    CHECK(open_log(path)->verify().dataset == "");
  }
  CHECK(named > 20);
}

TEST_CASE(
    "killed at every write, before it and half way through: acknowledged steps are whole, resuming gives the same "
    "bytes, nothing else is left") {
  const Folder folder;
  const std::string path = folder / "a", reference = folder / "reference";
  for (const std::int64_t every : {0, 2}) {
    CAPTURE(every);
    const LogHeader plain = header_of(state_policy_from("every:3"));
    const LogHeader header = every == 0 ? plain : checkpointed(plain, every);
    write_log(reference, header, {true});
    const std::string whole = text_of_file(reference);
    const int writes = count_writes(path, header);
    CHECK(writes > 100);
    int resumed = 0, skipped = 0;
    for (const Shim::Mode mode : {Shim::Mode::kill, Shim::Mode::tear})
      for (int n = 0; n < writes; ++n) {
        CAPTURE(n);
        std::filesystem::remove(path);
        const int acknowledged = run_until_killed(path, header, mode, n);
        if (!std::filesystem::exists(path)) {  // killed in the skeleton
          CHECK(folder.entries() == 1);
          continue;
        }
        {
          const auto log = open_log(path);
          CHECK(log->steps() == acknowledged);
          CHECK(log->verify().dataset == "");
        }
        const auto writer = resume_log(path, header, {});
        CHECK(writer->committed() == acknowledged);
        const std::int64_t first = finish_log(*writer, header);
        CHECK(first == (every == 0 ? 0 : std::min<std::int64_t>(acknowledged, kSteps - 1) / every * every));
        skipped += first > 0;
        CHECK((text_of_file(path) == whole));
        ++resumed;
      }
    CHECK(resumed > 200);
    CHECK((every == 0 || skipped > 100));
    std::filesystem::remove(path);
  }
}

TEST_CASE("what killed processes left beside a log goes when the next one is made, what is alive stays") {
  const Folder folder;
  const int dead = ::fork();
  if (dead == 0) ::_exit(0);
  REQUIRE(::waitpid(dead, nullptr, 0) == dead);
  const std::string gone = folder / ("a.tmp" + std::to_string(dead) + "-0");
  const std::string mine = folder / ("a.tmp" + std::to_string(::getpid()) + "-77");
  const std::string other = folder / ("b.tmp" + std::to_string(dead) + "-0"), odd = folder / "a.tmp12-3x";
  for (const std::string& name : {gone, mine, other, odd}) std::ofstream(name) << "?";
  write_log(folder / "a", header_of(state_policy_from("digest")));
  CHECK(!std::filesystem::exists(gone));
  for (const std::string& name : {mine, other, odd}) CHECK(std::filesystem::exists(name));
}

TEST_CASE("a disk that cannot hold the log: said before anything is made") {
  const Folder folder;
  LogHeader header = header_of(state_policy_from("full"));
  header.model.HV = 1 << 10, header.model.K = 1 << 14, header.model.V = 1 << 13;  // 24 TiB of states
  const std::string text = error_of([&] { create_log(folder / "a", header, {}); });
  CHECK_MESSAGE(contains(text, folder / "a" + ": the disk cannot hold its "), text);
  CHECK(folder.entries() == 0);
}

TEST_CASE("resuming: only the same run, only a whole log, only one writer") {
  const Folder folder;
  const std::string path = folder / "a";
  const LogHeader header = header_of(state_policy_from("full"));
  write_log(path, header);
  const auto [commit, bytes] = entry(path, "", "commit", h5::Type::u64, 2, 5);
  overwrite(path, commit, std::string(3 * bytes, '\0'));
  const std::string interrupted = text_of_file(path);

  LogHeader other = header;
  other.contracts = contract_set("golden");
  CHECK(contains(error_of([&] { resume_log(path, other, {}); }), path + ": /contract: the log is of another run"));
  other = header;
  other.plans[6].sequence[0] = 1;
  CHECK(
      contains(error_of([&] { resume_log(path, other, {}); }), path + ": /steps/sequence: the log is of another run"));
  CHECK(contains(error_of([&] { resume_log(folder / "absent", header, {}); }), "absent"));

  const std::uint64_t state = entry(path, "state", "recurrent", h5::Type::f32, 6, 2).first;
  flip(path, state);
  CHECK(contains(error_of([&] { resume_log(path, header, {}); }), path + ": /state/recurrent: step 2: "));
  flip(path, state);

  {  // a run that is not repeatable: another state at step 4
    FakeStream stream(kSteps, kRows);
    const auto writer = resume_log(path, header, {});
    CHECK(contains(error_of([&] { resume_log(path, header, {}); }), "another writer holds this log"));
    struct Altered final : Observer {
      explicit Altered(LogWriter& w) : writer(w) {}
      void after(const StepView& view) override {
        const Model& model = view.pool.model();
        if (view.step == 4 && view.layer == 2)
          view.pool.write(2, view.plan.block[0], Bytes(model.state_bytes()), Bytes(model.conv_bytes()));
        writer.after(view);
      }
      void event_coming(const Event& event, int layer, Pool& pool) override { writer.event_coming(event, layer, pool); }
      void event_applied(const Event& event, int layer, Pool& pool) override {
        writer.event_applied(event, layer, pool);
      }
      void step_done(std::int64_t step) override { writer.step_done(step); }
      LogWriter& writer;
    } altered(*writer);
    CHECK(contains(error_of([&] { fake_run(stream, header, altered); }),
                   path + ": step 4: recomputed, it gives other digests"));
  }
  CHECK((text_of_file(path) == interrupted));
  FakeStream stream(kSteps, kRows);
  const auto writer = resume_log(path, header, {});
  fake_run(stream, header, *writer);
  writer->close();
  CHECK(open_log(path)->steps() == kSteps);
  CHECK(open_log(path)->verify().dataset == "");
}
