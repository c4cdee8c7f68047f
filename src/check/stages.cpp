#include "check/stages.hpp"

#include <algorithm>

#include "gdnsim/refused.hpp"
#include "gdnsim/report.hpp"

namespace gdnsim {
namespace {

/// A row's words of a tap; as many ones where the backend gave too few.
Bytes row_of(const StepOutputs& outputs, Tap tap, const TapShape& shape, std::size_t row) {
  const std::size_t bytes = shape.bytes();
  if (outputs[tap].size() < (row + 1) * bytes) return Bytes(bytes, std::byte{0xFF});
  const auto from = outputs[tap].begin() + static_cast<std::ptrdiff_t>(row * bytes);
  return Bytes(from, from + static_cast<std::ptrdiff_t>(bytes));
}

/// Words that were asked for; ones behind those that the backend gave.
Bytes filled(Bytes words, std::size_t bytes) {
  words.resize(bytes, std::byte{0xFF});
  return words;
}

}  // namespace

StageTallies::StageTallies(const Subject& subject, Battery battery, const std::string& name, const Model& model,
                           std::span<const CheckStage> stages)
    : model_(model) {
  for (CheckStage stage : stages)
    if (subject.has(stage))
      tallies_.emplace_back(stage, battery, stage == CheckStage::gated_norm ? name + ", in a step" : name,
                            describe(model));
}

void StageTallies::compare_outputs(const StepOutputs& want, std::size_t want_row, const StepOutputs& got,
                                   std::size_t got_row, const std::string& between) {
  for (std::size_t t = 0; t < kTaps; ++t) {
    const Tap tap = static_cast<Tap>(t);
    const TapShape shape = shape_of(tap, model_);
    if (want[tap].empty() || !got.want.has(tap)) continue;
    compare(tap, row_of(want, tap, shape, want_row), row_of(got, tap, shape, got_row), got_row, between);
  }
}

void StageTallies::compare_block(const KeptBlock& want, const Pool& pool, std::int32_t block, std::size_t row,
                                 const std::string& between) {
  if (pool.digest(pool.layers().back(), block).block == want.digest.block) return agree_block();
  compare_words_of(want, keep_block(pool, block), row, between);
}

void StageTallies::compare_pools(const Pool& want, const Pool& got, const CheckBatch& batch,
                                 const std::string& between) {
  const int runs = want.layers().back();
  const auto compare = [&](int layer, std::int32_t block, std::size_t row, const std::string& what) {
    if (want.digest(layer, block).block == got.digest(layer, block).block) return agree_block();
    compare_words_of(keep_block(want, block, layer), keep_block(got, block, layer), row, between + what);
  };
  for (std::int32_t block = 0; block < want.model().num_blocks; ++block) {
    const auto row = static_cast<std::size_t>(std::ranges::find(batch.block, block) - batch.block.begin());
    const std::string name = ", block " + std::to_string(block) + " of ";
    compare(runs, block, row < batch.rows() ? row : 0, row < batch.rows() ? "" : name + "no row");
    for (const int layer : want.layers())
      if (layer != runs) compare(layer, block, 0, name + "another layer");
  }
}

void StageTallies::compare_kept(const KeptBlock& want, const KeptBlock& got, std::size_t row,
                                const std::string& between) {
  if (!want.recurrent.empty()) {  // words were asked for
    compare(Tap::state, want.recurrent, filled(got.recurrent, want.recurrent.size()), row, between);
    compare(Tap::conv_state, want.conv, filled(got.conv, want.conv.size()), row, between);
  }
  const auto digests = [&](Tap tap, std::vector<std::uint64_t> ours, std::vector<std::uint64_t> theirs) {
    ours.resize(theirs.size());
    const TapShape shape{DType::f32, static_cast<std::int64_t>(theirs.size()), 2};
    compare_as(tap, shape, std::as_bytes(std::span(theirs)), std::as_bytes(std::span(ours)), row,
               between + ", digests");
  };
  digests(Tap::state, got.digest.heads, want.digest.heads);
  if (got.digest.heads != want.digest.heads)  // the block's is wrong with them, and that is not the conv's fault
    return digests(Tap::conv_state, {got.digest.conv}, {want.digest.conv});
  digests(Tap::conv_state, {got.digest.conv, got.digest.block}, {want.digest.conv, want.digest.block});
}

void StageTallies::compare_words_of(const KeptBlock& want, const KeptBlock& got, std::size_t row,
                                    const std::string& between) {
  compare(Tap::state, want.recurrent, got.recurrent, row, between);
  compare(Tap::conv_state, want.conv, got.conv, row, between);
}

void StageTallies::agree_block() {
  for (Tally& tally : tallies_) {
    if (tally.stage() == CheckStage::recurrent) tally.agree(static_cast<std::uint64_t>(model_.state_elements()));
    if (tally.stage() == CheckStage::conv) tally.agree(static_cast<std::uint64_t>(model_.conv_elements()));
  }
}

void StageTallies::compare(Tap tap, std::span<const std::byte> want, std::span<const std::byte> got, std::size_t row,
                           const std::string& between) {
  compare_as(tap, shape_of(tap, model_), want, got, row, between);
}

void StageTallies::compare_as(Tap tap, const TapShape& shape, std::span<const std::byte> want,
                              std::span<const std::byte> got, std::size_t row, const std::string& between) {
  for (Tally& tally : tallies_)
    if (tally.stage() == stage_of(tap)) tally.compare(tap, shape, want, got, between, static_cast<std::int64_t>(row));
}

void StageTallies::count_launches(std::uint64_t launches) {
  for (Tally& tally : tallies_) tally.count_launches(launches);
}

void StageTallies::finish(std::vector<Gate>& gates) const {
  for (const Tally& tally : tallies_) gates.push_back(tally.finish());
}

void StageTallies::note(const std::string& note) {
  for (Tally& tally : tallies_) tally.note(note);
}

void skip_reference(const Subject& subject, const std::string& name, const Model& model, std::vector<Gate>& gates,
                    const std::string& why) {
  for (CheckStage stage : kStepStages)
    if (subject.has(stage)) gates.push_back(skipped_gate(stage, Battery::L2, name, describe(model), why));
}

void attempt(const CheckOptions& options, const Question& question, std::vector<Gate>& gates,
             const std::function<void()>& run) {
  const auto say = [&](Gate::Verdict verdict, const std::string& why) {
    for (CheckStage stage : question.stages)
      if (std::ranges::find(options.stages, stage) != options.stages.end())
        gates.push_back(skipped_gate(stage, question.battery, question.name, question.shape, why)),
            gates.back().verdict = verdict;
  };
  try {
    run();
  } catch (const Refused& why) {
    if (!options.is_held()) throw;
    say(Gate::Verdict::skipped, why.what());
  } catch (const Error& found) {
    say(Gate::Verdict::violated, found.what());
  }
}

void attempt(const CheckOptions& options, Battery battery, const std::string& name, const Model& model,
             std::vector<Gate>& gates, const std::function<void()>& run) {
  attempt(options, {battery, name, describe(model), kStepStages}, gates, run);
}

}  // namespace gdnsim
