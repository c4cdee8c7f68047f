// What the batteries of a decode step run on: rows of made-up content, where they start, and launches of them.
#pragma once

#include <memory>

#include "check/contents.hpp"
#include "check/subject.hpp"

namespace gdnsim {

/// One launch. A content decides a row's inputs and the block that it starts from; -1 is an inactive row.
struct CheckBatch {
  std::vector<int> content;         // [B]
  std::vector<std::int32_t> block;  // [B], -1 where inactive
  std::size_t rows() const { return content.size(); }
  bool active(std::size_t row) const { return content[row] >= 0; }
};

/// How the rows of a launch lie.
enum class Layout {
  straight,  // probes spread over the batch, the others behind one another; blocks in the order of the rows
  permuted,  // rows and block numbers permuted, otherwise for each size
  padded     // an inactive row behind every third
};
std::string_view name_of(Layout layout);

/// What a step leaves for others; and every value on the way.
inline constexpr TapSet kStepOutputs{Tap::conv_out, Tap::core_out, Tap::rstd, Tap::norm_out};
TapSet all_taps();

class StepScene {
 public:
  static constexpr int kProbes = 8;  // contents that are in every launch
  static constexpr int kContents = Contents::kCount;
  /// With blocks for so many rows.
  StepScene(Model model, std::int64_t most_rows, bool conv_bias = false);

  const Model& model() const { return model_; }
  Stream& stream() { return contents_->stream(); }
  /// All of the model's; the last one runs.
  std::vector<int> layers() const;
  /// A pool with the starts in it: what each content starts from is a block of its own.
  std::unique_ptr<Pool> make_pool(Backend& backend) const;
  /// The first block behind the starts: as many as rows are free from there on.
  static std::int32_t first_free() { return 1 + kContents; }
  /// A launch of `size` rows with probes first, first + 1, ... among them; as many as there is room for.
  CheckBatch lay(std::int64_t size, Layout layout, int first) const;
  /// A launch of `size` contents from 0 on, an inactive row behind every third.
  CheckBatch lay_all(int size) const;
  StepPlan plan(const CheckBatch& batch) const;
  void gather(const CheckBatch& batch, StepInputs& inputs) const;
  /// Sets the rows' blocks to their starts.
  void place(const CheckBatch& batch, Pool& pool) const;

 private:
  static std::int32_t start_of(int content) { return 1 + content; }

  std::int64_t most_rows_;
  Model model_;
  std::unique_ptr<Contents> contents_;
};

/// One step of the pool's last layer, each row from its start. What the backend leaves out of the outputs is ones.
StepOutputs run_launch(Backend& backend, const StepScene& scene, Pool& pool, const CheckBatch& batch, TapSet want,
                       const Contract& contract);
/// Room for what is asked, filled with ones.
void fill_with_ones(StepOutputs& outputs, const Model& model, std::size_t rows);
/// A block as it is, with its words; of the layer that runs.
KeptBlock keep_block(const Pool& pool, std::int32_t block);
KeptBlock keep_block(const Pool& pool, std::int32_t block, int layer);

}  // namespace gdnsim
