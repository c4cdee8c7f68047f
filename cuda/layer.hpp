// One layer's parameters on the device.
#pragma once

#include "device.hpp"
#include "gdnsim/types.hpp"
#include "kernels.hpp"

namespace gdnsim::cuda {

struct Layer {
  Buffer A_log, dt_bias, conv_weight, conv_bias, norm_weight;
  bool bias, norm;

  Layer(const LayerParams& params, bool norm_) : bias(!params.conv_bias.empty()), norm(norm_) {
    A_log.upload(params.A_log);
    dt_bias.upload(params.dt_bias);
    conv_weight.upload(params.conv_weight);
    conv_bias.upload(params.conv_bias);
    norm_weight.upload(params.norm_weight);
  }

  ParamPointers pointers() const {
    return {A_log.as<float>(), dt_bias.as<float>(), conv_weight.data(), bias ? conv_bias.data() : nullptr,
            norm_weight.data()};
  }
};

}  // namespace gdnsim::cuda
