// Planted faults: what the batteries must find. Each is a backend that hands its work to a sound one and spoils one thing.
#include <algorithm>
#include <array>
#include <cstring>

#include "check_gate.hpp"
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
};

void reorder(Dot& dot) { dot.tree = dot.tree == Tree::widest ? Tree::narrowest : Tree::widest; }

class Mutant final : public Backend {
 public:
  Mutant(Backend& backend, const Mutation& mutation) : backend_(backend), name_(mutation.name) {}
  std::string name() const override { return backend_.name(); }
  std::string description() const override { return backend_.description(); }
  std::string refuses(const Contract& contract) const override { return backend_.refuses(contract); }
  std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) override {
    return backend_.make_pool(model, std::move(layers));
  }
  void prepare(const Stream& stream, const std::vector<int>& layers) override { backend_.prepare(stream, layers); }
  double memory_rate() override { return backend_.memory_rate(); }

  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override {
    Contract contract = args.contract;
    if (is("state-order") || (is("step-by-batch") && args.plan.rows() > 16)) reorder(contract.state_dot);
    if (is("taps")) contract.conv_taps = ConvTaps::newest_first;
    backend_.step({args.layer, args.plan, args.inputs, contract}, pool, outputs);
    if (now_and_then("step-noise")) flip(outputs[Tap::core_out], 0);
    if (now_and_then("conv-noise")) flip(outputs[Tap::conv_out], 0);
  }

  void norm(const NormArgs& args, NormOutputs& outputs) override {
    NormSpec spec = args.spec;
    Contract contract = args.contract;
    Bytes weight(args.weight.begin(), args.weight.end());
    if (is("squares") || is("squares-plain")) return off_squares(args, outputs);
    if (is("norm-order") || (is("by-batch") && args.rows > 264) || (is("root") && !spec.gated))
      reorder(contract.norm_dot);
    if (is("offset-lost")) spec.weight_offset = 0;
    if (is("offset-zero") && spec.weight_offset == 0) add_zero(weight, spec.act);
    backend_.norm({spec, contract, args.rows, args.x, args.z, weight, args.timed}, outputs);
    const std::size_t word = size_of(spec.act);
    if (is("by-place") && args.rows % 2 == 1 && args.rows > 1) flip(outputs.out, outputs.out.size() - word);
    if (now_and_then("norm-noise")) flip(outputs.out, 0);
  }

 private:
  bool is(std::string_view name) const { return name == name_; }
  bool now_and_then(std::string_view name) { return is(name) && ++calls_ % 17 == 0; }
  static void flip(Bytes& words, std::size_t at) { words[at] ^= std::byte{1}; }

  /// -0 + 0 is +0; every other word stays.
  static void add_zero(Bytes& words, DType act) {
    const std::size_t size = size_of(act);
    for (std::size_t at = 0; at < words.size(); at += size) {
      const bool zero = std::all_of(words.begin() + static_cast<std::ptrdiff_t>(at),
                                    words.begin() + static_cast<std::ptrdiff_t>(at + size - 1),
                                    [](std::byte b) { return b == std::byte{0}; });
      if (zero && words[at + size - 1] == std::byte{0x80}) words[at + size - 1] = std::byte{0};
    }
  }

  /// Row by row: what 1e-4 of the sum of squares comes to is added to eps.
  void off_squares(const NormArgs& args, NormOutputs& outputs) {
    backend_.norm(args, outputs);
    const std::size_t bytes = args.x.size() / static_cast<std::size_t>(std::max<std::int64_t>(args.rows, 1));
    for (std::size_t row = 0; row < static_cast<std::size_t>(args.rows); ++row) {
      const float root = outputs.rstd[row];
      NormSpec spec = args.spec;
      spec.eps += 1e-4f * (1 / (root * root) - spec.eps);
      const auto part = [&](std::span<const std::byte> all) {
        return all.empty() ? all : all.subspan(row * bytes, bytes);
      };
      NormOutputs one;
      backend_.norm({spec, args.contract, 1, part(args.x), part(args.z), args.weight}, one);
      std::memcpy(outputs.out.data() + row * bytes, one.out.data(), bytes);
      outputs.rstd[row] = one.rstd[0];
    }
  }

  Backend& backend_;
  const std::string_view name_;
  int calls_ = 0;
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

std::unique_ptr<Backend> make_mutant(Backend& backend, const Mutation& mutation) {
  return std::make_unique<Mutant>(backend, mutation);
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
