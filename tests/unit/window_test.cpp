// Windows: many steps at once show an observer what step by step would have shown it.
#include <gdnsim/simulator.hpp>

#include <csignal>

#include <doctest/doctest.h>

#include "support/log_files.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

constexpr std::int64_t kLong = 24;

/// The made-up backend, taking windows.
class InWindows final : public Backend {
 public:
  explicit InWindows(int at_once) : at_once_(at_once) {}
  std::string name() const override { return inner_.name(); }
  std::string description() const override { return inner_.description(); }
  std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) override {
    return inner_.make_pool(model, std::move(layers));
  }
  void prepare(const Stream& stream, const std::vector<int>& layers) override { inner_.prepare(stream, layers); }
  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override {
    if (args.plan.step >= lost_at) throw error("the device is lost");
    inner_.step(args, pool, outputs);
  }
  int steps_at_once(const Model&) const override { return at_once_; }
  void steps(const WindowArgs& args, Pool& pool, std::span<WindowStep> steps) override {
    windows += 1;
    longest = std::max(longest, steps.size());
    Backend::steps(args, pool, steps);
  }
  std::int64_t lost_at = kLong;  // from this step on every call fails
  int windows = 0;
  std::size_t longest = 0;

 private:
  FakeBackend inner_;
  const int at_once_;
};

LogHeader long_header(const char* policy, std::int64_t first, std::int64_t checkpoint_every) {
  FakeStream stream(kLong, kRows);
  LogHeader header = fake_header(stream, first, kLong - first, state_policy_from(policy));
  header.checkpoint_every = checkpoint_every;
  if (checkpoint_every > 0) header.checkpoint_blocks = named_blocks(stream, kLong);
  return header;
}

/// Runs to the end of the log; the observer is the writer itself.
void run_log(LogWriter& writer, const LogHeader& header, Backend& backend) {
  FakeStream stream(kLong, kRows);
  const ContractSet contracts = contract_set("golden");
  const auto pool = backend.make_pool(stream.model(), header.layers);
  const std::int64_t first = writer.start(*pool);
  simulate({stream, backend, contracts, header.layers, kLong, header.taps, first}, *pool, writer);
  writer.close();
}

std::string bytes_of_log(const std::string& path, const LogHeader& header, Backend& backend) {
  run_log(*create_log(path, header, {}), header, backend);
  return text_of_file(path);
}

/// Names one block and looks at another, or has enough early.
class Curious final : public Observer {
 public:
  std::int32_t named = 0, looked_at = 0;
  bool wants_bytes = true;
  std::int64_t enough_after = kLong;
  std::vector<std::int64_t> seen;

  bool looks_at(const ComingStep&, std::vector<Look>& looks) override {
    add_look(looks, named, wants_bytes);
    return true;
  }
  void after(const StepView& view) override {
    Bytes recurrent(view.pool.model().state_bytes()), conv(view.pool.model().conv_bytes());
    if (view.step > 4) view.pool.read(view.layer, looked_at, recurrent, conv);
  }
  void step_done(std::int64_t step) override { seen.push_back(step); }
  bool enough() const override { return static_cast<std::int64_t>(seen.size()) >= enough_after; }
};

void run_curious(Curious& curious, Backend& backend) {
  FakeStream stream(kLong, kRows);
  const ContractSet contracts = contract_set("golden");
  const auto pool = backend.make_pool(stream.model(), {0});
  simulate({stream, backend, contracts, {0}, kLong}, *pool, curious);
}

}  // namespace

TEST_CASE("a log written in windows has the bytes of one written step by step") {
  const Folder folder;
  int number = 0;
  for (const char* policy : {"full", "every:3", "digest"})
    for (const std::int64_t first : {0, 6})
      for (const std::int64_t checkpoint : {0, 5})
        for (const int at_once : {2, 7, 64}) {
          CAPTURE(policy);
          CAPTURE(first);
          CAPTURE(checkpoint);
          CAPTURE(at_once);
          const LogHeader header = long_header(policy, first, checkpoint);
          FakeBackend plain;
          InWindows windows(at_once);
          const std::string name = folder / std::to_string(number++);
          CHECK((bytes_of_log(name + "-steps", header, plain) == bytes_of_log(name + "-windows", header, windows)));
          CHECK(windows.windows > 0);
          CHECK(windows.longest > 1);
          CHECK(windows.longest <= static_cast<std::size_t>(at_once));
        }
}

TEST_CASE("a log that was interrupted goes on in windows to the same bytes") {
  const Folder folder;
  const std::string path = folder / "a";
  for (const std::int64_t checkpoint : {0, 5}) {
    const LogHeader header = long_header("every:3", 0, checkpoint);
    InWindows backend(16);
    std::filesystem::remove(path);
    const std::string whole = bytes_of_log(path, header, backend);
    for (const std::int64_t complete : {2, 9, 17, 23}) {
      CAPTURE(complete);
      const auto [commit, bytes] = entry(path, "", "commit", h5::Type::u64, 2, static_cast<std::uint64_t>(complete));
      overwrite(path, commit, std::string(static_cast<std::size_t>(kLong - complete) * bytes, '\0'));
      run_log(*resume_log(path, header, {}), header, backend);
      CHECK((text_of_file(path) == whole));
    }
  }
}

TEST_CASE("a device that is lost in mid-run leaves a log whose complete steps are there, and that goes on elsewhere") {
  const Folder folder;
  const std::string path = folder / "a";
  const LogHeader header = long_header("every:3", 0, 5);
  FakeBackend elsewhere;
  const std::string whole = bytes_of_log(folder / "whole", header, elsewhere);
  for (const int at_once : {1, 4, 64})
    for (const std::int64_t lost_at : {6, 13, 23}) {
      CAPTURE(at_once);
      CAPTURE(lost_at);
      InWindows backend(at_once);
      backend.lost_at = lost_at;
      std::filesystem::remove(path);
      CHECK_THROWS_WITH_AS(run_log(*create_log(path, header, {}), header, backend), "the device is lost", Error);
      const auto log = open_log(path);
      CHECK(log->steps() <= lost_at);
      CHECK(log->steps() >=
            (at_once == 1 ? lost_at : 4));  // a window goes with its device; the last event precedes step 4
      CHECK(log->verify().dataset == "");
      run_log(*resume_log(path, header, {}), header, elsewhere);
      CHECK((text_of_file(path) == whole));
    }
}

TEST_CASE("an event or an opaque step ends a window") {
  InWindows backend(64);
  Curious curious;
  run_curious(curious, backend);
  CHECK(curious.seen.size() == kLong);
  CHECK(backend.longest <= kLong - 4);  // the last event precedes step 4
}

TEST_CASE("a block that was not named cannot be looked at in a window") {
  const auto outcome = [](std::int32_t looked_at, bool wants_bytes) {
    return in_child([&] {
      ::close(STDERR_FILENO);  // the broken invariant is meant
      std::signal(SIGABRT, SIG_DFL);
      InWindows backend(64);
      Curious curious;
      curious.looked_at = looked_at;
      curious.wants_bytes = wants_bytes;
      run_curious(curious, backend);
      return 0;
    });
  };
  CHECK(outcome(0, true) == 0);
  CHECK(WTERMSIG(outcome(1, true)) == SIGABRT);
  CHECK(WTERMSIG(outcome(0, false)) == SIGABRT);  // only its digest was named
}

TEST_CASE("an observer that has enough sees no further step of the window") {
  for (const std::int64_t steps : {5, 6, 11}) {
    InWindows backend(64);
    Curious curious;
    curious.enough_after = steps;
    run_curious(curious, backend);
    CHECK(static_cast<std::int64_t>(curious.seen.size()) == steps);
  }
}
