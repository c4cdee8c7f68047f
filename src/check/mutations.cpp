// Planted faults: what the batteries must find, and the gate that must find it.
#include <algorithm>
#include <array>

#include "gdnsim/check.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

constexpr std::array kMutations{
    Mutation{"squares", "the sum of squares of the gated norm is 1e-4 too large", CheckStage::gated_norm,
             Battery::accuracy, ""},
    Mutation{"squares-plain", "the sum of squares of the plain norm is 1e-4 too large", CheckStage::rmsnorm,
             Battery::accuracy, ""},
    Mutation{"offset-lost", "the weight is taken without its offset", CheckStage::rmsnorm, Battery::L2,
             "against golden"},
    Mutation{"offset-zero", "an offset of 0 is added all the same: -0 becomes +0", CheckStage::gated_norm, Battery::L2,
             "against golden"},
    Mutation{"norm-order", "the norm sums its squares in another order", CheckStage::gated_norm, Battery::L2,
             "against golden"},
    Mutation{"root", "the plain norm sums in another order than the gated one", CheckStage::rmsnorm, Battery::L2,
             "rstd as in the gated norm"},
    Mutation{"by-batch", "above 264 rows the norm sums in another order", CheckStage::gated_norm, Battery::L1,
             "batch sizes"},
    Mutation{"by-place", "the norm's last row of an odd batch is off by one bit", CheckStage::gated_norm, Battery::L1,
             "parts of"},
    Mutation{"norm-noise", "a bit of the norm is off now and then", CheckStage::gated_norm, Battery::L0, "50 repeats"},
    Mutation{"state-order", "S.k and S.q are summed in another order", CheckStage::recurrent, Battery::L2,
             "against golden"},
    Mutation{"taps", "the conv adds its newest column first", CheckStage::conv, Battery::L2, "against golden"},
    Mutation{"step-by-batch", "in launches of more than 16 rows S.k and S.q are summed in another order",
             CheckStage::recurrent, Battery::L1, "batch sizes"},
    Mutation{"step-noise", "a bit of core_out is off now and then", CheckStage::recurrent, Battery::L0, "50 repeats"},
    Mutation{"conv-noise", "a bit of conv_out is off now and then", CheckStage::conv, Battery::L0, "50 repeats"},
    Mutation{"leftover", "an inactive row's core_out is what the launch before left there", CheckStage::recurrent,
             Battery::L0, "50 repeats"},
    Mutation{"late-row", "in launches of more than 100 rows a bit of row 97 is off", CheckStage::recurrent, Battery::L1,
             "batch sizes"},
    Mutation{"tiled", "in launches of more than 66 rows a step's norm sums in another order", CheckStage::gated_norm,
             Battery::L1, "batch sizes, in a step"},
    Mutation{"inactive-norm", "an inactive row's norm is left out", CheckStage::gated_norm, Battery::L2,
             "against golden, in a step"},
    Mutation{"inactive-block", "an inactive row has its state in block 0", CheckStage::recurrent, Battery::L2,
             "against golden"},
    Mutation{"window", "from its third step on a window sums S.k and S.q in another order", CheckStage::recurrent,
             Battery::L2, "windows of steps"},
    Mutation{"candidate", "S.k and S.q of a launch's third candidate are summed in another order",
             CheckStage::recurrent, Battery::L2, "launches of candidates"},
    Mutation{"fresh-pool", "a new pool's last block is not zeros", CheckStage::recurrent, Battery::L2,
             "blocks written, copied, zeroed"},
};

}  // namespace

std::span<const Mutation> mutations() { return kMutations; }

const Mutation& mutation(std::string_view name) {
  std::string names;
  for (const Mutation& each : kMutations) {
    if (each.name == name) return each;
    names += ", " + std::string(each.name);
  }
  throw error("--mutate: expected all", names, "; found '", name, "'");
}

bool MutationResult::caught() const {
  return std::ranges::any_of(gates, [](const Gate& gate) { return gate.verdict == Gate::Verdict::violated; });
}

std::vector<MutationResult> run_mutations(const CheckOptions& options, const std::string& which) {
  std::vector<MutationResult> results;
  for (const Mutation& each : kMutations) {
    if (which != "all" && &each != &mutation(which)) continue;
    CheckOptions planted = options;
    planted.stages = {each.stage}, planted.batteries = {each.battery};
    planted.mutation = &each;
    MutationResult& result = results.emplace_back();
    result.mutation = &each;
    for (Gate& gate : run_check(planted).gates)
      if (gate.stage == each.stage && gate.battery == each.battery && gate.name.starts_with(each.gate))
        result.gates.push_back(std::move(gate));
  }
  return results;
}

}  // namespace gdnsim
