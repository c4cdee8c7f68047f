// The stages of fitting one path: their probes, their fields, and what they hand on. Private to fit.
#pragma once

#include "fit/search.hpp"
#include "gdnsim/fit.hpp"

namespace gdnsim::fitting {

/// One stage: a tiny probe to search on, a small one, and large ones, one a source, that must agree.
struct Stage {
  std::string name;
  Probe tiny, small;
  std::vector<Probe> large;
  std::vector<std::string> fields;                            // without exp, div, negate and the dots
  std::vector<std::pair<std::string, Dot Contract::*>> dots;  // (name, member)
  int dot_row = 1;                                            // elements of the dots' rows

  bool empty() const { return small.empty(); }
  std::vector<Probe*> probes();  // the smallest first
  std::vector<Probe*> larges();
};

/// Does the stage's result depend on the field?
bool reads(const Stage& stage, const std::string& field);
/// On any of those in which two contracts differ?
bool reads_any(const Stage& stage, const Contract& a, const Contract& b);
/// A fused exchange is defined for lanes of 1 and groups of 2 to 128 only.
bool possible(const Contract& contract);

std::vector<Stage> make_stages(const std::vector<Source>& sources, Backend& backend);

/// Rows that are left out for a while, so that a fault in them does not hide the contract of the rest.
using Mask = std::function<bool(const Probe&, const Unit&)>;
/// The masks to try: half of the blocks, single blocks, all but the first steps.
std::vector<Mask> masks_for(const Probe& probe);
void apply(const Mask& mask, Stage& stage);
/// Ignores the rows that differ under the contract and no others; false, and none, when that does not look like a
/// fault: they are most of all rows, or of those whose state was recorded, or differ by little. `one_block`: or use
/// several blocks.
bool ignore_wrong_rows(Stage& stage, Backend& backend, const Contract& contract, bool one_block);

class Stages {
 public:
  /// The first source is searched, the others must agree. `hint` is where the search starts besides the presets.
  Stages(const std::vector<Source>& sources, Backend& backend, const Deadline& deadline, const Contract* hint,
         const std::function<void(const std::string&)>& progress);
  void run(FitPath& found);

 private:
  bool by_presets(FitPath& found);
  void simplify(FitPath& found);
  Contract toward(const Contract& preset, Contract contract, const FitPath& found);
  void search(Stage& stage, Contract& contract, std::int64_t& trials);
  Found search_near(Stage& stage, const Contract& contract, const Deadline& deadline, Near near, std::int64_t& trials);
  Found search_far(Stage& stage, const Contract& contract, const Deadline& deadline, std::int64_t& trials);
  std::vector<Found> starts_of(const Stage& stage, const Contract& contract, Search& search) const;
  void narrow(Stage& stage, const Contract& contract, std::int64_t& trials);
  std::vector<Dimension> singles_of(const Stage& stage) const;
  std::vector<Dimension> dots_of(const Stage& stage) const;
  void describe(FitPath& found);
  void find_undecided(FitPath& found);
  void find_multiprocessors(FitPath& found) const;
  bool unchanged(const Contract& contract, const std::vector<const Stage*>& readers);
  bool is_exact(Stage& stage, const Contract& contract) {
    return judge(stage.probes(), backend_, contract, 1).cost == 0;
  }
  std::int64_t launch_rows() const;

  const std::vector<Source> sources_;
  Backend& backend_;
  const Deadline& deadline_;
  const Contract* const hint_;
  const std::function<void(const std::string&)> progress_;
  std::vector<Stage> stages_;
  std::vector<Functions> functions_ = all_functions();  // what is still possible
  std::vector<Sqrt> roots_{Sqrt::ieee, Sqrt::approx};
  std::vector<std::int64_t> trials_;
};

}  // namespace gdnsim::fitting
