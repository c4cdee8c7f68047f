// Choosing a backend. The factories themselves live in golden/ and cuda/.
#include "gdnsim/backend.hpp"

#include "gdnsim/error.hpp"

namespace gdnsim {

namespace {

KeptBlock keep(const Pool& pool, int layer, const Look& look) {
  KeptBlock kept{look.block, pool.digest(layer, look.block), {}, {}};
  if (!look.bytes) return kept;
  kept.recurrent.resize(pool.model().state_bytes());
  kept.conv.resize(pool.model().conv_bytes());
  pool.read(layer, look.block, kept.recurrent, kept.conv);
  return kept;
}

}  // namespace

bool has_norm(const Stream& stream, int layer) {
  return stream.model().norm_eps && stream.has_z(layer) && !stream.params(layer).norm_weight.empty();
}

void Backend::steps(const WindowArgs& args, Pool& pool, std::span<WindowStep> steps) {
  GDNSIM_CHECK(steps.size() == args.plans.size() && args.inputs.size() == steps.size() &&
               args.looks.size() == steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const StepPlan& plan = args.plans[i];
    step({args.layer, plan, args.inputs[i], args.contracts.of(plan.path)}, pool, steps[i].outputs);
    steps[i].kept.clear();
    for (const Look& look : args.looks[i]) steps[i].kept.push_back(keep(pool, args.layer, look));
  }
}

std::vector<BackendInfo> list_backends(const BackendOptions& options) {
  std::vector<BackendInfo> result{{"golden", true, make_golden(options)->description()}};
  try {
    result.push_back({"cuda", true, make_cuda(options)->description()});
  } catch (const Error& reason) {
    result.push_back({"cuda", false, reason.what()});
  }
  return result;
}

ChosenBackend choose_auto(const std::function<std::unique_ptr<Backend>()>& cuda, const BackendOptions& options) {
  try {
    auto backend = cuda();
    for (const Contract& preset : contract_presets())
      if (const std::string reason = backend->refuses(preset); !reason.empty()) throw Error(reason);
    return {std::move(backend), "cuda, because it can be used here"};
  } catch (const Error& reason) {
    return {make_golden(options), std::string("golden, because ") + reason.what()};
  }
}

ChosenBackend choose_backend(const std::string& name, const BackendOptions& options) {
  if (name == "golden") return {make_golden(options), "golden, as asked"};
  if (name == "cuda") return {make_cuda(options), "cuda, as asked"};
  if (name != "auto") throw error("backend: expected auto, golden or cuda, found '", name, "'");
  return choose_auto([&] { return make_cuda(options); }, options);
}

}  // namespace gdnsim
