// Fitting a file: each path in the order in which they occur, the proof on the whole slice, and what a refuted proof
// leads to: the refuting rows join the probes, or the layers turn out to differ.
#include <algorithm>
#include <chrono>

#include "fit/path.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

using namespace fitting;

constexpr int kRefinements = 8;  // how often rows that refute a contract join its probes
constexpr std::size_t kOtherLayers = 4;
constexpr std::int64_t kOrderSteps = 32;

class Fitter {
 public:
  Fitter(Stream& stream, Recording& recording, Backend& backend, const FitOptions& options, const Slice& slice)
      : stream_(stream),
        recording_(recording),
        backend_(backend),
        options_(options),
        slice_(slice),
        deadline_(options.seconds) {}

  FitResult run() {
    const auto start = std::chrono::steady_clock::now();
    for (Path path : paths_in_order()) fit_one(path);
    if (result_.paths.empty())
      throw error(recording_.path(), ": steps: nothing to fit, every selected step is opaque (path 2)");
    prove();
    for (int i = 0; i < kRefinements && result_.proof.verdict == Verdict::diverged && !deadline_.over(); ++i) {
      if (!refine()) break;
      prove();
    }
    if (result_.proof.verdict == Verdict::diverged && slice_.layers.size() > 1) tell_layers_apart();
    result_.out_of_time = deadline_.over();
    result_.search_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() - proof_seconds_;
    return std::move(result_);
  }

 private:
  std::vector<Path> paths_in_order() const {
    std::vector<Path> paths;
    for (std::int64_t step = slice_.first_step; step < slice_.last_step && paths.size() < 2; ++step) {
      const Path path = stream_.plan(step).path;
      if (path != Path::opaque && std::ranges::find(paths, path) == paths.end()) paths.push_back(path);
    }
    std::ranges::stable_sort(paths, std::greater{}, [this](Path path) { return states_to_see(path); });
    return paths;
  }

  /// Recorded states that the path's own steps lead to: the path that has more of them is fitted first.
  std::size_t states_to_see(Path path) const {
    const Source source{stream_, recording_, slice_.layers.front(), path, slice_.first_step, slice_.last_step,
                        nullptr, -1};
    std::size_t states = 0;
    for (const ObservedStep& here : known_window(source, backend_, kOrderSteps)) states += here.after.size();
    return states;
  }

  FitPath* found_for(Path path) {
    const auto found = std::ranges::find(result_.paths, path, &FitPath::path);
    return found == result_.paths.end() ? nullptr : &*found;
  }
  std::vector<Source>& sources_of(Path path) { return sources_[path == Path::mixed ? 1 : 0]; }

  /// The other path's contract, when it is sure enough to carry states with it.
  const Contract* other_of(Path path) {
    const FitPath* other = found_for(path == Path::mixed ? Path::decode : Path::mixed);
    return other != nullptr && other->exact_elsewhere() ? &other->contract : nullptr;
  }

  void fit_one(Path path) {
    sources_of(path).push_back(
        {stream_, recording_, slice_.layers.front(), path, slice_.first_step, slice_.last_step, other_of(path), -1});
    FitPath found = fit_path(sources_of(path), backend_, deadline_, nullptr, options_.progress);
    result_.paths.push_back(std::move(found));
  }

  ReplayResult replayed(const Slice& slice, const ContractSet& contracts) {
    ReplayOptions options;
    options.slice = slice;
    options.contracts = contracts;
    options.contracts_from = "fitted";
    return replay(stream_, recording_, backend_, options);
  }

  void prove() {
    if (options_.progress) options_.progress("proof");
    const auto start = std::chrono::steady_clock::now();
    const Contract& any = result_.paths.front().contract;
    result_.contracts = {any, any};
    for (const FitPath& path : result_.paths) set_path(result_.contracts, path);
    result_.proof = replayed(slice_, result_.contracts);
    proof_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  static void set_path(ContractSet& contracts, const FitPath& found) {
    (found.path == Path::mixed ? contracts.mixed : contracts.decode) = found.contract;
  }

  /// The first divergence of the proof shows what the probes did not: its rows become another source, or, when the path
  /// was fitted before the other one's contract was known, its probes grow. False when that leads to nothing exact.
  bool refine() {
    const Divergence first = *result_.proof.first();
    const Path path = stream_.plan(first.step).path;
    FitPath* found = found_for(path);
    if (found == nullptr) return false;
    std::vector<Source>& sources = sources_of(path);
    const std::vector<Source> before = sources;
    const Contract* other = other_of(path);
    const bool grows = other != nullptr && sources.front().other == nullptr;
    for (Source& source : sources) source.other = other;
    if (!grows && !found->exact()) return false;
    if (!grows && !add_source(first, path, other)) return false;
    const Contract hint = found->contract;
    FitPath refined = fit_path(sources, backend_, Deadline(deadline_.left() / 3), &hint, options_.progress);
    const bool better = refined.exact() && (refined.contract != hint || !grows);
    if (better)
      *found = std::move(refined);
    else
      put_back(sources, before);
    return better;
  }

  static void put_back(std::vector<Source>& sources, const std::vector<Source>& before) {
    sources.clear();
    for (const Source& source : before) sources.push_back(source);
  }

  bool add_source(const Divergence& first, Path path, const Contract* other) {
    const std::int64_t from = std::max(slice_.first_step, first.from_step);
    for (const Source& source : sources_of(path))
      if (source.layer == first.layer && source.only_block == first.block && source.last_step == first.step + 1)
        return false;
    sources_of(path).push_back({stream_, recording_, first.layer, path, from, first.step + 1, other, first.block});
    return true;
  }

  /// Which layers the contract holds for, and what holds for the first few of the others.
  void tell_layers_apart() {
    for (int layer : slice_.layers) {
      Slice one = slice_;
      one.layers = {layer};
      const ReplayResult alone = replayed(one, result_.contracts);
      if (alone.verdict == Verdict::match) result_.holds.push_back(layer);
      if (alone.verdict == Verdict::diverged && layer != slice_.layers.front() &&
          result_.layers.size() < kOtherLayers && !deadline_.over())
        fit_other_layer(one, stream_.plan(alone.first()->step).path);
    }
  }

  void fit_other_layer(const Slice& one, Path path) {
    const double seconds = deadline_.left() / 3;
    const FitPath* main = found_for(path);
    FitLayer other{
        fit_path({{stream_, recording_, one.layers.front(), path, one.first_step, one.last_step, other_of(path), -1}},
                 backend_, Deadline(seconds), main == nullptr ? nullptr : &main->contract, {}),
        false};
    if (!other.found.exact_elsewhere()) return;
    ContractSet contracts = result_.contracts;
    set_path(contracts, other.found);
    if (result_.paths.size() == 1) contracts = {other.found.contract, other.found.contract};
    other.match = replayed(one, contracts).verdict == Verdict::match;
    if (contracts != result_.contracts) result_.layers.push_back(std::move(other));
  }

  Stream& stream_;
  Recording& recording_;
  Backend& backend_;
  const FitOptions& options_;
  const Slice slice_;
  const Deadline deadline_;
  std::vector<Source> sources_[2];  // decode, mixed
  FitResult result_;
  double proof_seconds_ = 0;
};

}  // namespace

FitResult fit(Stream& whole, Recording& recording, Backend& backend, const FitOptions& options) {
  const Slice slice = resolved(options.slice, whole_of(recording), recording.path());
  require_picked(slice.pick, whole.model(), whole.rows(), recording.path());
  PickedStream stream(whole, slice);
  return Fitter(stream, recording, backend, options, slice).run();
}

}  // namespace gdnsim
