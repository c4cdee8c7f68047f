// Hypotheses about one snapshot: what it holds is another state than the block's, while everything after it goes on from the
// block's own. Facts about the recorded words, found by equality.
#include <algorithm>
#include <cstring>

#include "explain/rows.hpp"
#include "gdnsim/arith.hpp"

namespace gdnsim::explaining {
namespace {

/// The snapshot's wrong parts.
struct WrongSnapshot {
  std::vector<Unit> units;
  const WrongUnit* state = nullptr;
  const WrongUnit* conv = nullptr;
  Part part() const { return state == nullptr ? Part::conv : conv == nullptr ? Part::recurrent : Part::both; }
  bool equals(const Words& words) const {
    return (state == nullptr || state->want == words.recurrent) && (conv == nullptr || conv->want == words.conv);
  }
};

WrongSnapshot wrong_snapshot(const Scene& scene) {
  WrongSnapshot snapshot;
  for (const WrongUnit& w : scene.found.wrong) {
    if (w.unit.step != scene.at.step || w.unit.block != scene.at.block || w.want.empty()) continue;
    if (w.unit.tap == Tap::state) snapshot.state = &w;
    if (w.unit.tap == Tap::conv_state) snapshot.conv = &w;
    if (w.unit.tap == Tap::state || w.unit.tap == Tap::conv_state) snapshot.units.push_back(w.unit);
  }
  return snapshot;
}

void add(const Scene& scene, const WrongSnapshot& snapshot, const char* id, std::int32_t block,
         const std::string& holds, Hypotheses& out) {
  Twist twist;
  twist.forgiven = snapshot.units;
  Hypothesis hypothesis;
  hypothesis.mechanisms = {{id, scene.scope(scene.at.step, scene.at.row, block),
                            "the snapshot of block " + std::to_string(scene.at.block) + " after this step holds " +
                                holds + "; the block itself does not",
                            "", Proof::fact}};
  hypothesis.twists = {twist};
  out.push_back(std::move(hypothesis));
}

/// n tokens from one step of the block to another.
std::int64_t tokens_between(const Scene& scene, std::int64_t from, std::int64_t to) {
  const auto count = [&](std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(rows_of_block(scene, scene.at.block, a + 1, b).size());
  };
  return from <= to ? count(from, to) : -count(to, from);
}

bool transposed(const Model& model, const Bytes& got, const Bytes& want) {
  if (model.K != model.V) return false;
  const std::size_t width = size_of(model.state_dtype), n = static_cast<std::size_t>(model.K), head = n * n * width;
  for (std::size_t at = 0; at < got.size(); at += head)
    for (std::size_t v = 0; v < n; ++v)
      for (std::size_t k = 0; k < n; ++k)
        if (std::memcmp(got.data() + at + (v * n + k) * width, want.data() + at + (k * n + v) * width, width) != 0)
          return false;
  return true;
}

bool rounded(const Bytes& got, const Bytes& want) {
  for (std::size_t at = 0; at < got.size(); at += 4) {
    std::uint32_t a, b;
    std::memcpy(&a, got.data() + at, 4), std::memcpy(&b, want.data() + at, 4);
    if (static_cast<std::uint32_t>(bf16_from_f32(float_of(a))) << 16 != b) return false;
  }
  return true;
}

}  // namespace

void propose_snapshots(const Scene& scene, Hypotheses& out) {
  const bool snapshot_tap = scene.at.tap == Tap::state || scene.at.tap == Tap::conv_state;
  const WrongSnapshot snapshot = wrong_snapshot(scene);
  if (!snapshot_tap || snapshot.units.empty()) return;
  for (const auto& [at, words] : scene.history.after) {
    const auto& [step, block] = at;
    if (!snapshot.equals(words) || (step == scene.at.step && block == scene.at.block)) continue;
    const std::string what = words_of(snapshot.part());
    if (block == scene.at.block) {
      const std::int64_t n = tokens_between(scene, scene.at.step, step);
      add(scene, snapshot, "wrong-position", block,
          "its " + what + " of position p" + (n > 0 ? "+" : "") + std::to_string(n) + ", the one after step " +
              std::to_string(step),
          out);
    } else {
      add(scene, snapshot, "wrong-block", block,
          "the " + what + " of block " + std::to_string(block) + " after step " + std::to_string(step), out);
    }
  }
  if (snapshot.conv != nullptr || snapshot.state == nullptr) return;
  if (transposed(scene.model(), snapshot.state->got, snapshot.state->want))
    add(scene, snapshot, "kv-transposed", scene.at.block, "its state with K and V swapped", out);
  if (scene.model().state_dtype == DType::f32 && rounded(snapshot.state->got, snapshot.state->want))
    add(scene, snapshot, "state-store-bf16", scene.at.block, "its state rounded to bf16", out);
}

}  // namespace gdnsim::explaining
