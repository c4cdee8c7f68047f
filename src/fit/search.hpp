// The search over contracts on one probe: descent one choice at a time, then by pairs. Private to fit.
#pragma once

#include <algorithm>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "fit/probe.hpp"
#include "gdnsim/order.hpp"

namespace gdnsim::fitting {

/// One thing that can be chosen, and every way to choose it.
struct Dimension {
  std::string name;
  std::vector<std::function<void(Contract&)>> values;
};

Dimension field_dimension(const std::string& field);
/// exp, div and negate are shared by all stages: those combinations that the stages before left possible.
struct Functions {
  Exp exp;
  Div div;
  Negate negate;
  bool operator==(const Functions&) const = default;
};
std::vector<Functions> all_functions();
Functions functions_of(const Contract& contract);
void set_functions(Contract& contract, const Functions& functions);
Dimension functions_dimension(const std::vector<Functions>& allowed);
/// Every plausible order of summing rows of n elements, those of the presets first; no two of them are the same for
/// this row.
Dimension dot_dimension(const std::string& name, Dot Contract::*dot, int n, const DotContext& context);

/// Seconds of this process's processor time, so that what is found does not depend on what else the machine does.
class Deadline {
 public:
  explicit Deadline(double seconds) : end_(now() + seconds) {}
  bool over() const { return now() >= end_; }
  double left() const { return std::max(0.0, end_ - now()); }

 private:
  static double now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }
  double end_;
};

struct Found {
  Contract contract;
  Score score;
};

/// From here on a cost says that the first probe is not exact.
inline constexpr std::uint64_t kFirstProbe = std::uint64_t{1} << 40;
/// Runs the probes under a contract. The later ones count only where the first one is exact: until then the cost is the
/// first one's, and higher than any cost of the later ones.
Score judge(const std::vector<Probe*>& probes, Backend& backend, const Contract& contract,
            std::uint64_t limit = kNoLimit);

/// How many changes away: one; also two fields; also two of fields and dots.
enum class Near : std::uint8_t { one, two_fields, two };

/// Searches a stage's probes. `trials` counts the contracts tried.
class Search {
 public:
  Search(std::vector<Probe*> probes, Backend& backend, const Deadline& deadline)
      : probes_(std::move(probes)), backend_(backend), deadline_(deadline) {}
  Found try_one(const Contract& contract);
  /// The contract a change or two away from a start that reproduces the probes exactly, if there is one.
  bool exact_nearby(Found& found, const std::vector<Dimension>& single, const std::vector<Dimension>& dots, Near near);
  /// Betters `found` one choice at a time until it is exact, nothing helps, or time is up.
  void descend(Found& found, const std::vector<Dimension>& single, const std::vector<Dimension>& dots);
  /// The same, and where one choice does not help, two at a time.
  void descend_by_pairs(Found& found, const std::vector<Dimension>& single, const std::vector<Dimension>& dots);
  std::int64_t trials() const { return trials_; }

 private:
  bool round(Found& found, const std::vector<Dimension>& single, const std::vector<Dimension>& dots);
  bool escape(Found& found, const std::vector<Dimension>& single, const std::vector<Dimension>& dots);
  bool exact(Found& found, const Contract& contract);
  bool exact_pair(Found& found, const Dimension& a, const Dimension& b);
  bool better(Found& found, const Contract& contract);
  bool try_values(Found& found, const Dimension& dimension);
  bool try_pairs(Found& found, const Dimension& a, const Dimension& b);
  bool done(const Found& found) const { return found.score.cost == 0 || deadline_.over(); }

  const std::vector<Probe*> probes_;
  Backend& backend_;
  const Deadline& deadline_;
  std::int64_t trials_ = 0;
};

}  // namespace gdnsim::fitting
