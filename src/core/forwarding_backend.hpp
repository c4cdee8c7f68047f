// A backend that hands everything to another: for those that change or watch one thing and leave the rest. A window
// goes step by step, so that nothing passes by who overrides `step`.
#pragma once

#include <utility>

#include "gdnsim/backend.hpp"
#include "gdnsim/norm.hpp"

namespace gdnsim {

class ForwardingBackend : public Backend {
 public:
  /// `backend` must outlive it.
  explicit ForwardingBackend(Backend& backend) : backend_(backend) {}
  std::string name() const override { return backend_.name(); }
  std::string description() const override { return backend_.description(); }
  std::string refuses(const Contract& contract) const override { return backend_.refuses(contract); }
  std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) override {
    return backend_.make_pool(model, std::move(layers));
  }
  void prepare(const Stream& stream, const std::vector<int>& layers) override { backend_.prepare(stream, layers); }
  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override { backend_.step(args, pool, outputs); }
  void norm(const NormArgs& args, NormOutputs& outputs) override { backend_.norm(args, outputs); }
  double memory_rate() override { return backend_.memory_rate(); }

 protected:
  Backend& backend_;
};

}  // namespace gdnsim
