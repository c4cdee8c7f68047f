// Finding a contract: presets first, then a search stage by stage, then what the data could not decide, then the proof.
#include "gdnsim/fit.hpp"

#include <algorithm>
#include <chrono>

#include "fit_search.hpp"
#include "fit_stage.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

using namespace fitting;

bool path_occurs(Stream& stream, const Slice& slice, Path path) {
  for (std::int64_t step = slice.first_step; step < slice.last_step; ++step)
    if (stream.plan(step).path == path) return true;
  return false;
}

void take_preset_name(FitPath& found) {
  for (const Contract& preset : contract_presets()) {
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

FitPath fit_path(const Source& source, Backend& backend, const FitOptions& options, const Deadline& deadline) {
  FitPath found;
  found.path = source.path;
  Stages stages(source, backend, deadline, options.progress);
  stages.run(found);
  take_preset_name(found);
  name_nearest(found);
  return found;
}

ContractSet set_of(const std::vector<FitPath>& paths) {
  ContractSet contracts{paths.front().contract, paths.front().contract};
  for (const FitPath& path : paths) (path.path == Path::mixed ? contracts.mixed : contracts.decode) = path.contract;
  return contracts;
}

ReplayResult prove(Stream& stream, Recording& recording, Backend& backend, const Slice& slice,
                   const ContractSet& contracts) {
  ReplayOptions options;
  options.slice = slice;
  options.contracts = contracts;
  options.contracts_from = "fitted";
  return replay(stream, recording, backend, options);
}

/// The whole file may refute a preset that the probe could not: then the next one that was level is tried.
void prove_and_settle(Stream& stream, Recording& recording, Backend& backend, const Slice& slice, FitResult& result) {
  result.contracts = set_of(result.paths);
  result.proof = prove(stream, recording, backend, slice, result.contracts);
  for (FitPath& path : result.paths)
    for (std::size_t i = 1; i < path.presets.size() && result.proof.verdict == Verdict::diverged; ++i) {
      const Contract before = path.contract;
      path.contract = contract_preset(path.presets[i]);
      ReplayResult other = prove(stream, recording, backend, slice, set_of(result.paths));
      const auto &first = result.proof.first(), &theirs = other.first();
      if (theirs && !precedes(*first, *theirs)) {
        path.contract = before;
        continue;
      }
      result.contracts = set_of(result.paths);
      result.proof = std::move(other);
      path.nearest = path.contract.name;
      path.changes.clear();
    }
}

}  // namespace

bool FitPath::exact() const {
  return std::ranges::all_of(stages, [](const FitStage& stage) { return stage.differing == 0; }) &&
         std::ranges::any_of(stages, [](const FitStage& stage) { return stage.compared > 0; });
}

FitResult fit(Stream& stream, Recording& recording, Backend& backend, const FitOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const Slice slice = resolved(options.slice, whole_of(recording), recording.path());
  FitResult result;
  const Deadline deadline(options.seconds);
  for (Path path : {Path::decode, Path::mixed}) {
    if (!path_occurs(stream, slice, path)) continue;
    const Source source{stream, recording, slice.layers.front(), path, slice.first_step, slice.last_step};
    result.paths.push_back(fit_path(source, backend, options, deadline));
  }
  if (result.paths.empty())
    throw error(recording.path(), ": steps: nothing to fit, every selected step is opaque (path 2)");
  result.out_of_time = deadline.over();
  result.search_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.progress) options.progress("proof");
  prove_and_settle(stream, recording, backend, slice, result);
  return result;
}

}  // namespace gdnsim
