// The batteries of one norm by itself.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "check/subject.hpp"

namespace gdnsim {

/// Rows, gates and a weight, made up.
struct NormRows {
  Bytes x, z, weight;
};

/// A gate of battery L2.
inline constexpr const char* kAgainstRules = "the rules written out";

/// Each battery adds its gates.
class NormBatteries {
 public:
  NormBatteries(const Subject& subject, CheckStage stage, const NormSpec& spec, std::vector<Gate>& gates)
      : subject_(subject), stage_(stage), spec_(spec), gates_(gates) {}

  void repeats();
  /// Batches of 64 contents, in their order and permuted, against each content alone: every size of battery L1.
  void batches();
  /// A full batch against parts of it.
  void parts();
  void against_reference(std::int64_t rows);
  /// Special values, against the rules; of contracts that are written out.
  void against_rules(std::int64_t rows);
  /// The same rows gated and plain: one root.
  void shared_root(std::int64_t rows);
  void accuracy(std::int64_t rows);
  void time(std::int64_t rows);

 private:
  static std::span<const std::byte> word(const float& x) { return std::as_bytes(std::span(&x, 1)); }
  std::int64_t elements(std::int64_t all) const { return subject_.options.reduced ? all / 128 : all; }
  /// Of a batch of battery L1; reduced, as many as the elements of 4,097 x 2,048 allow, over 128.
  std::int64_t most_rows() const {
    return subject_.options.reduced ? std::max<std::int64_t>(64, elements(4097 * 2048) / spec_.width) : 4097;
  }
  std::string rules_and_backend() const { return "the rules, written out, and " + subject_.backend->name(); }
  std::size_t row_bytes() const { return static_cast<std::size_t>(spec_.width) * size_of(spec_.act); }

  /// The call's outputs, ones where the backend writes nothing.
  static NormOutputs run(Backend& backend, const NormArgs& args);
  NormArgs args(std::int64_t rows, const NormRows& made) const {
    return {spec_, subject_.options.contract, rows, made.x, made.z, made.weight};
  }
  NormOutputs run_contents(const std::vector<std::int64_t>& contents) const;

  /// Row `w` of `want` with row `g` of `got`.
  void compare_row(Tally& tally, const NormOutputs& want, std::int64_t w, const NormOutputs& got, std::int64_t g,
                   const std::string& between) const;
  void compare_all(Tally& tally, const NormOutputs& want, const NormOutputs& got, const std::string& between) const;
  void compare_batch(Tally& tally, std::int64_t size, bool permuted, const std::string& between) const;
  void compare_part(Tally& tally, std::int64_t begin, std::int64_t size) const;
  /// Puts the two neighbouring sizes between which bits change into the violation.
  void narrow(Tally& tally, Neighbours apart, const std::function<void(Tally&, std::int64_t)>& compare_size) const;
  void judge(Gate& gate) const;

  const Subject& subject_;
  const CheckStage stage_;
  const NormSpec spec_;
  std::vector<Gate>& gates_;
  NormRows made_;
  NormOutputs full_;
  std::vector<NormOutputs> alone_;  // by content
};

}  // namespace gdnsim
