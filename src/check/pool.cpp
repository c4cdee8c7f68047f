// The pool by itself: blocks written, copied and zeroed, with any bits.
#include "check/stages.hpp"
#include "gdnsim/report.hpp"

namespace gdnsim {
namespace {

constexpr const char* kPoolAlone = "blocks written, copied, zeroed";

/// Any bits at all, NaNs with payload among them.
void fill_with_noise(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(mix(seed * kDigestC + i));
}

/// A pool of two layers, after writes, copies and zeroing, with what it must then hold; blocks 0, 2 and 5 are as they
/// came.
void compare_pool(const Subject& subject, Model model, std::vector<Gate>& gates) {
  constexpr std::int32_t kBlocks = 6;
  model.num_blocks = kBlocks;
  StageTallies tallies(subject, Battery::L2, kPoolAlone, model, kStateStages);
  const std::vector<int> layers{0, 2};
  const auto pool = subject.backend->make_pool(model, layers);
  std::vector<std::vector<KeptBlock>> want(layers.size(), std::vector<KeptBlock>(kBlocks));
  for (std::size_t slot = 0; slot < layers.size(); ++slot) {
    const auto write = [&](std::int32_t block, std::uint64_t seed) {
      KeptBlock& kept = want[slot][static_cast<std::size_t>(block)];
      fill_with_noise(kept.recurrent, seed), fill_with_noise(kept.conv, seed + 100);
      pool->write(layers[slot], block, kept.recurrent, kept.conv);
    };
    for (KeptBlock& kept : want[slot]) kept.make_room(true, model);  // zeros
    write(1, slot), write(3, slot + 10);
    pool->copy(layers[slot], 1, 4), want[slot][4] = want[slot][1];
    pool->copy(layers[slot], 3, 1), want[slot][1] = want[slot][3];
    pool->copy(layers[slot], 1, 1);
    pool->zero(layers[slot], 3), want[slot][3] = want[slot][0];
  }
  for (std::size_t slot = 0; slot < layers.size(); ++slot)
    for (std::int32_t block = 0; block < kBlocks; ++block) {
      KeptBlock& kept = want[slot][static_cast<std::size_t>(block)];
      kept.digest = digest_block(model, kept.recurrent, kept.conv);
      tallies.compare_kept(kept, keep_block(*pool, block, layers[slot]), 0,
                           "what was put into layer " + std::to_string(layers[slot]) + ", block " +
                               std::to_string(block) + " and what is there");
    }
  tallies.finish(gates);
}

}  // namespace

void check_pool(const Subject& subject, std::vector<Gate>& gates) {
  const Model model = check_model(subject.options);
  attempt(subject.options, {Battery::L2, kPoolAlone, describe(model), kStateStages}, gates,
          [&] { compare_pool(subject, model, gates); });
}

}  // namespace gdnsim
