// Planted faults: what the batteries must find, and the gate that must find it.
#include <algorithm>
#include <array>
#include <map>

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
    Mutation{"offset-plain", "an offset of 0 is added in plain norms alone", CheckStage::rmsnorm, Battery::L2,
             "the rules written out"},
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
    Mutation{"beyond", "a kernel writes beyond an output, which the backend notices and says", CheckStage::recurrent,
             Battery::L2, "against golden"},
    Mutation{"second", "a bit of core_out is off in the second launch alone", CheckStage::recurrent, Battery::L0,
             "50 repeats"},
    Mutation{"wide-window", "in windows of more than 32 rows a bit of the sixth row is off", CheckStage::recurrent,
             Battery::L1, "windows of other row counts"},
    Mutation{"late-step", "from its 201st step on a window has a bit of core_out off", CheckStage::recurrent,
             Battery::L2, "a window of 300 steps"},
    Mutation{"layer", "in layers but the first a bit of core_out is off", CheckStage::recurrent, Battery::L2,
             "against golden"},
    Mutation{"window-bias", "a window of a layer with a conv bias is a bit off", CheckStage::conv, Battery::L2,
             "windows of steps"},
    Mutation{"few-outputs", "a bit of core_out is off where norm_out is not wanted", CheckStage::recurrent, Battery::L2,
             "against golden"},
    Mutation{"norm-beyond", "a norm's kernel writes beyond its output, which the backend notices and says",
             CheckStage::rmsnorm, Battery::L1, "batch sizes"},
};

/// The control: the backend in the same wrapping, with nothing spoiled.
constexpr Mutation kNothing{"nothing", "nothing is changed", CheckStage::recurrent, Battery::L2, ""};

std::vector<Gate> gates_with(const Mutation& planted, const Mutation& asked, CheckOptions options) {
  options.stages = {asked.stage}, options.batteries = {asked.battery}, options.mutation = &planted;
  std::vector<Gate> gates = run_check(options).gates;
  std::erase_if(gates, [&](const Gate& gate) { return gate.stage != asked.stage || gate.battery != asked.battery; });
  return gates;
}

std::vector<Gate> named(std::vector<Gate> gates, std::string_view name) {
  std::erase_if(gates, [name](const Gate& gate) { return gate.name.find(name) == std::string::npos; });
  return gates;
}

bool is_violated(const Gate& gate) { return gate.verdict == Gate::Verdict::violated; }

}  // namespace

std::span<const Mutation> mutations() { return kMutations; }
const Mutation& no_mutation() { return kNothing; }

const Mutation& mutation(std::string_view name) {
  std::string names;
  for (const Mutation& each : kMutations) {
    if (each.name == name) return each;
    names += ", " + std::string(each.name);
  }
  throw error("--mutate: expected all", names, "; found '", name, "'");
}

bool MutationResult::asked() const {
  return std::ranges::any_of(gates, [](const Gate& gate) { return gate.verdict != Gate::Verdict::skipped; });
}

bool MutationResult::caught() const {
  const auto without = [this](const Gate& gate) {
    return std::ranges::any_of(control, [&](const Gate& other) {
      return is_violated(other) && other.name == gate.name && other.shape == gate.shape && other.kernel == gate.kernel;
    });
  };
  return std::ranges::any_of(gates, [&](const Gate& gate) { return is_violated(gate) && !without(gate); });
}

int exit_code(const std::vector<MutationResult>& results) {
  const auto missed = [](const MutationResult& result) { return result.asked() && !result.caught(); };
  if (std::ranges::any_of(results, missed)) return 1;
  return std::ranges::any_of(results, &MutationResult::caught) ? 0 : 2;
}

std::vector<MutationResult> run_mutations(const CheckOptions& options, const std::string& which) {
  std::vector<MutationResult> results;
  std::map<std::pair<CheckStage, Battery>, std::vector<Gate>> controls;
  for (const Mutation& each : kMutations) {
    if (which != "all" && &each != &mutation(which)) continue;
    MutationResult& result =
        results.emplace_back(MutationResult{&each, named(gates_with(each, each, options), each.gate), {}});
    if (std::ranges::none_of(result.gates, is_violated)) continue;
    std::vector<Gate>& control = controls[{each.stage, each.battery}];
    if (control.empty()) control = gates_with(kNothing, each, options);
    result.control = named(control, each.gate);
  }
  return results;
}

}  // namespace gdnsim
