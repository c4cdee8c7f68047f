// The schedule of a recipe that writes its steps and events out: tokens are addressed by what each block then stands for.
#include <map>
#include <string>
#include <unordered_map>

#include "gdnsim/error.hpp"
#include "synth/plan.hpp"

namespace gdnsim {
namespace {

/// The sequence word of a block's own contents (`fill`): above any sequence that a script may name.
constexpr std::uint32_t kFill = 0x40000000u;

class ScriptPlayer {
 public:
  explicit ScriptPlayer(const Recipe& recipe)
      : recipe_(recipe), script_(*recipe.script), blocks_(static_cast<std::size_t>(recipe.model.num_blocks)) {}

  Schedule play() {
    if (script_.fill) fill();
    std::size_t next = 0;
    for (std::int64_t step = 0; step < recipe_.steps; ++step) {
      for (; next < script_.events.size() && script_.events[next].event.step == step; ++next)
        apply(script_.events[next]);
      emit(step);
    }
    return std::move(out_);
  }

 private:
  const ScriptStep& at(std::int64_t step) const { return script_.steps[static_cast<std::size_t>(step)]; }

  void fill() {
    for (std::int64_t block = 0; block < recipe_.model.num_blocks; ++block) {
      const Event event{0, -1, static_cast<std::int32_t>(block), EventKind::load};
      out_.load(recipe_, event, {kFill | static_cast<std::uint32_t>(block), 0});
    }
  }

  void apply(const ScriptEvent& line) {
    const Event& event = line.event;
    const auto block = static_cast<std::size_t>(event.block);
    if (event.kind == EventKind::load) {
      const auto sequence =
          event.sequence >= 0 ? static_cast<std::uint32_t>(event.sequence) : kFill | event_block(event);
      out_.load(recipe_, event, {sequence, static_cast<std::uint32_t>(line.resumed)});
    } else {
      out_.events.push_back(event);
    }
    if (block >= blocks_) return;  // refused later, by name
    if (event.kind == EventKind::load || event.kind == EventKind::zero) tokens_[block] = 0;
    if (event.kind == EventKind::copy && static_cast<std::size_t>(event.source) < blocks_)
      tokens_[block] = tokens_[static_cast<std::size_t>(event.source)];
  }

  static std::uint32_t event_block(const Event& event) { return static_cast<std::uint32_t>(event.block); }

  bool active(const ScriptStep& step, std::size_t row) const {
    return (step.present < 0 || static_cast<int>(row) < step.present) && !recipe_.model.inactive(step.index[row]);
  }
  std::int64_t sequence_of(const ScriptStep& step, std::size_t row) const {
    if (!step.sequence.empty()) return step.sequence[row];
    return active(step, row) ? step.index[row] : -1;
  }

  /// Is this candidate one that the sequence's next launch says was not accepted?
  bool rejected(std::int64_t step, std::int64_t sequence) const {
    for (std::int64_t later = step + 1; later < recipe_.steps; ++later) {
      const ScriptStep& next = at(later);
      if (next.draft > 0 || next.accepted.empty()) continue;
      for (std::size_t row = 0; row < next.index.size(); ++row)
        if (active(next, row) && sequence_of(next, row) == sequence)
          return next.accepted[row] > 0 && at(step).draft >= next.accepted[row];
    }
    return false;
  }

  Token token_of(std::int64_t step, std::size_t row, std::uint32_t tokens) const {
    const std::int64_t sequence = sequence_of(at(step), row);
    const bool other = at(step).draft > 0 && rejected(step, sequence);
    return {static_cast<std::uint32_t>(sequence), other ? rejected_position(at(step).draft, step) : tokens};
  }

  void emit(std::int64_t t) {
    const ScriptStep& step = at(t);
    std::map<std::size_t, std::uint32_t> after;
    for (std::size_t row = 0; row < step.index.size(); ++row) {
      const std::int32_t index = step.index[row];
      Token token;
      const auto block = static_cast<std::size_t>(index);
      if (active(step, row) && index >= 0 && block < blocks_) {
        const std::int32_t moved = step.source.empty() ? -1 : step.source[row];
        const bool moves = moved >= 0 && static_cast<std::size_t>(moved) < blocks_;
        const std::uint32_t tokens = tokens_[moves ? static_cast<std::size_t>(moved) : block];
        token = token_of(t, row, tokens);
        after[block] = tokens + 1;
      }
      out_.index.push_back(index);
      out_.sequence.push_back(sequence_of(step, row));
      out_.token.push_back(token);
    }
    for (const auto& [block, tokens] : after) tokens_[block] = tokens;
    out_.present.push_back(step.present < 0 ? recipe_.rows : step.present);
    out_.path.push_back(step.path);
    out_.draft.push_back(static_cast<std::int8_t>(step.draft));
    out_.last_draft.push_back(step.last_draft);
    emit_moves(step);
  }

  /// [B] of each step, or nothing at all when no step has any.
  void emit_moves(const ScriptStep& step) {
    const auto rows = static_cast<std::size_t>(recipe_.rows);
    const auto put = [&](const std::vector<std::int32_t>& from, std::int32_t none, std::vector<std::int32_t>& to) {
      for (std::size_t row = 0; row < rows; ++row) to.push_back(from.empty() ? none : from[row]);
    };
    put(step.source, -1, out_.source);
    put(step.accepted, 0, out_.accepted);
  }

  const Recipe& recipe_;
  const Script& script_;
  const std::size_t blocks_;                               // num_blocks
  std::unordered_map<std::size_t, std::uint32_t> tokens_;  // how many tokens a block's state has seen; absent: none
  Schedule out_;
};

}  // namespace

Schedule make_script_schedule(const Recipe& recipe) {
  Schedule schedule = ScriptPlayer(recipe).play();
  const auto nobody = [](const std::vector<std::int32_t>& values, std::int32_t none) {
    for (std::int32_t value : values)
      if (value != none) return false;
    return true;
  };
  if (nobody(schedule.source, -1)) schedule.source.clear();
  if (nobody(schedule.accepted, 0)) schedule.accepted.clear();
  return schedule;
}

}  // namespace gdnsim
