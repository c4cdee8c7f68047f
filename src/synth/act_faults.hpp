// A run that does wrong what a recipe's faults say: what is recorded of it is the work of an engine with these faults. Written
// apart from explain, which is judged by such recordings. Private to record.
#pragma once

#include <map>
#include <vector>

#include "core/block_words.hpp"
#include "core/forwarding_backend.hpp"
#include "gdnsim/recipe.hpp"
#include "gdnsim/simulator.hpp"
#include "gdnsim/stream_view.hpp"

namespace gdnsim {

/// Events that go wrong are shown as `free`, and what happens instead is done when they are "applied".
class FaultyStream final : public StreamView {
 public:
  FaultyStream(Stream& stream, const std::vector<Fault>& faults);
  std::span<const Event> events() const override { return events_; }

 private:
  std::vector<Event> events_;
};

class FaultyRun;

/// The backend's step with what goes wrong around it.
class FaultyBackend final : public ForwardingBackend {
 public:
  FaultyBackend(Backend& backend, FaultyRun& run) : ForwardingBackend(backend), run_(run) {}
  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override;

 private:
  FaultyRun& run_;
};

/// The whole of it: `stream` and `backend` for the simulator, and the observer around the recorder.
class FaultyRun final : public Observer {
 public:
  FaultyRun(Stream& whole, Backend& backend, const std::vector<Fault>& faults, Observer& recorder);

  FaultyStream stream;
  FaultyBackend backend;

  void event_coming(const Event& shown, int layer, Pool& pool) override {
    recorder_.event_coming(meant(shown), layer, pool);
  }
  void event_applied(const Event& event, int layer, Pool& pool) override;
  void before(std::int64_t step, int layer, const StepPlan& plan, Pool& pool) override;
  void after(const StepView& view) override;
  void step_done(std::int64_t step) override { recorder_.step_done(step); }
  bool enough() const override { return recorder_.enough(); }

 private:
  friend class FaultyBackend;
  using Active = std::vector<const Fault*>;
  using States = std::map<std::int32_t, BlockWords>;

  Active at(std::int64_t step, int layer) const;
  const Event& meant(const Event& shown) const;
  void one_event(const Fault& fault, const Event& event, int layer, Pool& pool);
  void spoil_reads(const Active& active, const StepArgs& args, Pool& pool);
  void spoil_writes(const Active& active, const StepArgs& args, Pool& pool);
  void run_inactive(const Fault& fault, const StepArgs& args, Pool& pool, StepOutputs& outputs, Backend& backend);
  Contract contract_of(const Active& active, const Contract& contract) const;

  Stream& whole_;
  const std::vector<Fault>& faults_;
  Observer& recorder_;
  States still_;   // blocks that faults and rows name, as they were before the step's rows moved
  States before_;  // the rows' own blocks, moved, before the step
  std::map<std::pair<int, std::int32_t>, std::vector<BlockWords>> history_;  // (layer, block) after each of its writes
};

}  // namespace gdnsim
