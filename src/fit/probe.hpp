// A probe: a few steps of one stage, cut out of a recording into memory, and how far a contract's bits are from the
// recorded ones. It is a small model of its own, in which the stage's recorded inputs pass the earlier stages
// unchanged. Private to fit.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gdnsim/backend.hpp"
#include "gdnsim/recording.hpp"

namespace gdnsim::fitting {

/// A block's state, put in place before a step or recorded after it.
struct BlockState {
  std::int32_t block;
  Bytes recurrent, conv;
};

struct ProbeStep {
  StepPlan plan;
  StepInputs inputs;
  std::vector<BlockState> before, after;
  std::vector<std::pair<Tap, Bytes>> want;  // [B, ...] as a step's outputs
  Bytes norm_input;      // norm stage: core_out as recorded; heads that do not pass unchanged do not count
  bool carried = false;  // a step of the other path: only its effect on the state matters
};

/// A row of one step of a probe.
struct Unit {
  std::size_t step;  // index in the probe
  int row;
  auto operator<=>(const Unit&) const = default;
};

/// In memory, one layer. Backends ask it for its model and parameters.
class Probe final : public Stream {
 public:
  Model small;
  LayerParams parameters;
  std::vector<ProbeStep> at;
  TapSet taps;
  bool reset_window = false;      // conv is only a pipe: its window is zeroed before every step
  std::string words;              // what it looks at
  std::optional<Contract> other;  // of the carried steps
  std::set<Unit> ignored;         // rows that run but are not compared
  bool empty() const { return at.empty(); }

  const Model& model() const override { return small; }
  const LayerParams& params(int) const override { return parameters; }
  std::int64_t steps() const override { return static_cast<std::int64_t>(at.size()); }
  int rows() const override { return at.empty() ? 0 : at.front().plan.rows(); }
  StepPlan plan(std::int64_t step) const override { return at[static_cast<std::size_t>(step)].plan; }
  std::span<const Event> events() const override { return {}; }
  bool has_z(int) const override { return !at.empty() && !at.front().inputs.z.empty(); }
  void inputs(std::int64_t step, int, StepInputs& out) override { out = at[static_cast<std::size_t>(step)].inputs; }
  void load_row(std::int32_t, Bytes&, Bytes&) override {}
  std::string source() override { return "probe"; }
};

/// How far from the recorded bits: 0 is equal. Each differing word costs 1 and the width of its distance in ulps, so
/// that mending one of two wrong choices shows even where every word still differs.
struct Score {
  std::uint64_t cost = 0, compared = 0, differing = 0;
};
inline constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

/// Runs the probe under a contract; stops at the row at which the cost reaches `limit`. The rows that differ go to
/// `wrong`.
Score evaluate(Probe& probe, Backend& backend, const Contract& contract, std::uint64_t limit = kNoLimit,
               std::set<Unit>* wrong = nullptr);

/// Where probes are cut from: one layer, one path.
struct Source {
  Stream& stream;
  Recording& recording;
  int layer;
  Path path;
  std::int64_t first_step, last_step;
  const Contract* other = nullptr;  // of the other path's steps, when it is known
  std::int32_t only_block = -1;     // look at this block's rows alone
};

/// One step of the window that a probe is cut from. Rows whose state before the step is not known are inactive in
/// `plan`.
struct ObservedStep {
  std::int64_t step;
  StepPlan plan;
  std::vector<BlockState> before, after;  // whole blocks
  bool carried = false;                   // a step of the other path in between
};
using Window = std::vector<ObservedStep>;
/// The first steps of the path that start from known states: loaded, zeroed, recorded, or carried on from those.
/// `backend` runs the other path's steps that come before them, where `source.other` is known.
Window known_window(const Source& source, Backend& backend, std::int64_t steps);
/// Its first `steps` steps of the path itself, and what lies between.
Window first_steps(const Window& window, std::int64_t steps);
/// The same with the rows of the first blocks alone, as many as `rows` rows in all allow (of one block at least).
Window first_blocks(const Window& window, std::int64_t rows);

/// Each gives an empty probe when what the stage needs or produces is not recorded. The recurrent probe looks at
/// `state_rows` rows of the state (of K elements each) at most over all steps; without a recorded conv_out it runs the
/// conv as well.
Probe conv_probe(const Source& source, const Window& window);
Probe recurrent_probe(const Source& source, const Window& window, std::int64_t state_rows);
Probe norm_probe(const Source& source, const Window& window);

}  // namespace gdnsim::fitting
