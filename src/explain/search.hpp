// The search around one divergence: which hypothesis gives the recorded bits. Private to explain.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "explain/kinds.hpp"
#include "fit/search.hpp"

namespace gdnsim::explaining {

/// A hypothesis with what its re-run gave.
struct Tested {
  Hypothesis hypothesis;
  Outcome outcome;
  std::uint64_t fixed_units = 0, fixed_elements = 0;  // wrong before, right now
  std::uint64_t broken_units = 0;                     // right before, wrong now
  bool broken_here = false;                           // one of these in the step at hand: the record speaks against it
};

/// How many hypotheses of each kind were re-run, over the whole explanation.
using Tally = std::map<std::string, std::int64_t>;

/// Contracts that `fit` found for a path of some layer: the next layer's first guess.
struct Known {
  Path path;
  std::shared_ptr<const Contract> contract;
  bool minimal = false;  // no change can be taken back
  Scope scope = {};      // where it held
};

/// What the search keeps from scene to scene and from layer to layer.
struct SearchState {
  const fitting::Deadline& deadline;
  Tally tally;
  std::vector<Known> known;
};

class SceneSearch {
 public:
  SceneSearch(const Scene& scene, SearchState& state) : scene_(scene), state_(state) {}
  /// The hypothesis that reproduces most: everything if there is one, else the one after which the first wrong unit comes
  /// latest. None when none moves the first wrong unit.
  std::optional<Tested> run();

 private:
  using Propose = void (*)(const Scene&, Hypotheses&);
  bool try_group(Propose propose);
  bool try_known();
  bool try_fit(std::int64_t from_step, double seconds);
  bool try_blocks();
  bool try_flips();
  void try_contract(const std::shared_ptr<const Contract>& contract, Scope scope = {});
  void widen();
  bool tiny() const;
  bool held_before() const;
  void minimise();
  void test(const Hypothesis& hypothesis);
  bool clean() const { return best_ && best_->outcome.clean(); }

  const Scene& scene_;
  SearchState& state_;
  std::optional<Tested> best_;
};

}  // namespace gdnsim::explaining
