// Audit: the whole pool rehashed now and then, so that a write to a block that no row and no event named is seen, and the likely
// writer named.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gdnsim/simulator.hpp"

namespace gdnsim {

/// Who could have written a block that nothing named.
enum class Writer : std::uint8_t { nobody, padded_row, stale_tail, from_the_end, cut_offset, stale_index };
std::string_view name_of(Writer writer);

/// A block that changed although nothing named it.
struct StrayWrite {
  int layer = 0;
  std::int32_t block = 0;
  std::int64_t first_step = 0, last_step = 0;  // it changed in one of these, both included
  Writer writer = Writer::nobody;              // the likely one
  int row = -1;                                // of the batch, and
  std::int64_t step = -1;                      // of which step
  std::string likely{};  // the same in words: "row 2, which is inactive, has its index ..."; or empty
  /// "block 3 of layer 0 was written in step 2, though no row and no event names it: ..."
  std::string text() const;
};

/// Passes everything on to another observer, and rehashes the pool after every `every` steps and after the last.
class AuditObserver final : public Observer {
 public:
  AuditObserver(const Simulation& simulation, std::int64_t every, Observer& next);

  void event_coming(const Event& event, int layer, Pool& pool) override;
  void event_applied(const Event& event, int layer, Pool& pool) override;
  void before(std::int64_t step, int layer, const StepPlan& plan, Pool& pool) override;
  void after(const StepView& view) override;
  void step_done(std::int64_t step) override;
  /// A stray write ends the run: what follows is built on it.
  bool enough() const override { return !found_.empty() || next_.enough(); }

  const std::vector<StrayWrite>& found() const { return found_; }

 private:
  struct Known {
    std::uint64_t digest = 0;
    bool named = false;  // by a row, since the last look
  };
  std::vector<Known>& known(int layer, Pool& pool);
  bool due(std::int64_t step) const;
  void audit(const StepView& view);
  void judge(int layer, std::int32_t block, std::int64_t last_step, Pool& pool);
  void name_writer(StrayWrite& stray) const;
  bool name_padded_row(const StepPlan& plan, StrayWrite& stray) const;
  bool name_wrapped_row(const StepPlan& plan, StrayWrite& stray) const;
  bool name_late_row(const StepPlan& plan, StrayWrite& stray) const;

  const Simulation& simulation_;
  const std::int64_t every_;
  Observer& next_;
  std::vector<std::vector<Known>> known_;  // [layers][num_blocks] as they were looked at last; filled at the first look
  std::int64_t audited_;                   // the first step since the last audit
  std::vector<StrayWrite> found_;
};

}  // namespace gdnsim
