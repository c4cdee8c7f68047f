// The names in a result file (docs/drift.md). The writer and the reader take them from here. Private to drift.
#pragma once

#include <cstdint>
#include <string_view>

#include "file/schema.hpp"
#include "gdnsim/drift.hpp"

namespace gdnsim {

using schema::kDriftFormat;
inline constexpr int kDriftVersion = 1;
inline constexpr std::int64_t kAbsent = -2;  // in /summary: the cell has no such layer

inline constexpr const char* kFirstChanges[] = {"first_output_change", "first_bf16_change"};
inline constexpr const char* kCrossings[] = {"crossing_state", "crossing_output"};
inline constexpr const char* kGrowthOf[] = {"state", "output"};

struct GrowthField {
  const char* name;
  float GrowthFit::*member;
  bool later = false;  // files of version 1 may lack it
};
inline constexpr GrowthField kGrowthFields[] = {
    {"level", &GrowthFit::level},       {"level_error", &GrowthFit::level_error},
    {"exponent", &GrowthFit::exponent}, {"exponent_error", &GrowthFit::exponent_error},
    {"rate", &GrowthFit::rate},         {"rate_error", &GrowthFit::rate_error},
    {"gain", &GrowthFit::gain},         {"gain_error", &GrowthFit::gain_error, true},
};

/// norm_relative; core_relative where there is no gated norm.
const std::vector<float>& output_of(const DriftMeasures& measures);

}  // namespace gdnsim
