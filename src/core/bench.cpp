// What the benches of all backends measure: one shape, as engines run it.
#include "gdnsim/bench.hpp"

#include <algorithm>

namespace gdnsim {
namespace {

bool among(const std::vector<std::string>& names, std::string_view name) {
  return names.empty() || std::ranges::find(names, name) != names.end();
}

}  // namespace

bool BenchOptions::wants_stage(std::string_view name) const { return among(stages, name); }
bool BenchOptions::wants_variant(std::string_view name) const { return among(variants, name); }
bool BenchOptions::wants_contract(std::string_view name) const { return among(contracts, name); }

Model bench_model(int rows, DType state) {
  Model model;
  model.H = 16, model.HV = 32, model.K = model.V = 128, model.W = 4;
  model.scale = 0.088388346f;  // 1 / sqrt(128)
  model.state_dtype = state;
  model.num_blocks = rows + 1;  // block 0 marks an inactive row
  model.norm_eps = 1e-6f;
  model.layer_ids = {0};
  return model;
}

std::string bench_shape(const Model& model, int rows) {
  return "B=" + std::to_string(rows) + " H=" + std::to_string(model.H) + " HV=" + std::to_string(model.HV) +
         " K=V=" + std::to_string(model.K) + " " + std::string(name_of(model.state_dtype));
}

}  // namespace gdnsim
