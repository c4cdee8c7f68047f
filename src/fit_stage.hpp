// The three stages of fitting one path: their probes, their fields, and what they hand on. Private to fit.
#pragma once

#include "fit_search.hpp"
#include "gdnsim/fit.hpp"

namespace gdnsim::fitting {

/// One stage: a small probe to search on, a large one to confirm on.
struct Stage {
  std::string name;
  Probe small, large;
  std::vector<std::string> fields;                            // without exp, div, negate and the dots
  std::vector<std::pair<std::string, Dot Contract::*>> dots;  // (name, member)
  int dot_row = 1;                                            // elements of the dots' rows
};

/// Does the stage's result depend on the field?
bool reads(const Stage& stage, const std::string& field);
/// On any of those in which two contracts differ?
bool reads_any(const Stage& stage, const Contract& a, const Contract& b);
/// A fused exchange is defined for lanes of 1 and groups of 2 to 128 only.
bool possible(const Contract& contract);

class Stages {
 public:
  Stages(const Source& source, Backend& backend, const Deadline& deadline,
         const std::function<void(const std::string&)>& progress);
  void run(FitPath& found);

 private:
  bool by_presets(FitPath& found);
  std::vector<Found> starts_of(const Stage& stage, const Contract& contract, Search& search) const;
  void simplify(FitPath& found);
  Contract toward(const Contract& preset, Contract contract, const FitPath& found);
  void search(Stage& stage, Contract& contract, std::int64_t& trials);
  void narrow_functions(Stage& stage, const Contract& contract, std::int64_t& trials);
  void narrow_sqrt(Stage& stage, const Contract& contract, std::int64_t& trials);
  std::vector<Dimension> singles_of(const Stage& stage) const;
  std::vector<Dimension> dots_of(const Stage& stage) const;
  void describe(FitPath& found);
  void find_undecided(FitPath& found);
  bool unchanged(const Contract& contract, const std::vector<const Stage*>& readers);

  const Source source_;
  Backend& backend_;
  const Deadline& deadline_;
  const std::function<void(const std::string&)> progress_;
  std::vector<Stage> stages_;
  std::vector<Functions> functions_ = all_functions();  // what is still possible
  std::vector<Sqrt> roots_{Sqrt::ieee, Sqrt::approx};
  std::vector<std::int64_t> trials_;
};

}  // namespace gdnsim::fitting
