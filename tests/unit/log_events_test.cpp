// Logs of version 2: events with the block's digests around each, launches and moves; what is chained, found and resumed.
#include <doctest/doctest.h>

#include <gdnsim/stream_view.hpp>

#include "support/log_files.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

/// The fake stream with a launch of two drafts in steps 5 and 6: row 0 from block 1 to block 4.
class LaunchStream final : public StreamView {
 public:
  explicit LaunchStream(Stream& whole) : StreamView(whole) {}
  int version() const override { return 2; }
  StepPlan plan(std::int64_t step) const override {
    if (step != 5 && step != 6) return whole_.plan(step);
    const std::vector<std::int32_t> index = {step == 5 ? 1 : 4, -1, -1}, source = {step == 5 ? -1 : 1, -1, -1},
                                    accepted = {step == 5 ? 1 : 0, 0, 0};
    const std::vector<std::int64_t> sequence = {100, -1, -1};
    return make_plan(model(), step, Path::mixed, index, sequence, kRows, "fake",
                     {step == 5 ? 0 : 1, step == 6, source, accepted});
  }
};

LogHeader launch_header(const char* policy, std::int64_t every = 0, std::int64_t first = 0,
                        std::int64_t steps = kSteps) {
  FakeStream whole(kSteps, kRows);
  LaunchStream stream(whole);
  LogHeader header = fake_header(stream, first, steps, state_policy_from(policy));
  header.checkpoint_every = every;
  header.checkpoint_blocks = named_blocks(stream, first + steps);
  return header;
}

/// Runs the stream from the writer's start; stops after `steps` of them.
std::int64_t run_some(LogWriter& writer, const LogHeader& header, std::int64_t steps) {
  struct Until final : Observer {
    Until(LogWriter& log, std::int64_t n) : writer(log), left(n) {}
    void event_coming(const Event& e, int layer, Pool& pool) override { writer.event_coming(e, layer, pool); }
    void event_applied(const Event& e, int layer, Pool& pool) override { writer.event_applied(e, layer, pool); }
    void before(std::int64_t step, int layer, const StepPlan& plan, Pool& pool) override {
      writer.before(step, layer, plan, pool);
    }
    void after(const StepView& view) override { writer.after(view); }
    void step_done(std::int64_t step) override { writer.step_done(step), --left; }
    bool enough() const override { return left == 0; }
    LogWriter& writer;
    std::int64_t left;
  };
  FakeStream whole(kSteps, kRows);
  LaunchStream stream(whole);
  FakeBackend backend;
  const ContractSet contracts = contract_set("golden");
  const auto pool = backend.make_pool(stream.model(), header.layers);
  const std::int64_t first = writer.start(*pool);
  Until until(writer, steps);
  simulate({stream, backend, contracts, header.layers, header.first_step + header.steps, header.taps, first}, *pool,
           until);
  return first;
}

std::uint64_t offset_of(const std::string& path, const char* group, const char* name, h5::Type type, std::size_t rank) {
  return entry(path, group, name, type, rank, 0).first;
}

}  // namespace

TEST_CASE("events: every digest around an event is the block's") {
  const Folder folder;
  for (const std::int64_t first : {0, 2}) {
    const LogHeader header = header_of(state_policy_from("every:3"), first, kSteps - first);
    const Witness witness = write_log(folder / "log", header, {true, 0, false});
    const auto log = open_log(folder / "log");
    CHECK(log->header().events == header.events);
    REQUIRE(header.events.size() == (first == 0 ? 5 : 4));
    CHECK(log->verify().dataset == "");
    std::size_t at = first == 0 ? 0 : 2;  // the witness saw event 0, too: two layers
    for (std::size_t event = 0; event < header.events.size(); ++event)
      for (int layer : header.layers) {
        const EventDigests digests = log->digest_event(event, layer);
        const std::int32_t named = header.events[event].layer;
        if (named != -1 && named != layer) {
          CHECK((digests.before == 0 && digests.after == 0));
          continue;
        }
        REQUIRE(at < witness.events.size());
        CHECK(witness.events[at].first == layer);
        CHECK(digests.before == witness.events[at].second.before);
        CHECK(digests.after == witness.events[at].second.after);
        const bool same = header.events[event].kind == EventKind::free;
        CHECK((digests.before == digests.after) == same);
        ++at;
      }
    CHECK(at == witness.events.size());
  }
}

TEST_CASE("events: without them the log is of version 1") {
  const Folder folder;
  LogHeader header = header_of(state_policy_from("digest"));
  CHECK(version_of(header) == 2);
  header.events.clear();
  CHECK(version_of(header) == 1);
  write_log(folder / "log", header);
  const h5::File file = h5::File::open(folder / "log");
  CHECK(file.root().int_attribute("version") == 1);
  CHECK_FALSE(file.root().has("events"));
  CHECK_FALSE(file.root().has_attribute("digest_events"));
}

TEST_CASE("launches: plans come back, and every part of them is in the header's digest") {
  const Folder folder;
  const LogHeader header = launch_header("digest");
  const auto writer = create_log(folder / "log", header, {});
  run_some(*writer, header, kSteps);
  writer->close();
  const auto log = open_log(folder / "log");
  CHECK(log->verify().dataset == "");
  for (std::size_t t = 0; t < header.plans.size(); ++t) {
    const StepPlan &plan = log->header().plans[t], &want = header.plans[t];
    CHECK((plan.draft == want.draft && plan.last_draft == want.last_draft));
    for (std::size_t row = 0; row < plan.block.size(); ++row) CHECK(plan.start(row) == want.start(row));
    CHECK(plan.accepted[0] == (t == 5 ? 1 : 0));
  }
  const auto refuses = [&](const char* object, const std::function<void(LogHeader&)>& change) {
    LogHeader other = header;
    change(other);
    CHECK(error_of([&] { resume_log(folder / "log", other, {}); }) ==
          (folder / "log") + ": " + object + ": the log is of another run than this one: it cannot be resumed");
  };
  refuses("/steps/draft", [](LogHeader& h) { h.plans[6].draft = 0; });
  refuses("/steps/source", [](LogHeader& h) { h.plans[6].source[0] = 2; });
  refuses("/steps/accepted", [](LogHeader& h) { h.plans[5].accepted[0] = 0; });
  refuses("/events", [](LogHeader& h) { h.events[0].why = EventWhy::fork; });
  refuses("/events", [](LogHeader& h) { h.events[0].sequence = 3; });
  refuses("/model", [](LogHeader& h) { h.model.block_stride = 1000; });
}

TEST_CASE("a changed event digest is named; so is a changed column of the header") {
  const Folder folder;
  const LogHeader header = header_of(state_policy_from("digest"));
  write_log(folder / "log", header);
  const std::string whole = text_of_file(folder / "log");
  const std::size_t L = header.layers.size();
  for (const char* name : {"before", "after"})
    for (const std::size_t event : {0, 1, 4})
      for (std::size_t slot = 0; slot < L; ++slot) {
        CAPTURE(name);
        CAPTURE(event);
        CAPTURE(slot);
        const std::uint64_t start = offset_of(folder / "log", "events", name, h5::Type::u64, 2);
        flip(folder / "log", start + 8 * (event * L + slot) + 3, 5);
        const auto log = open_log(folder / "log");
        CHECK(log->steps() == header.events[event].step);  // the chain breaks there
        const LogFault fault = log->verify();
        // A load's `after` is checked by nothing but the chain and the block's next event; the rest is named.
        const bool blind = std::string(name) == "after" && header.events[event].kind == EventKind::load;
        CHECK(fault.step == header.events[event].step);
        if (!blind) {
          CHECK(fault.dataset == "/events/" + std::string(name));
          CHECK(contains(fault.what,
                         "event " + std::to_string(event) + ", layer " + std::to_string(header.layers[slot])));
        }
        overwrite(folder / "log", 0, whole);
      }
  for (const auto& [name, type] :
       {std::pair{"step", h5::Type::i32}, std::pair{"block", h5::Type::i32}, std::pair{"kind", h5::Type::i8},
        std::pair{"source", h5::Type::i32}, std::pair{"sequence", h5::Type::i64}, std::pair{"why", h5::Type::i8}}) {
    CAPTURE(name);
    flip(folder / "log", offset_of(folder / "log", "events", name, type, 1), 0);
    CHECK(error_of([&] { open_log(folder / "log"); }) != "no error");
    overwrite(folder / "log", 0, whole);
  }
  CHECK(open_log(folder / "log")->verify().dataset == "");
}

TEST_CASE("an interrupted run with events and launches resumes to the same bytes, never within a launch") {
  const Folder folder;
  for (const std::int64_t every : {1, 3, 6}) {
    const LogHeader header = launch_header("every:3", every);
    const auto whole = create_log(folder / "whole", header, {true, 0, false});
    run_some(*whole, header, kSteps);
    whole->close();
    const std::string bytes = text_of_file(folder / "whole");
    for (std::int64_t steps = 0; steps < kSteps; ++steps) {
      CAPTURE(every);
      CAPTURE(steps);
      const auto begun = create_log(folder / "cut", header, {true, 0, false});
      if (steps > 0) run_some(*begun, header, steps);
      begun->close();
      const auto resumed = resume_log(folder / "cut", header, {});
      const std::int64_t first = run_some(*resumed, header, -1);
      resumed->close();
      CHECK(first != 6);  // the launch is steps 5 and 6
      std::int64_t expected = steps / every * every;
      if (expected == 6) expected -= every;
      CHECK(first == expected);
      CHECK(text_of_file(folder / "cut") == bytes);
    }
  }
}
