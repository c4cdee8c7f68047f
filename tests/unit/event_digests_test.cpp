// Event digests of a log against a replay and against another log: what a reset, a load or a copy left, and what somebody
// did to a block before one, is named at the event, before any step is blamed.
#include <doctest/doctest.h>

#include <functional>
#include <sstream>

#include <gdnsim/bisect.hpp>
#include <gdnsim/diff.hpp>
#include <gdnsim/explain.hpp>
#include <gdnsim/recipe.hpp>
#include <gdnsim/report.hpp>
#include <gdnsim/stream_view.hpp>
#include <nlohmann/json.hpp>

#include "support/log_files.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

/// Something that a pool does wrong: true when it has done the event in its own way.
struct Faults {
  std::function<bool(Pool&, int layer, std::int32_t block)> zero, copy, write;
  std::function<void(Pool&, const StepArgs&)> after_step;
};

class WrongPool final : public Pool {
 public:
  WrongPool(const Model& model, std::vector<int> layers, const Faults& faults)
      : Pool(model, layers), right_(model, layers), faults_(faults) {}
  void read(int layer, std::int32_t block, std::span<std::byte> recurrent, std::span<std::byte> conv) const override {
    right_.read(layer, block, recurrent, conv);
  }
  void write(int layer, std::int32_t block, std::span<const std::byte> recurrent,
             std::span<const std::byte> conv) override {
    if (!faults_.write || !faults_.write(right_, layer, block)) right_.write(layer, block, recurrent, conv);
  }
  void zero(int layer, std::int32_t block) override {
    if (!faults_.zero || !faults_.zero(right_, layer, block)) right_.zero(layer, block);
  }
  void copy(int layer, std::int32_t from, std::int32_t to) override {
    if (!faults_.copy || !faults_.copy(right_, layer, to)) right_.copy(layer, from, to);
  }

 private:
  HostPool right_;
  const Faults& faults_;
};

class WrongBackend final : public Backend {
 public:
  explicit WrongBackend(Faults faults) : faults_(std::move(faults)) {}
  std::string name() const override { return "wrong"; }
  std::string description() const override { return "patterns, and a fault"; }
  std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) override {
    return std::make_unique<WrongPool>(model, std::move(layers), faults_);
  }
  void prepare(const Stream&, const std::vector<int>&) override {}
  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override {
    right_.step(args, pool, outputs);
    if (faults_.after_step) faults_.after_step(pool, args);
  }

 private:
  FakeBackend right_;
  const Faults faults_;
};

void fill(Pool& pool, int layer, std::int32_t block, unsigned seed) {
  pool.write(layer, block, pattern(pool.model().state_bytes(), seed), pattern(pool.model().conv_bytes(), seed + 1));
}

/// Writes a log of the fake stream as a backend with these faults makes it.
void log_with(const std::string& path, Faults faults, const char* policy = "digest", std::int64_t first = 0) {
  FakeStream stream(kSteps, kRows);
  LogHeader header = fake_header(stream, first, kSteps - first, state_policy_from(policy));
  header.taps = {Tap::conv_out, Tap::core_out};
  const auto writer = create_log(path, header, {true, 0, false});
  WrongBackend backend(std::move(faults));
  const ContractSet contracts = contract_set("golden");
  const auto pool = backend.make_pool(stream.model(), header.layers);
  simulate({stream, backend, contracts, header.layers, kSteps, header.taps}, *pool, *writer);
  writer->close();
}

ReplayResult replay_of(const std::string& path, const Slice& slice = {}, Mode mode = Mode::both) {
  FakeStream stream(kSteps, kRows);
  FakeBackend backend;
  const auto log = open_log(path);
  ReplayOptions options;
  options.contracts = contract_set("golden");
  options.slice = slice;
  options.mode = mode;
  return replay(stream, *log, backend, options);
}

struct Expected {
  std::int64_t step, event;
  EventKind kind;
  std::int32_t block;
  int layer;
  bool after;
  InputsMatched inputs;
};

void check_first(const std::optional<Divergence>& first, const Expected& want) {
  REQUIRE(first);
  REQUIRE(first->event);
  CHECK(first->step == want.step);
  CHECK(first->event->number == want.event);
  CHECK(first->event->event.kind == want.kind);
  CHECK(first->event->after == want.after);
  CHECK(first->block == want.block);
  CHECK(first->layer == want.layer);
  CHECK(first->row == -1);
  CHECK(first->kind == DiffClass::digest);
  CHECK(first->inputs == want.inputs);
}

/// The fake stream's events: 0 load of 5 (step 1), 1 copy of 5 to 4 (step 2, layer 2), 2 free of 1 (step 2, layer 0), 3 load
/// of 3 (step 4, layer 0), 4 zero of 2 (step 4).
struct Case {
  const char* name;
  Faults faults;
  Expected want;
};

std::vector<Case> cases() {
  const auto no = [](Pool&, int, std::int32_t) { return true; };
  const auto stray = [](std::int64_t step, int layer, std::int32_t block) {
    return [=](Pool& pool, const StepArgs& args) {
      if (args.plan.step == step && args.layer == layer) fill(pool, layer, block, 99);
    };
  };
  return {
      {"a reset that was not made",
       {no, nullptr, nullptr, nullptr},
       {4, 4, EventKind::zero, 2, 0, true, InputsMatched::equal}},
      {"a copy that was not made",
       {nullptr, no, nullptr, nullptr},
       {2, 1, EventKind::copy, 4, 2, true, InputsMatched::equal}},
      {"a write that nothing named, before a reset",
       {nullptr, nullptr, nullptr, stray(2, 0, 2)},
       {4, 4, EventKind::zero, 2, 0, false, InputsMatched::unknown}},
      {"the same in another layer",
       {nullptr, nullptr, nullptr, stray(2, 2, 2)},
       {4, 4, EventKind::zero, 2, 2, false, InputsMatched::unknown}},
  };
}

}  // namespace

TEST_CASE("event digests: without a fault everything agrees, and they are counted") {
  const Folder folder;
  for (const std::int64_t first : {0, 2}) {
    log_with(folder / "log", {}, "digest", first);
    const ReplayResult result = replay_of(folder / "log");
    CHECK(result.verdict == Verdict::match);
    LogHeader header = open_log(folder / "log")->header();
    // Two layers: each event names both but events 1 to 3, which name one.
    std::uint64_t digests = 0;
    for (const Event& event : header.events) digests += event.layer == -1 ? 4 : 2;
    FakeStream stream(kSteps, kRows);
    std::uint64_t states = 0;
    for (std::int64_t step = first; step < kSteps; ++step) {
      const StepPlan plan = stream.plan(step);
      if (plan.path == Path::opaque) continue;
      for (std::int32_t block : plan.block) states += block >= 0 ? 2 * (1 + 2) : 0;  // conv and two heads, two layers
      states += 2;                                                                   // the pools
    }
    CHECK(result.carried.digests_compared == states + digests);
  }
}

namespace {

/// The same content, its load rows numbered otherwise: a content digest does not tell the two apart.
class Renumbered final : public StreamView {
 public:
  explicit Renumbered(Stream& whole) : StreamView(whole), events_(whole.events().begin(), whole.events().end()) {
    for (Event& event : events_)
      if (event.kind == EventKind::load) event.source += kShift;
  }
  std::span<const Event> events() const override { return events_; }
  void load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) override {
    whole_.load_row(source - kShift, recurrent, conv);
  }
  std::vector<Event> events_;

 private:
  static constexpr std::int32_t kShift = 100;
};

}  // namespace

TEST_CASE("event digests: load rows may be numbered otherwise, other events may not be") {
  const Folder folder;
  log_with(folder / "log", {});
  const auto log = open_log(folder / "log");
  FakeStream stream(kSteps, kRows);
  Renumbered other(stream);
  FakeBackend backend;
  ReplayOptions options;
  options.contracts = contract_set("golden");
  CHECK(replay(other, *log, backend, options).verdict == Verdict::match);
  other.events_[1].source = 4;
  CHECK_THROWS_WITH_AS(replay(other, *log, backend, options),
                       doctest::Contains("events[1]: expected the copy of block 4 at step 2"), Error);
}

TEST_CASE("event digests: the event is named before any step is blamed") {
  const Folder folder;
  for (const Case& c : cases())
    for (const char* policy : {"digest", "full"}) {
      CAPTURE(c.name);
      CAPTURE(policy);
      log_with(folder / "log", c.faults, policy);
      const ReplayResult result = replay_of(folder / "log");
      CHECK(result.verdict == Verdict::diverged);
      check_first(result.first(), c.want);
      // Alone on its layer and step, too; and not where it is not looked at.
      check_first(replay_of(folder / "log", {{c.want.layer}, c.want.step, c.want.step + 1}).first(), c.want);
      const ReplayResult others = replay_of(folder / "log", {{}, -1, -1, {{}, {c.want.block == 5 ? 1 : 5}}});
      CHECK((!others.first() || !others.first()->event));
      check_first(replay_of(folder / "log", {{}, -1, -1, {{}, {c.want.block}}}).first(), c.want);
    }
}

TEST_CASE("event digests: a load that went wrong") {
  const Folder folder;
  // No row names block 5 in step 0, so the load is the first to write it.
  auto written = std::make_shared<std::map<int, int>>();
  Faults faults;
  faults.write = [written](Pool& pool, int layer, std::int32_t block) {
    if (block != 5 || (*written)[layer]++ > 0) return false;
    fill(pool, layer, block, 31);
    return true;
  };
  log_with(folder / "log", faults);
  check_first(replay_of(folder / "log").first(), {1, 0, EventKind::load, 5, 0, true, InputsMatched::equal});
}

TEST_CASE("event digests: diff of two logs names it, and bisect goes there") {
  const Folder folder;
  log_with(folder / "right", {});
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    log_with(folder / "wrong", c.faults);
    const auto a = open_log(folder / "right"), b = open_log(folder / "wrong");
    const DiffResult result = diff(*a, *b, {}, nullptr);
    CHECK(result.verdict == Verdict::diverged);
    Expected want = c.want;
    want.inputs = InputsMatched::unknown;  // of a diff, nothing between steps is vouched for
    check_first(result.found.first, want);
    check_first(bisect(*a, *b, {}).first, want);
  }
  const auto a = open_log(folder / "right"), b = open_log(folder / "right");
  CHECK(diff(*a, *b, {}, nullptr).verdict == Verdict::match);
}

TEST_CASE("event digests: other events are said, not compared") {
  const Folder folder;
  FakeStream stream(kSteps, kRows);
  LogHeader header = header_of(state_policy_from("digest"));
  write_log(folder / "a", header);
  class Without final : public StreamView {
   public:
    explicit Without(Stream& whole) : StreamView(whole), events_(whole.events().begin(), whole.events().end()) {
      events_[4].block = 1;
    }
    std::span<const Event> events() const override { return events_; }

   private:
    std::vector<Event> events_;
  } other(stream);
  header.events = events_of(other, 0, kSteps);
  const auto writer = create_log(folder / "b", header, {true, 0, false});
  fake_run(other, header, *writer);
  writer->close();
  const auto a = open_log(folder / "a"), b = open_log(folder / "b");
  const DiffResult result = diff(*a, *b, {}, nullptr);
  bool said = false;
  for (const std::string& note : result.notes)
    said |= contains(note, "events before step 4: A has zero of block 2, B zero of block 1");
  CHECK(said);
  CHECK(result.verdict != Verdict::match);
}

namespace {

/// Block 2 is reset for sequence 8 before step 4, block 3 for sequence 9, block 4 gets a copy of block 1.
constexpr const char* kRecipe = R"({"schema": "gdnsim.recipe/1", "seed": 3, "steps": 7, "rows": 2,
  "model": {"num_k_heads": 1, "num_v_heads": 2, "head_k_dim": 4, "head_v_dim": 4, "num_blocks": 5, "layer_ids": [0, 1]},
  "script": {"fill": true,
    "events": [{"step": 4, "kind": "zero", "block": 2}, {"step": 4, "kind": "zero", "block": 3},
               {"step": 4, "kind": "copy", "block": 4, "source": 1}],
    "steps": [{"index": [1, 2], "sequence": [6, 7], "times": 4}, {"index": [1, 2], "sequence": [6, 8], "times": 3}]}})";

/// A run of golden's that writes a log and does something wrong on the way.
class FaultyRun final : public Observer {
 public:
  FaultyRun(LogWriter& log, EventKind kind, std::int32_t block) : log_(log), kind_(kind), block_(block) {}
  std::function<void(const StepView&)> stray;
  void event_coming(const Event& event, int layer, Pool& pool) override {
    recurrent_.resize(pool.model().state_bytes()), conv_.resize(pool.model().conv_bytes());
    pool.read(layer, event.block, recurrent_, conv_);
    log_.event_coming(event, layer, pool);
  }
  void event_applied(const Event& event, int layer, Pool& pool) override {
    if (event.step == 4 && event.kind == kind_ && event.block == block_)
      pool.write(layer, event.block, recurrent_, conv_);
    log_.event_applied(event, layer, pool);
  }
  void before(std::int64_t step, int layer, const StepPlan& plan, Pool& pool) override {
    log_.before(step, layer, plan, pool);
  }
  void after(const StepView& view) override {
    log_.after(view);
    if (stray) stray(view);
  }
  void step_done(std::int64_t step) override { log_.step_done(step); }

 private:
  LogWriter& log_;
  const EventKind kind_;
  const std::int32_t block_;
  Bytes recurrent_, conv_;
};

Explanation explained(const std::string& path, EventKind kind, std::int32_t block,
                      const std::function<void(const StepView&)>& stray = nullptr) {
  const auto stream = make_recipe_stream(parse_recipe(kRecipe, "recipe"));
  const auto backend = make_golden({.threads = 1});
  LogHeader header = fake_header(*stream, 0, stream->steps(), state_policy_from("digest"));
  header.layers = {0, 1};
  header.contracts = contract_set("golden");
  {
    const auto writer = create_log(path, header, {true, 0, false});
    FaultyRun run(*writer, kind, block);
    run.stray = stray;
    const auto pool = backend->make_pool(stream->model(), header.layers);
    simulate({*stream, *backend, header.contracts, header.layers, stream->steps(), header.taps}, *pool, run);
    writer->close();
  }
  const auto log = open_log(path);
  ExplainOptions options;
  options.contracts = header.contracts;
  return explain(*stream, *log, *backend, options);
}

std::string said(const Explanation& found) {
  std::string text;
  for (const Mechanism& m : found.mechanisms) text += m.id + ": " + m.says + " [" + m.evidence + "]\n";
  for (const std::string& line : found.tried) text += line + "\n";
  return text;
}

}  // namespace

TEST_CASE("event digests: explain proves which event did not happen") {
  const Folder folder;
  CHECK(explained(folder / "log", EventKind::free, 0).replay.verdict == Verdict::match);
  for (const auto& missing : {std::pair{EventKind::zero, 2}, {EventKind::zero, 3}, {EventKind::copy, 4}}) {
    const auto kind = missing.first;
    const auto block = missing.second;
    CAPTURE(block);
    const Explanation found = explained(folder / "log", kind, block);
    CHECK(found.complete);
    REQUIRE(found.replay.first());
    CHECK(found.replay.first()->event);
    CAPTURE(said(found));
    CHECK(!found.mechanisms.empty());
    for (const Mechanism& mechanism : found.mechanisms) {  // of each layer, where the block's last writers differ
      CHECK(mechanism.id == "reset-missing");
      CHECK(mechanism.scope.block == block);
      CHECK(mechanism.scope.from_step == 4);
      CHECK(contains(mechanism.says, "did not reach its state: the last writer was"));
    }
  }
}

TEST_CASE("event digests: a block that no row names is watched from event to event") {
  const Folder folder;
  const Explanation found = explained(folder / "log", EventKind::free, 0, [](const StepView& view) {
    if (view.step == 2 && view.layer == 1) view.pool.copy(1, 1, 3);  // row 0 writes there too
  });
  CAPTURE(said(found));
  REQUIRE(found.replay.first());
  CHECK(found.replay.first()->layer == 1);
  REQUIRE(found.replay.first()->event);
  CHECK(found.replay.first()->event->event.block == 3);
  CHECK_FALSE(found.replay.first()->event->after);
  CHECK(found.complete);
  REQUIRE(found.mechanisms.size() == 1);
  CHECK(found.mechanisms[0].id == "wrong-block");
  CHECK(contains(found.mechanisms[0].says, "step 2, layer 1, row 0: wrote its state to block 3 as well as to its own"));
}

TEST_CASE("event digests: what a report says") {
  const Folder folder;
  const auto text_of = [&](const Case& c) {
    log_with(folder / "log", c.faults);
    std::ostringstream text;
    const Report report = report_of(replay_of(folder / "log"));
    print_text(text, report);
    const auto json = to_json(report)["first"];
    CHECK(json["event"]["number"] == c.want.event);
    CHECK(json["event"]["kind"] == name_of(c.want.kind));
    CHECK(json["event"]["when"] == (c.want.after ? "after" : "before"));
    CHECK(json["block"] == c.want.block);
    return text.str();
  };
  const auto all = cases();
  const std::string copy = text_of(all[1]);
  CHECK(contains(copy,
                 "at       before step 2, layer 2 (model layer 5), event 1 (copy of block 5 to block 4), block 4\n"));
  CHECK(contains(copy, "class    digest: the event left other bytes in block 4\n"));
  const std::string stray = text_of(all[2]);
  CHECK(contains(stray, "at       before step 4, layer 0 (model layer 0), event 4 (zero of block 2), block 2\n"));
  CHECK(contains(stray,
                 "the bytes of block 2 before the event differ: it changed since a row or an event last wrote it\n"));
}
