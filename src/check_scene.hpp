// What the batteries of a decode step run on: rows of made-up content, the blocks that they start from, and launches of them.
#pragma once

#include <memory>

#include "check_subject.hpp"
#include "gdnsim/recipe.hpp"

namespace gdnsim {

/// One launch. A content decides a row's inputs and the block that it starts from; -1 is an inactive row.
struct CheckBatch {
  std::vector<int> content;         // [B]
  std::vector<std::int32_t> block;  // [B], -1 where inactive
  std::vector<int> watched;         // rows whose results are looked at, each from its own start
};

/// How the rows of a launch lie.
enum class Layout {
  straight,  // probes spread over the batch, blocks in the order of the rows
  permuted,  // rows and block numbers permuted, otherwise for each size
  padded     // an inactive row behind every third
};
std::string_view name_of(Layout layout);

class StepScene {
 public:
  static constexpr int kProbes = 8;     // contents that are watched
  static constexpr int kContents = 64;  // one in four of them with NaNs, infinities, denormals and zeros
  StepScene(const CheckOptions& options, std::int64_t most_rows);

  const Model& model() const { return model_; }
  Stream& stream() { return *tame_; }
  static bool is_wild(int content) { return content % 4 == 3; }
  /// Every block of a fresh pool: starts of the contents, and neighbours that begin like some of them.
  void fill(Pool& pool) const;
  /// A launch of `size` rows with probes first, first + 1, ... among them; as many as there is room for.
  CheckBatch lay(std::int64_t size, Layout layout, int first) const;
  /// A launch of `size` contents from 0 on, all watched, an inactive row behind every third.
  CheckBatch all_watched(int size) const;
  StepPlan plan(const CheckBatch& batch) const;
  void gather(const CheckBatch& batch, StepInputs& inputs) const;
  /// Sets the watched rows' blocks to their starts.
  void place(const CheckBatch& batch, Pool& pool) const;

 private:
  static constexpr int kStarts = 16;
  std::int32_t start_of(int content) const { return 1 + content % kStarts; }

  std::int64_t most_rows_;
  Model model_;
  std::unique_ptr<Stream> tame_, wild_;
  StepInputs tame_inputs_, wild_inputs_;  // [kContents] rows
};

/// One step; what came of the watched rows, states included.
std::vector<TapBytes> run_rows(Backend& backend, StepScene& scene, Pool& pool, const CheckBatch& batch, TapSet want,
                               const Contract& contract);

}  // namespace gdnsim
