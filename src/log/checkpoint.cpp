#include "log/checkpoint.hpp"

#include <algorithm>
#include <charconv>

#include "gdnsim/error.hpp"
#include "log/layout.hpp"

namespace gdnsim {

bool has_checkpoints(const LogHeader& header) {
  return header.checkpoint_every > 0 && header.checkpoint_every < header.steps && !header.checkpoint_blocks.empty();
}

std::vector<std::int64_t> checkpoint_steps(const LogHeader& header) {
  std::vector<std::int64_t> steps;
  if (!has_checkpoints(header)) return steps;
  for (std::int64_t t = header.checkpoint_every; t < header.steps; t += header.checkpoint_every) steps.push_back(t - 1);
  return steps;
}

void require_checkpoint_blocks(const LogHeader& header, const std::string& where) {
  const std::vector<std::int32_t>& blocks = header.checkpoint_blocks;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] < 0 || blocks[i] >= header.model.num_blocks)
      throw error(where, ": /checkpoint/block[", i, "]: expected 0..", header.model.num_blocks - 1, ", found ",
                  blocks[i]);
    if (i > 0 && blocks[i] <= blocks[i - 1])
      throw error(where, ": /checkpoint/block[", i, "]: expected more than ", blocks[i - 1], ", found ", blocks[i]);
  }
  for (const StepPlan& plan : header.plans)
    for (std::size_t row = 0; row < plan.block.size(); ++row)
      if (const std::int32_t block = logged_block(plan, row); block >= 0 && !std::ranges::binary_search(blocks, block))
        throw error(where, ": /checkpoint/block: expected block ", block, " of step ", plan.step, " among them");
}

std::uint64_t digest_of_unlisted(const LogHeader& header) {
  const Model& model = header.model;
  const std::uint64_t zero = digest_block(model, Bytes(model.state_bytes()), Bytes(model.conv_bytes())).block;
  std::uint64_t sum = 0;
  auto listed = header.checkpoint_blocks.begin();
  for (std::int32_t block = 0; block < model.num_blocks; ++block) {
    if (listed != header.checkpoint_blocks.end() && *listed == block)
      ++listed;
    else
      sum += pool_share(zero, block);
  }
  return sum;
}

std::int64_t checkpoint_every_from(const std::string& text) {
  if (text == "none") return 0;
  std::int64_t every = 0;
  const char* end = text.data() + text.size();
  if (text.starts_with("every:")) {
    const auto [stop, bad] = std::from_chars(text.data() + 6, end, every);
    if (bad == std::errc() && stop == end && every >= 1) return every;
  }
  throw error("checkpoints: expected none or every:M (M of 1 or more), found '", text, "'");
}

CheckpointProof::CheckpointProof(const LogHeader& header, const LogLayout& layout) : header_(header), unlisted_(0) {
  if (layout.checkpoints.empty()) return;
  unlisted_ = digest_of_unlisted(header);
  const Model& model = header.model;
  const BlockDigest zero = digest_block(model, Bytes(model.state_bytes()), Bytes(model.conv_bytes()));
  known_.assign(header.layers.size(), std::vector<BlockDigest>(header.checkpoint_blocks.size(), zero));
}

void CheckpointProof::note_rows(std::size_t t, const StepDigests& digests) {
  const std::vector<std::int32_t>& blocks = header_.checkpoint_blocks;
  const std::size_t HV = static_cast<std::size_t>(header_.model.HV);
  for (std::size_t row = 0; row < header_.plans[t].block.size(); ++row) {
    const std::int32_t block = logged_block(header_.plans[t], row);
    if (block < 0) continue;
    const std::size_t i = static_cast<std::size_t>(std::ranges::lower_bound(blocks, block) - blocks.begin());
    for (std::size_t slot = 0; slot < known_.size(); ++slot) {
      BlockDigest& known = known_[slot][i];
      std::ranges::copy(digests.layer(Section::recurrent, slot).subspan(row * HV, HV), known.heads.begin());
      known.conv = digests.layer(Section::conv, slot)[row];
      known.block = join_block(known.heads, known.conv);
    }
  }
}

std::optional<CheckpointProof::Culprit> CheckpointProof::check(std::size_t slot, const std::vector<BlockDigest>& found,
                                                               std::uint64_t pool_digest) {
  std::uint64_t sum = unlisted_;
  for (std::size_t i = 0; i < found.size(); ++i) sum += share(found[i], i);
  if (sum != pool_digest) return find(found, known_[slot], pool_digest - sum);
  known_[slot] = found;
  return std::nullopt;
}

/// Blocks that events changed since differ too, rightly; what makes the sum right tells them from the changed one.
CheckpointProof::Culprit CheckpointProof::find(const std::vector<BlockDigest>& found,
                                               const std::vector<BlockDigest>& known, std::uint64_t missing) const {
  std::vector<std::size_t> differ, culprits;
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::uint64_t change = share(known[i], i) - share(found[i], i);
    if (change == 0) continue;
    differ.push_back(i);
    all += change;
    if (change == missing) culprits = {i};
  }
  if (culprits.empty() && all == missing) culprits = differ;
  if (culprits.empty()) return {false, "a block that events changed, or several blocks"};
  const std::size_t i = culprits.front();
  const std::string block = "block " + std::to_string(header_.checkpoint_blocks[i]);
  for (std::size_t hv = 0; hv < found[i].heads.size(); ++hv)
    if (found[i].heads[hv] != known[i].heads[hv]) return {false, block + ", head " + std::to_string(hv)};
  return {true, block};
}

std::uint64_t CheckpointProof::share(const BlockDigest& digest, std::size_t i) const {
  return pool_share(digest.block, header_.checkpoint_blocks[i]);
}

}  // namespace gdnsim
