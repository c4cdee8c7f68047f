// Which choices the data could not decide: every other value of every field, the rest held fixed, that changes nothing.
#include <algorithm>
#include <array>

#include "fit/stage.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim::fitting {
namespace {

constexpr const char* kGroups[] = {"0", "1", "2", "4", "8", "16", "32", "64", "128"};

std::vector<std::string> values_of(const std::string& field) {
  if (field.ends_with(".group")) return {std::begin(kGroups), std::end(kGroups)};
  return contract_field_values(field);
}

bool shared(const std::string& field) { return field == "exp" || field == "div" || field == "negate"; }

}  // namespace

bool reads(const Stage& stage, const std::string& field) {
  if (shared(field)) return true;
  if (field == "multiprocessors") return !stage.dots.empty();
  return std::ranges::find(stage.fields, field) != stage.fields.end() ||
         std::ranges::any_of(stage.dots, [&](const auto& dot) { return field.starts_with(dot.first + "."); });
}

bool possible(const Contract& contract) {
  return std::ranges::all_of(std::array{contract.qk_dot, contract.state_dot, contract.norm_dot}, [](const Dot& dot) {
    return dot.exchange == Exchange::plain || (dot.lane == Lane::one && dot.group >= 2 && dot.group <= 128);
  });
}

bool reads_any(const Stage& stage, const Contract& a, const Contract& b) {
  const auto x = contract_fields(a), y = contract_fields(b);
  for (std::size_t i = 0; i < x.size(); ++i)
    if (x[i] != y[i] && reads(stage, x[i].first)) return true;
  return false;
}

bool Stages::unchanged(const Contract& contract, const std::vector<const Stage*>& readers) {
  return std::ranges::all_of(readers, [&](const Stage* stage) {
    return is_exact(stages_[static_cast<std::size_t>(stage - stages_.data())], contract);
  });
}

/// All that lanes `by-rows` show of the number of multiprocessors is on which side of half the launch's rows it lies.
void Stages::find_multiprocessors(FitPath& found) const {
  if (found.contract.norm_dot.lane != Lane::by_rows) return;
  const std::int64_t rows = launch_rows(), most = (rows + 1) / 2;
  const bool one_row = rows_per_block(rows, found.contract.multiprocessors) == 1;
  const std::string range = one_row ? std::to_string(most) + " to 65536" : "1 to " + std::to_string(most - 1);
  found.undecided.push_back({"multiprocessors",
                             std::to_string(found.contract.multiprocessors),
                             {range},
                             "the norm's launches have " + std::to_string(rows) + " rows"});
}

void Stages::find_undecided(FitPath& found) {
  for (const auto& [field, chosen] : contract_fields(found.contract)) {
    if (field == "shapes" || field == "multiprocessors") continue;
    std::vector<const Stage*> readers;
    bool matched = true;
    for (std::size_t i = 0; i < stages_.size(); ++i)
      if (reads(stages_[i], field) && found.stages[i].compared > 0) {
        readers.push_back(&stages_[i]);
        matched &= is_exact(stages_[i], found.contract);
      }
    if (!matched) continue;
    Undecided undecided{field, chosen, {}, ""};
    if (readers.empty()) undecided.because = "nothing recorded shows it";
    if (field == "conv_bias" && sources_.front().stream.params(sources_.front().layer).conv_bias.empty())
      undecided.because = "no bias";
    for (const std::string& value : values_of(field)) {
      Contract other = found.contract;
      set_contract_field(other, field, value);
      if (value != chosen && possible(other) && unchanged(other, readers)) undecided.others.push_back(value);
    }
    if (!undecided.others.empty()) found.undecided.push_back(std::move(undecided));
  }
}

}  // namespace gdnsim::fitting
