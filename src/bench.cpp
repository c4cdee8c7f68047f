// What the benches of all backends measure: one shape, as engines run it.
#include "gdnsim/bench.hpp"

namespace gdnsim {

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
