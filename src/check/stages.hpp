// One question to each stage of a decode step: what a launch gives is told apart by stage and compared row by row.
#pragma once

#include "check/scene.hpp"

namespace gdnsim {

inline constexpr CheckStage kStepStages[] = {CheckStage::conv, CheckStage::recurrent, CheckStage::gated_norm};
inline constexpr CheckStage kStateStages[] = {CheckStage::conv, CheckStage::recurrent};

class StageTallies {
 public:
  StageTallies(const Subject& subject, Battery battery, const std::string& name, const Model& model,
               std::span<const CheckStage> stages = kStepStages);
  /// One row of two launches' outputs: the taps that `want` has.
  void compare_outputs(const StepOutputs& want, std::size_t want_row, const StepOutputs& got, std::size_t got_row,
                       const std::string& between);
  /// A block of the pool with what it should hold: by its digest, and word by word where that is another.
  void compare_block(const KeptBlock& want, const Pool& pool, std::int32_t block, std::size_t row,
                     const std::string& between);
  /// Every block of two pools: those of the launch's rows by their row, then what no row may have touched.
  void compare_pools(const Pool& want, const Pool& got, const CheckBatch& batch, const std::string& between);
  /// A block that the backend kept itself: its digests, and its words where `want` has some.
  void compare_kept(const KeptBlock& want, const KeptBlock& got, std::size_t row, const std::string& between);

  void count_launches(std::uint64_t launches);
  void note(const std::string& note);
  std::vector<Tally>& tallies() { return tallies_; }
  void finish(std::vector<Gate>& gates) const;

 private:
  void compare(Tap tap, std::span<const std::byte> want, std::span<const std::byte> got, std::size_t row,
               const std::string& between);
  void compare_as(Tap tap, const TapShape& shape, std::span<const std::byte> want, std::span<const std::byte> got,
                  std::size_t row, const std::string& between);
  void compare_words_of(const KeptBlock& want, const KeptBlock& got, std::size_t row, const std::string& between);
  void agree_block();

  const Model model_;
  std::vector<Tally> tallies_;
};

/// Golden's plain code is not compared with itself: a gate that says so for each stage.
void skip_reference(const Subject& subject, const std::string& name, const Model& model, std::vector<Gate>& gates,
                    const std::string& why = "golden's plain code is what the others are compared with");

}  // namespace gdnsim
