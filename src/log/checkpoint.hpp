// Checkpoints of a log: the whole pool after some steps, so that a run can go on from there. Only blocks that something named
// are stored; all others are zeros. The step's pool digest proves the bytes, so the chain covers them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gdnsim/log.hpp"
#include "log/chain.hpp"

namespace gdnsim {

/// False also where `checkpoint_every` asks for none: a run of M steps or fewer, or one that names no block.
bool has_checkpoints(const LogHeader& header);
/// Steps with a checkpoint, counted from first_step: M-1, 2M-1, ... but not the last.
std::vector<std::int64_t> checkpoint_steps(const LogHeader& header);

/// Throws Error unless the listed blocks are ascending, in range, and name every row's block.
void require_checkpoint_blocks(const LogHeader& header, const std::string& where);

/// What the blocks that a checkpoint leaves out add to the pool digest: they are zeros.
std::uint64_t digest_of_unlisted(const LogHeader& header);

/// Follows a log from its first step on, to say which block of a checkpoint was changed. The pool digest is one sum over all
/// blocks; but what a row left in its block, and what the checkpoint before held, is known, so a block that differs from that
/// and would make the sum right is the changed one.
class CheckpointProof {
 public:
  CheckpointProof(const LogHeader& header, const LogLayout& layout);

  /// What the rows of step t left in their blocks.
  void note_rows(std::size_t t, const StepDigests& digests);
  struct Culprit {
    bool conv = false;  // in the conv state, else in the recurrent state
    std::string where;  // "block 7, head 2"
  };
  /// One layer of a checkpoint, by the digests of the listed blocks' bytes. Nothing when they give the pool digest.
  std::optional<Culprit> check(std::size_t slot, const std::vector<BlockDigest>& found, std::uint64_t pool_digest);

 private:
  Culprit find(const std::vector<BlockDigest>& found, const std::vector<BlockDigest>& known,
               std::uint64_t missing) const;
  std::uint64_t share(const BlockDigest& digest, std::size_t i) const;

  const LogHeader& header_;
  std::uint64_t unlisted_;
  std::vector<std::vector<BlockDigest>> known_;  // [slots][listed blocks]
};

}  // namespace gdnsim
