// Finding one path's contract: presets first, then a search stage by stage, then what the data could not decide; and
// how the result is named.
#include "gdnsim/fit.hpp"

#include <algorithm>

#include "fit/path.hpp"
#include "fit/stage.hpp"

namespace gdnsim {
namespace {

using namespace fitting;

void take_preset_name(FitPath& found, const Model& model) {
  for (const Contract& preset : contract_presets()) {
    if (!undefined_because(preset, model).empty()) continue;
    Contract same = found.contract;
    same.name = preset.name;
    same.shapes = preset.shapes;
    if (same == preset) found.contract = preset;
  }
}

/// "beta = bf16" for every field that differs from the nearest preset's.
std::vector<std::string> changes_from(const Contract& preset, const Contract& contract) {
  std::vector<std::string> changes;
  const auto before = contract_fields(preset), after = contract_fields(contract);
  for (std::size_t i = 0; i < after.size(); ++i)
    if (after[i] != before[i] && after[i].first != "shapes")
      changes.push_back(after[i].first + " = " + after[i].second);
  return changes;
}

/// The preset that needs the fewest changes.
void name_nearest(FitPath& found) {
  for (const Contract& preset : contract_presets()) {
    auto changes = changes_from(preset, found.contract);
    if (!found.nearest.empty() && changes.size() >= found.changes.size()) continue;
    found.nearest = preset.name;
    found.changes = std::move(changes);
  }
}

}  // namespace

namespace fitting {

FitPath fit_path(const std::vector<Source>& sources, Backend& backend, const Deadline& deadline, const Contract* hint,
                 const std::function<void(const std::string&)>& progress) {
  FitPath found;
  found.path = sources.front().path;
  found.layer = sources.front().layer;
  Stages stages(sources, backend, deadline, hint, progress);
  stages.run(found);
  take_preset_name(found, sources.front().stream.model());
  name_nearest(found);
  return found;
}

}  // namespace fitting

bool FitPath::exact() const {
  return std::ranges::all_of(stages, [](const FitStage& stage) { return stage.differing == 0; }) &&
         std::ranges::any_of(stages, [](const FitStage& stage) { return stage.compared > 0; });
}

bool FitPath::exact_elsewhere() const {
  const auto explained = [this](const FitStage& stage) {
    return stage.differing == 0 || std::ranges::find(except, stage.name, &FitRow::stage) != except.end();
  };
  return std::ranges::all_of(stages, explained) &&
         std::ranges::any_of(stages, [](const FitStage& stage) { return stage.compared > 0; });
}

FitPath fit_layer(Stream& stream, Recording& recording, Backend& backend, int layer, Path path, std::int64_t first_step,
                  std::int64_t last_step, double seconds, const Contract* other) {
  return fit_path({{stream, recording, layer, path, first_step, last_step, other, -1}}, backend, Deadline(seconds),
                  nullptr, {});
}

}  // namespace gdnsim
