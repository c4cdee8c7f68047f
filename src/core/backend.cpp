// Choosing a backend. The factories themselves live in golden/ and cuda/.
#include "gdnsim/backend.hpp"

#include "gdnsim/error.hpp"

namespace gdnsim {

namespace {

void keep(const Pool& pool, int layer, const Look& look, KeptBlock& kept) {
  kept.block = look.block;
  kept.digest = pool.digest(layer, look.block);
  kept.make_room(look.bytes, pool.model());
  if (look.bytes) pool.read(layer, look.block, kept.recurrent, kept.conv);
}

}  // namespace

void KeptBlock::make_room(bool bytes, const Model& model) {
  if (!bytes) {
    Bytes().swap(recurrent), Bytes().swap(conv);
    return;
  }
  recurrent.resize(model.state_bytes()), conv.resize(model.conv_bytes());
}

bool has_norm(const Stream& stream, int layer) {
  return stream.model().norm_eps && stream.has_z(layer) && !stream.params(layer).norm_weight.empty();
}

void Backend::steps(const WindowArgs& args, Pool& pool, std::span<WindowStep> steps) {
  GDNSIM_CHECK(steps.size() == args.plans.size() && args.inputs.size() == steps.size() &&
               args.looks.size() == steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const StepPlan& plan = args.plans[i];
    step({args.layer, plan, args.inputs[i], args.contracts.of(plan.path)}, pool, steps[i].outputs);
    steps[i].kept.resize(args.looks[i].size());
    for (std::size_t j = 0; j < steps[i].kept.size(); ++j) keep(pool, args.layer, args.looks[i][j], steps[i].kept[j]);
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
