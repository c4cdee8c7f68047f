// A soak of the state pool: thousands of steps of sequences that come, fork, are evicted, come back and have candidates taken
// back, against a dictionary that knows no blocks: what each sequence's state is. Each row is computed again alone.
#include <gdnsim/backend.hpp>
#include <gdnsim/digest.hpp>
#include <gdnsim/recipe.hpp>
#include <gdnsim/simulator.hpp>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#ifdef _OPENMP
#include <omp.h>
#endif

#include <doctest/doctest.h>

#include "synth/plan.hpp"

using namespace gdnsim;

namespace {

struct State {
  Bytes recurrent, conv;
};

/// One layer of the dictionary.
struct Layer {
  std::map<std::int64_t, State> now;  // by sequence: its state where no launch is open
  struct Candidate {
    std::int32_t block;
    State state;
  };
  std::map<std::int64_t, std::vector<Candidate>> launch;               // by sequence: its last launch's states
  std::map<std::int64_t, std::int64_t> position;                       // tokens in `now`, or before `launch`
  std::map<std::pair<std::int64_t, std::int64_t>, std::uint64_t> met;  // (sequence, position): digest of that state
  std::map<std::int32_t, std::uint64_t>
      live;  // by block: digest of what it holds, from the first write until it is freed
};

class Dictionary final : public Observer {
 public:
  Dictionary(Stream& stream, const ContractSet& contracts)
      : stream_(stream),
        schedule_(make_schedule(parse_recipe(stream.source(), "soak"))),
        contracts_(contracts),
        alone_(make_golden({1, 0, {}})),
        layers_(stream.model().layers()) {
    Model one = stream.model();
    one.num_blocks = 2;
    std::vector<int> all;
    for (int layer = 0; layer < one.layers(); ++layer) all.push_back(layer);
    pool_ = alone_->make_pool(one, all);
    alone_->prepare(stream, all);
  }

  void event_applied(const Event& event, int layer, Pool&) override {
    Layer& l = layers_[static_cast<std::size_t>(layer)];
    ++events[event.why];
    if (event.kind == EventKind::allocate) owner_[event.block] = event.sequence;
    if (event.kind == EventKind::copy) copy(l, event, owner_.at(event.source));
    if (event.kind == EventKind::zero || event.kind == EventKind::load) begin(l, event);
    if (event.kind == EventKind::allocate || event.kind == EventKind::free) l.live.erase(event.block);
  }

  void after(const StepView& view) override {
    Layer& l = layers_[static_cast<std::size_t>(view.layer)];
    for (std::size_t row = 0; row < view.plan.block.size(); ++row) {
      if (view.plan.block[row] < 0) continue;
      const std::int64_t sequence = view.plan.sequence[row];
      auto& launch = l.launch[sequence];
      if (view.plan.draft == 0) {
        if (const int accepted = view.plan.accepted.empty() ? 1 : view.plan.accepted[row];
            accepted > 0 && !launch.empty())
          keep(l, sequence, static_cast<std::size_t>(accepted) - 1);
        launch.clear();
      }
      REQUIRE(launch.size() == static_cast<std::size_t>(view.plan.draft));
      // The token that is fed is the one that follows the state; a candidate that will be taken back is another one.
      const Token& token = schedule_.token[static_cast<std::size_t>(view.step) * view.plan.block.size() + row];
      if (token.position >> 24 == 0) REQUIRE(token.position == l.position[sequence] + view.plan.draft);
      const State& from = launch.empty() ? l.now.at(sequence) : launch.back().state;
      launch.push_back({view.plan.block[row], step_alone(view, row, from)});
      const State& state = launch.back().state;
      const std::uint64_t expected = digest_of(state);
      REQUIRE(view.pool.digest(view.layer, view.plan.block[row]).block == expected);
      l.live[view.plan.block[row]] = expected;
      ++rows;
    }
    require_all(view, l);
    sequences.insert(view.plan.sequence.begin(), view.plan.sequence.end());
  }

  std::int64_t rows = 0, taken_back = 0, met_again = 0, idle = 0;
  std::map<EventWhy, std::int64_t> events;
  std::set<std::int64_t> sequences;

 private:
  std::uint64_t digest_of(const State& state) const {
    return digest_block(stream_.model(), state.recurrent, state.conv).block;
  }

  /// Blocks that no row of the step names are compared too: sequences that wait, and candidates that were not accepted.
  void require_all(const StepView& view, const Layer& l) {
    for (const auto& [block, expected] : l.live) {
      REQUIRE(view.pool.digest(view.layer, block).block == expected);
      idle += std::ranges::find(view.plan.block, block) == view.plan.block.end();
    }
  }

  void begin(Layer& l, const Event& event) {
    State state{Bytes(stream_.model().state_bytes()), Bytes(stream_.model().conv_bytes())};
    if (event.kind == EventKind::load) stream_.load_row(event.source, state.recurrent, state.conv);
    l.live[event.block] = digest_of(state);
    l.now[event.sequence] = std::move(state);
    l.launch[event.sequence].clear();
    l.position[event.sequence] = 0;
  }

  /// Who copies a sequence's block knows which of its candidates was accepted: the one that lies there.
  void copy(Layer& l, const Event& event, std::int64_t from) {
    const auto& launch = l.launch[from];
    const auto found = std::ranges::find(launch, event.source, &Layer::Candidate::block);
    REQUIRE((launch.empty() || found != launch.end()));
    const auto candidate = static_cast<std::size_t>(found - launch.begin());
    if (event.why == EventWhy::fork) {
      REQUIRE(from != event.sequence);
      l.now[event.sequence] = launch.empty() ? l.now.at(from) : found->state;
      l.position[event.sequence] =
          l.position.at(from) + (launch.empty() ? 0 : static_cast<std::int64_t>(candidate) + 1);
    } else {
      REQUIRE(from == event.sequence);
      if (!launch.empty()) keep(l, from, candidate);
      l.launch[from].clear();
    }
    l.live[event.block] = digest_of(l.now.at(event.sequence));
  }

  /// The launch's first candidates up to this one stay; the same tokens always lead to the same state.
  void keep(Layer& l, std::int64_t sequence, std::size_t candidate) {
    auto& launch = l.launch[sequence];
    taken_back += static_cast<std::int64_t>(launch.size() - 1 - candidate);
    l.now[sequence] = launch.at(candidate).state;
    const std::int64_t position = l.position[sequence] += static_cast<std::int64_t>(candidate) + 1;
    const State& state = l.now[sequence];
    const std::uint64_t digest = digest_of(state);
    const auto [seen, fresh] = l.met.emplace(std::pair(sequence, position), digest);
    REQUIRE(seen->second == digest);
    met_again += !fresh;
  }

  State step_alone(const StepView& view, std::size_t row, const State& from) {
    pool_->write(view.layer, 1, from.recurrent, from.conv);
    StepPlan plan;
    plan.step = view.step, plan.path = view.plan.path;
    plan.index = plan.block = {1};
    plan.sequence = {view.plan.sequence[row]};
    plan.present = 1;
    const auto line = [&](const Bytes& all) {
      const std::size_t size = all.size() / view.plan.block.size();
      return Bytes(all.begin() + static_cast<std::ptrdiff_t>(row * size),
                   all.begin() + static_cast<std::ptrdiff_t>((row + 1) * size));
    };
    const StepInputs inputs{line(view.inputs.mixed_qkv), line(view.inputs.a), line(view.inputs.b), line(view.inputs.z)};
    alone_->step({view.layer, plan, inputs, contracts_.of(plan.path)}, *pool_, outputs_);
    State state{Bytes(stream_.model().state_bytes()), Bytes(stream_.model().conv_bytes())};
    pool_->read(view.layer, 1, state.recurrent, state.conv);
    return state;
  }

  Stream& stream_;
  const Schedule schedule_;
  const ContractSet& contracts_;
  const std::unique_ptr<Backend> alone_;
  std::unique_ptr<Pool> pool_;
  StepOutputs outputs_;
  std::map<std::int32_t, std::int64_t> owner_;
  std::vector<Layer> layers_;
};

/// The recipe that `gdnsim run` takes too: what one backend makes of it another must make to the byte.
Recipe soak(Allocation policy) {
  const char* traces = std::getenv("GDNSIM_TRACES");
  REQUIRE_MESSAGE(traces != nullptr, "GDNSIM_TRACES names the folder traces/");
  Recipe recipe = load_recipe(std::string(traces) + "/recipes/soak.json");
  recipe.schedule.allocator = policy;
  return recipe;
}

std::unique_ptr<Dictionary> play(Stream& stream) {
#ifdef _OPENMP
  omp_set_num_threads(1);  // steps this small are not worth a second thread's waiting
#endif
  static const ContractSet contracts = contract_set("golden");
  const auto backend = make_golden({1, 0, {}});
  std::vector<int> layers;
  for (int layer = 0; layer < stream.model().layers(); ++layer) layers.push_back(layer);
  const auto pool = backend->make_pool(stream.model(), layers);
  auto dictionary = std::make_unique<Dictionary>(stream, contracts);
  simulate({stream, *backend, contracts, layers, stream.steps(), {}}, *pool, *dictionary);
  return dictionary;
}

}  // namespace

TEST_CASE("10,000 steps of 64 sequences in 96 blocks") {
  const auto stream = make_recipe_stream(soak(Allocation::lifo));
  const auto seen = play(*stream);
  CHECK(seen->rows > 250000);
  CHECK(seen->sequences.size() > 1500);
  CHECK(seen->taken_back > 20000);
  CHECK(seen->idle > 1000);
  CHECK(seen->events[EventWhy::fork] > 1000);
  CHECK(seen->events[EventWhy::evict] > 5000);
  CHECK(seen->events[EventWhy::resume] > 5000);
}

TEST_CASE("the same tokens again after a preemption lead to the same states") {
  Recipe r = soak(Allocation::fifo);
  r.steps = 1500;
  r.rows = 8;
  r.model.num_blocks = 25;
  r.model.layer_ids = {0, 3};
  r.states.start = StateRecipe::Start::zero;
  r.schedule.preempt_by = ScheduleRecipe::Preempt::recompute;
  r.schedule.preempt = 0.01;
  r.schedule.speculative = {2, Range{1, 3}, 1, 0.2};
  const auto seen = play(*make_recipe_stream(r));
  CHECK(seen->rows > 10000);
  CHECK(seen->met_again > 1000);
  CHECK(seen->taken_back > 2000);
}
