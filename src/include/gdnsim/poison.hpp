// Poison: blocks that nothing has filled hold NaNs that name the block, outputs NaNs that nobody may leave, the inputs of inactive
// rows NaNs that nothing may depend on; so a read before any write is seen where it happens, and told from a NaN of arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "gdnsim/backend.hpp"
#include "gdnsim/simulator.hpp"

namespace gdnsim {

/// The poison of a block, as a word of the type: f32 0x7FA00000 + block modulo 2^21, bf16 0x7FA0 + block modulo 32; f16 has
/// none of its own (states never are f16), its outputs get 0x7D00. Signalling NaNs, so no arithmetic makes one.
std::uint32_t poison_word(DType type, std::int32_t block);
/// The block that a word names, modulo 2^21 or 32; nothing when it is no poison.
std::optional<std::int32_t> poison_of(DType type, std::uint32_t word);
/// So many blocks the words of a type tell apart.
std::int64_t poison_blocks(DType type);
/// What an inactive row's inputs are filled with: f32 0x7F900000 + row modulo 2^20, bf16 0x7F90 + row modulo 16, f16 0x7C80 + row
/// modulo 128. No poison of a block, and signalling too.
std::uint32_t padding_word(DType type, int row);
/// Fills with one word of the type.
void fill_words(std::span<std::byte> words, DType type, std::uint32_t word);
/// Fills one block of one layer with its own poison.
void fill_poison(Pool& pool, int layer, std::int32_t block);

/// An active row that would read poison, an output that kept it, or a value that an inactive row's inputs had a say in.
struct PoisonRead {
  std::int64_t step = 0;
  int layer = 0, row = 0;  // row -1: no row names the block
  std::int64_t sequence = -1;
  std::int32_t block = 0;              // that the row goes on from
  std::int32_t poison = 0;             // the block that the words name, modulo `poison_modulo`; outputs and padding: -1
  std::int64_t poison_modulo = 0;      // 0: the pool is so small that the name is exact
  int padding = -1;                    // the inactive row whose inputs were read, -1: none
  std::int64_t padding_step = -1;      // in this step
  Tap tap = Tap::state;                // state, conv_state, or the output
  std::int64_t head = 0, element = 0;  // conv: column and channel
  /// The block that the poison is of: the row's own where the words fit it, else `poison`.
  std::int32_t named() const;
  /// "poison of block 4 read: step 1, row 0, sequence 9, layer 0, recurrent state head 0 element 0"
  std::string text() const;

 private:
  std::string place() const;
};

/// How steps are run: `simulate`, or something that does more.
using RunSteps = std::function<void(const Simulation&, Pool&, Observer&)>;

/// Runs the steps of `simulation` on a pool full of poison, watched by nobody else; stops before the first step that would read
/// any. `allocate` events make a block poison again. Where that finds nothing and rows are inactive, the steps run once more
/// with their inputs poisoned: what comes out otherwise then depends on them. Their z is left as it is, for their own norm
/// reads it (rule A7). The result is no log's: to be run beside the real thing.
std::optional<PoisonRead> find_poison_read(const Simulation& simulation, const RunSteps& run = simulate);

}  // namespace gdnsim
