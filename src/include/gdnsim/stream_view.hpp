// A stream seen through another: everything is the whole's but what a subclass shows otherwise.
#pragma once

#include "gdnsim/stream.hpp"

namespace gdnsim {

class StreamView : public Stream {
 public:
  explicit StreamView(Stream& whole) : whole_(whole) {}
  const Model& model() const override { return whole_.model(); }
  int version() const override { return whole_.version(); }
  const LayerParams& params(int layer) const override { return whole_.params(layer); }
  std::int64_t steps() const override { return whole_.steps(); }
  int rows() const override { return whole_.rows(); }
  StepPlan plan(std::int64_t step) const override { return whole_.plan(step); }
  std::span<const Event> events() const override { return whole_.events(); }
  bool has_z(int layer) const override { return whole_.has_z(layer); }
  void inputs(std::int64_t step, int layer, StepInputs& out) override { whole_.inputs(step, layer, out); }
  void load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) override {
    whole_.load_row(source, recurrent, conv);
  }
  std::string source() override { return whole_.source(); }

 protected:
  Stream& whole_;
};

}  // namespace gdnsim
