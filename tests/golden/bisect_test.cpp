// Bisect: a fault planted in one layer of one step of a log is found there, with one checkpoint interval run again.
#include "gdnsim/bisect.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>

#include "file/raw_file.hpp"
#include "gdnsim/error.hpp"
#include "gdnsim/log.hpp"
#include "gdnsim/recipe.hpp"
#include "gdnsim/simulator.hpp"
#include "log/chain.hpp"
#include "log/skeleton.hpp"
#include "support/temp_dir.hpp"

namespace gdnsim {
namespace {

std::string recipe_text(int layers, int steps) {
  std::string ids;
  for (int layer = 0; layer < layers; ++layer) ids += (layer > 0 ? ", " : "") + std::to_string(layer);
  return R"({"schema": "gdnsim.recipe/1", "seed": 7, "steps": )" + std::to_string(steps) +
         R"(, "rows": 2, "model": {"num_k_heads": 1, "num_v_heads": 2, "head_k_dim": 4, "head_v_dim": 4, "num_blocks": 5,)"
         R"( "layer_ids": [)" +
         ids + R"(]}, "schedule": {"running": 2, "length": [20, 300], "shuffle": 0.5}})";
}

/// Where a bit of the first active row's state flips, before the step.
struct Planted {
  std::int64_t step = -1;
  int layer = -1;
};

/// Hands everything to the writer; plants the fault before the step runs.
class FaultyRun final : public Observer {
 public:
  FaultyRun(LogWriter& log, const Planted& fault) : log_(log), fault_(fault) {}
  void event_coming(const Event& event, int layer, Pool& pool) override { log_.event_coming(event, layer, pool); }
  void event_applied(const Event& event, int layer, Pool& pool) override { log_.event_applied(event, layer, pool); }
  void before(std::int64_t step, int layer, const StepPlan& plan, Pool& pool) override {
    log_.before(step, layer, plan, pool);
    if (step != fault_.step || layer != fault_.layer) return;
    for (std::int32_t block : plan.block) {
      if (block < 0) continue;
      Bytes recurrent(pool.model().state_bytes()), conv(pool.model().conv_bytes());
      pool.read(layer, block, recurrent, conv);
      recurrent[2] ^= std::byte{0x40};
      conv[1] ^= std::byte{0x01};
      return pool.write(layer, block, recurrent, conv);
    }
  }
  void after(const StepView& view) override { log_.after(view); }
  void step_done(std::int64_t step) override { log_.step_done(step); }

 private:
  LogWriter& log_;
  const Planted fault_;
};

std::vector<int> all_layers(const Stream& stream) {
  std::vector<int> layers;
  for (int layer = 0; layer < stream.model().layers(); ++layer) layers.push_back(layer);
  return layers;
}

void write_log(Stream& stream, const std::string& path, std::int64_t checkpoint_every, const Planted& fault,
               const char* contract, const std::vector<int>& layers) {
  LogHeader header;
  header.model = stream.model();
  header.layers = layers;
  header.contracts = contract_set(contract);
  header.source = stream.source();
  header.steps = stream.steps();
  header.rows = stream.rows();
  header.state = state_policy_from("digest");
  header.checkpoint_every = checkpoint_every;
  if (checkpoint_every > 0) header.checkpoint_blocks = named_blocks(stream, stream.steps());
  for (std::int64_t step = 0; step < header.steps; ++step) header.plans.push_back(stream.plan(step));
  const auto backend = make_golden({1, 0});
  const auto pool = backend->make_pool(header.model, header.layers);
  const auto log = create_log(path, header, {});
  FaultyRun run(*log, fault);
  simulate({stream, *backend, header.contracts, header.layers, header.steps, header.taps}, *pool, run);
  log->close();
}

void write_log(Stream& stream, const std::string& path, std::int64_t checkpoint_every, const Planted& fault = {},
               const char* contract = "golden") {
  write_log(stream, path, checkpoint_every, fault, contract, all_layers(stream));
}

/// Copies one entry, named by its first two indices, from one log's dataset to another's.
void copy_entry(const RawFile& from, const Extent& source, std::uint64_t source_slot, RawFile& to, const Extent& target,
                std::uint64_t target_slot, std::uint64_t t) {
  Bytes bytes(target.entry_bytes(2));
  REQUIRE(from.read_at(source.at({t, source_slot}), bytes) == 0);
  REQUIRE(to.write_at(target.at({t, target_slot}), bytes) == 0);
}

/// Writes the records from step t on again, as the digests that now stand there ask for.
void seal_again(RawFile& file, const LogSkeleton& log, std::uint64_t t) {
  Commit record{};
  Chain chain = header_digest(header_parts(log.header));
  if (t > 0) {
    REQUIRE(file.read_at(log.layout.commit.at({t - 1}), std::as_writable_bytes(std::span(record))) == 0);
    chain = {record[1], record[2]};
  }
  StepDigests digests(log.layout);
  for (; t < static_cast<std::uint64_t>(log.header.steps); ++t) {
    for (std::size_t i = 0; i < kSections; ++i)
      REQUIRE(file.read_at(log.layout.digest[i].at({t}),
                           std::as_writable_bytes(digests.section(static_cast<Section>(i)))) == 0);
    chain = digests.chain(chain);
    record = seal(static_cast<std::int64_t>(t), chain);
    REQUIRE(file.write_at(log.layout.commit.at({t}), std::as_bytes(std::span(record))) == 0);
  }
}

/// The log of a run with a fault in one layer, without running the others again: a copy of the clean log with that layer's
/// steps from the fault on out of a log of the layer alone, and the chain sealed anew.
void write_faulty(Stream& stream, const std::string& clean, const std::string& path, std::int64_t checkpoint_every,
                  const Planted& fault) {
  const std::string alone = path + ".layer";
  write_log(stream, alone, checkpoint_every, fault, "golden", {fault.layer});
  std::filesystem::copy_file(clean, path);
  const LogSkeleton from = read_skeleton(alone), to = read_skeleton(path);
  const RawFile source(alone, RawFile::Mode::read, alone);
  RawFile target(path, RawFile::Mode::write, path);
  const auto slot = static_cast<std::uint64_t>(fault.layer), first = static_cast<std::uint64_t>(fault.step);
  for (std::uint64_t t = first; t < static_cast<std::uint64_t>(stream.steps()); ++t) {
    for (std::size_t i = 0; i < to.layout.out.size(); ++i)
      copy_entry(source, from.layout.out[i], 0, target, to.layout.out[i], slot, t);
    for (std::size_t i = 0; i < kSections; ++i)
      copy_entry(source, from.layout.digest[i], 0, target, to.layout.digest[i], slot, t);
  }
  for (std::size_t i = 0; i < to.layout.checkpoint.size(); ++i)
    for (std::uint64_t c = 0; c < to.layout.checkpoints.size(); ++c)
      copy_entry(source, from.layout.checkpoint[i], 0, target, to.layout.checkpoint[i], slot, c);
  seal_again(target, to, first);
  std::filesystem::remove(alone);
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool row_active(const Stream& stream, std::int64_t step) {
  for (std::int32_t block : stream.plan(step).block)
    if (block >= 0) return true;
  return false;
}

Planted draw(const Stream& stream, std::mt19937_64& random) {
  Planted fault;
  do fault.step = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(stream.steps()));
  while (!row_active(stream, fault.step));
  fault.layer = static_cast<int>(random() % static_cast<std::uint64_t>(stream.model().layers()));
  return fault;
}

int count_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

}  // namespace

TEST_CASE("a fault at a random step and layer of a digest log is found there, nearly nothing is run again") {
  // The full size is GDNSIM_BISECT_STEPS=4096 GDNSIM_BISECT_LAYERS=36 GDNSIM_BISECT_DRAWS=50.
  const int steps = count_from("GDNSIM_BISECT_STEPS", 512), layers = count_from("GDNSIM_BISECT_LAYERS", 6),
            draws = count_from("GDNSIM_BISECT_DRAWS", 8);
  const test::TempDir folder;
  const auto stream = make_recipe_stream(parse_recipe(recipe_text(layers, steps), "recipe"));
  const std::int64_t every = steps / 32;
  write_log(*stream, folder / "a.h5", every);
  const auto a = open_log(folder / "a.h5");
  const auto backend = make_golden({1, 0});
  std::mt19937_64 random(11);
  int right = 0;
  double most = 0;
  for (int i = 0; i < draws; ++i) {
    const Planted fault = draw(*stream, random);
    const std::string path = folder / ("b" + std::to_string(i) + ".h5");
    write_faulty(*stream, folder / "a.h5", path, every, fault);
    const auto b = open_log(path);
    CHECK(b->steps() == steps);
    BisectResult result = bisect(*a, *b, {});
    REQUIRE(result.first);
    const Recomputed clean =
        recompute(*stream, *a, "A", result.first->layer, result.first->step, *backend, contract_set("golden"));
    const Recomputed faulty =
        recompute(*stream, *b, "B", result.first->layer, result.first->step, *backend, contract_set("golden"));
    const std::int64_t ran = clean.to - clean.from + faulty.to - faulty.from;
    most = std::max(most, static_cast<double>(ran) / static_cast<double>(result.layer_steps_all));
    CHECK(result.verdict == Verdict::diverged);
    CHECK(!clean.first);
    REQUIRE(faulty.first);
    CHECK(faulty.first->step == fault.step);
    CHECK(clean.to - clean.from <= every);
    int parted = 0;
    for (const LayerPart& part : result.layers) parted += part.first.has_value();
    CHECK(parted == 1);
    right += result.first->step == fault.step && result.first->layer == fault.layer;
    std::filesystem::remove(path);
  }
  CHECK(right == draws);
  CHECK(most <= 0.03);
  MESSAGE(right << " of " << draws << " right, at most " << 100 * most << " % of " << steps << " steps of " << layers
                << " layers run again");
}

TEST_CASE("a faulty log that was put together is the log of the run with the fault") {
  const test::TempDir folder;
  const auto stream = make_recipe_stream(parse_recipe(recipe_text(3, 64), "recipe"));
  write_log(*stream, folder / "a.h5", 16);
  for (const Planted& fault : {Planted{0, 2}, Planted{37, 1}, Planted{63, 0}}) {
    const std::string together = folder / ("b" + std::to_string(fault.step)), whole = together + ".whole";
    write_faulty(*stream, folder / "a.h5", together, 16, fault);
    write_log(*stream, whole, 16, fault);
    CHECK(contents(together) == contents(whole));
    CHECK(contents(together) != contents(folder / "a.h5"));
    CHECK(open_log(together)->verify().dataset == "");
  }
}

TEST_CASE("one log against a fresh run: the layer and step where it differs; other layers are not held up by it") {
  const test::TempDir folder;
  const auto stream = make_recipe_stream(parse_recipe(recipe_text(3, 64), "recipe"));
  write_log(*stream, folder / "a.h5", 16, {37, 1});
  const auto log = open_log(folder / "a.h5");
  const auto backend = make_golden({1, 0});
  const BisectResult result = bisect_against_run(*stream, *log, *backend, contract_set("golden"), {});
  REQUIRE(result.first);
  CHECK(result.first->step == 37);
  CHECK(result.first->layer == 1);
  CHECK(!result.layers[0].first);
  CHECK(!result.layers[2].first);
  CHECK(result.layer_steps_run == 64 + 38 + 64);
}

TEST_CASE("logs without checkpoints, and logs of other contracts, are searched by their digests") {
  const test::TempDir folder;
  const auto stream = make_recipe_stream(parse_recipe(recipe_text(2, 40), "recipe"));
  write_log(*stream, folder / "a.h5", 0);
  write_log(*stream, folder / "b.h5", 0, {23, 0});
  write_log(*stream, folder / "c.h5", 0, {}, "golden");
  const auto a = open_log(folder / "a.h5"), b = open_log(folder / "b.h5"), c = open_log(folder / "c.h5");
  const BisectResult parted = bisect(*a, *b, {});
  REQUIRE(parted.first);
  CHECK(parted.first->step == 23);
  CHECK(parted.first->layer == 0);
  CHECK(bisect(*a, *c, {}).verdict == Verdict::match);
  const auto backend = make_golden({1, 0});
  const Recomputed run = recompute(*stream, *b, "B", 0, 23, *backend, contract_set("golden"));
  CHECK(run.from == 0);
  REQUIRE(run.first);
  CHECK(run.first->step == 23);
}

TEST_CASE("a user's test: first bad step, skips, nothing bad, the number of questions") {
  const auto from = [](std::int64_t bad) {
    return [bad](std::int64_t step) { return step < bad ? CheckOutcome::good : CheckOutcome::bad; };
  };
  for (std::int64_t bad = 0; bad < 100; ++bad) {
    const CheckResult found = bisect_check(0, 100, from(bad));
    CHECK(found.first_bad == bad);
    CHECK(found.last_good == bad - 1);
    CHECK(found.tested <= 8);
  }
  CHECK(!bisect_check(0, 100, from(100)).first_bad);
  const auto skipping = [](std::int64_t step) {
    if (step >= 40 && step < 50) return CheckOutcome::skip;
    return step < 45 ? CheckOutcome::good : CheckOutcome::bad;
  };
  const CheckResult found = bisect_check(0, 100, skipping);
  CHECK(found.first_bad == 50);
  CHECK(found.last_good == 39);
  const CheckResult nothing = bisect_check(5, 9, [](std::int64_t) { return CheckOutcome::skip; });
  CHECK(!nothing.first_bad);
  CHECK(nothing.last_good == -1);
}

}  // namespace gdnsim
