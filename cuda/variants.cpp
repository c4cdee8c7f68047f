#include "variants.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "gdnsim/check.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim::cuda {
namespace {

/// `contract` with what the norm alone reads, or what nothing reads, taken from `preset`.
Contract like_in_norm(Contract contract, const Contract& preset) {
  contract.name = preset.name;
  contract.shapes = preset.shapes;
  contract.norm = preset.norm;
  contract.rstd = preset.rstd;
  contract.norm_dot = preset.norm_dot;
  contract.multiprocessors = preset.multiprocessors;
  return contract;
}

bool among(int value, std::initializer_list<int> values) { return std::ranges::find(values, value) != values.end(); }

std::string never(const Contract&, const Model&) { return ""; }

std::string fused_refuses(const Contract& contract, const Model& model) {
  std::ostringstream why;
  if (step_preset(contract) == Preset::other)
    why << "contract '" << contract.name << "'; it has golden, triton-sm90 and triton-sm90-mixed";
  else if (model.act_dtype != DType::bf16)
    why << "activations of " << name_of(model.act_dtype) << "; it has bf16";
  else if (model.state_dtype == DType::f16)
    why << "a state of f16; it has f32 and bf16";
  else if (model.conv_state_dtype == DType::f16)
    why << "a conv state of f16; it has f32 and bf16";
  else if (!among(model.K, {32, 64, 128, 256}))
    why << "K " << model.K << "; it has 32, 64, 128 and 256";
  else if (!among(model.V, {32, 64, 128, 256}))
    why << "V " << model.V << "; it has 32, 64, 128 and 256";
  else if (model.conv_state_dtype == DType::f32 && model.K != 128)
    why << "a conv state of f32 with K " << model.K << "; it has bf16 there";
  else if (model.W > 5)
    why << "W " << model.W << "; it has 2 to 5";
  return why.str();
}

std::string streamed_refuses(const Contract& contract, const Model& model) {
  if (std::string why = fused_refuses(contract, model); !why.empty()) return why;
  if (model.K != 128) return "K " + std::to_string(model.K) + "; it has 128";
  return "";
}

constexpr std::array kTable{
    Variant{"plain", "one kernel a stage, any contract, any shape", never},
    Variant{"fused", "conv, norms, gates and recurrence in one launch", fused_refuses},
    Variant{"streamed", "the same in two launches, the state through registers; from sm_90 on", streamed_refuses},
    Variant{"resident", "many known steps a launch, the state in registers; single steps as fused", fused_refuses},
};

}  // namespace

Preset step_preset(const Contract& contract) {
  const auto is = [&](const char* name) {
    const Contract& preset = contract_preset(name);
    return like_in_norm(contract, preset) == preset;
  };
  if (is("golden")) return Preset::golden;
  if (is("triton-sm90")) return Preset::triton;
  return is("triton-sm90-mixed") ? Preset::triton_mixed : Preset::other;
}

Preset norm_preset(const Contract& c) {
  const auto functions_of = [&](const Contract& preset) {
    return c.exp == preset.exp && c.div == preset.div && c.sqrt == preset.sqrt && c.negate == preset.negate &&
           c.norm == preset.norm;
  };
  const Contract &golden = contract_preset("golden"), &triton = contract_preset("triton-sm90");
  if (functions_of(golden) && c.norm_dot == golden.norm_dot && c.rstd == golden.rstd) return Preset::golden;
  Dot lanes = c.norm_dot;
  if (lanes.lane == Lane::by_rows) lanes.lane = triton.norm_dot.lane;
  return functions_of(triton) && lanes == triton.norm_dot ? Preset::triton : Preset::other;
}

std::string fast_norm_refuses(const Contract& contract, const Model& model) {
  std::ostringstream why;
  if (norm_preset(contract) == Preset::other)
    why << "the norm of contract '" << contract.name << "'; it has those of golden and of Triton";
  else if (model.act_dtype != DType::bf16)
    why << "activations of " << name_of(model.act_dtype) << "; it has bf16";
  else if (!among(model.V, {32, 64, 128, 256}))
    why << "V " << model.V << "; it has 32, 64, 128 and 256";
  else if (contract.norm_dot.lane == Lane::by_rows && model.V != 128)
    why << "lanes by rows with V " << model.V << "; it has 128";
  return why.str();
}

std::span<const Variant> variants() { return kTable; }

const Variant& variant(std::string_view name) {
  std::string names;
  for (const Variant& each : kTable) {
    if (each.name == name) return each;
    names += (names.empty() ? "" : ", ") + std::string(each.name);
  }
  throw error("cuda: variant: expected ", names, "; found '", name, "'");
}

}  // namespace gdnsim::cuda

std::vector<std::string> gdnsim::cuda_kernels() {
  std::vector<std::string> names;
  for (const cuda::Variant& each : cuda::variants()) names.emplace_back(each.name);
  return names;
}

std::unique_ptr<gdnsim::Backend> gdnsim::make_cuda_kernel(const BackendOptions& options, const std::string& name) {
  return cuda::make_variant(options, name, options.poison);
}
