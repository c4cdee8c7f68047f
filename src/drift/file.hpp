// A sweep file as it was read, before its axes become cells. Private to drift.
#pragma once

#include <string>
#include <vector>

#include "file/json_reader.hpp"
#include "file/schema.hpp"
#include "gdnsim/drift.hpp"

namespace gdnsim {

using schema::kDriftSchema;

/// One value of an axis.
struct AxisValue {
  std::string name;
  Json set;           // null: nothing
  std::string trace;  // path; empty: none
  Extend extend = Extend::loop;
  int rows = 0;  // of the trace; 0: all
};
struct Axis {
  std::string name;
  std::vector<AxisValue> values;
};

struct SweepFile {
  DriftSweep sweep;  // all but its streams, cells, text and digest
  Json base;         // null: none
  std::vector<Axis> axes;
};
SweepFile read_sweep_file(const std::string& text, const std::string& where, const std::string& folder);
/// The contents of a file of at most 16 MiB.
std::string text_of_json_file(const std::string& path);

}  // namespace gdnsim
