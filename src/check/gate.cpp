#include "check/gate.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace gdnsim {
namespace {

constexpr std::array<std::string_view, 4> kStageNames{"conv", "recurrent", "gated-norm", "rmsnorm"};
constexpr std::array<std::string_view, 5> kBatteryNames{"L0", "L1", "L2", "accuracy", "time"};
constexpr std::array<std::string_view, 5> kVerdictNames{"held", "violated", "empty", "measured", "skipped"};

}  // namespace

std::string_view name_of(CheckStage stage) { return kStageNames[static_cast<std::size_t>(stage)]; }
std::string_view name_of(Battery battery) { return kBatteryNames[static_cast<std::size_t>(battery)]; }
std::string_view name_of(Gate::Verdict verdict) { return kVerdictNames[static_cast<std::size_t>(verdict)]; }

CheckStage stage_of(Tap tap) {
  if (tap <= Tap::conv_state) return CheckStage::conv;
  return tap >= Tap::rstd ? CheckStage::gated_norm : CheckStage::recurrent;
}

Tally::Tally(CheckStage stage, Battery battery, std::string name, std::string shape) {
  gate_.stage = stage, gate_.battery = battery;
  gate_.name = std::move(name), gate_.shape = std::move(shape);
}

void Tally::compare(Tap tap, const TapShape& shape, std::span<const std::byte> want, std::span<const std::byte> got,
                    const std::string& between, std::int64_t row) {
  TapCount count;
  const WordRun run = compare_words(tap, shape, got, want, count);
  gate_.compared += count.compared, gate_.differing += count.differing;
  gate_.max_ulp = std::max(gate_.max_ulp, count.max_ulp), gate_.max_abs = std::max(gate_.max_abs, count.max_abs);
  if (run.first < 0 || gate_.first) return;
  const auto i = static_cast<std::size_t>(run.first);
  gate_.first = Violation{between,
                          tap,
                          row,
                          shape.heads > 1 ? run.first / shape.per_head : -1,
                          run.first % shape.per_head,
                          shape.type,
                          word_at(shape.type, want, i),
                          word_at(shape.type, got, i)};
}

Gate Tally::finish() const {
  Gate gate = gate_;
  gate.verdict = gate.compared == 0 ? Gate::Verdict::empty : gate.first ? Gate::Verdict::violated : Gate::Verdict::held;
  return gate;
}

Gate skipped_gate(CheckStage stage, Battery battery, std::string name, std::string shape, std::string why) {
  Gate gate;
  gate.stage = stage, gate.battery = battery;
  gate.name = std::move(name), gate.shape = std::move(shape), gate.note = std::move(why);
  gate.verdict = Gate::Verdict::skipped;
  return gate;
}

Neighbours narrow_down(Neighbours apart, const std::function<bool(std::int64_t)>& agrees) {
  while (std::abs(apart.good - apart.bad) > 1) {
    const std::int64_t middle = std::min(apart.good, apart.bad) + std::abs(apart.good - apart.bad) / 2;
    (agrees(middle) ? apart.good : apart.bad) = middle;
  }
  return apart;
}

std::string between_sizes(const Neighbours& sizes) {
  const auto [low, high] = std::minmax(sizes.good, sizes.bad);
  return std::to_string(low) + " and " + std::to_string(high) + " rows";
}

}  // namespace gdnsim
