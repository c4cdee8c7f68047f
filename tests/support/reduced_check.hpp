// One examination of golden, as small as it goes, and its gates by name.
#pragma once

#include <doctest/doctest.h>

#include <gdnsim/check.hpp>

#include <string>

namespace gdnsim::test {

inline CheckOptions reduced(const std::string& contract) {
  CheckOptions options;
  options.backend = "golden", options.on.threads = 1;
  options.contract = contract_preset(contract);
  options.shape = "small";
  options.reduced = true, options.kernel = "own";
  options.batteries = {Battery::L0, Battery::L1, Battery::L2, Battery::accuracy};
  return options;
}

inline const Gate& gate_of(const CheckReport& report, CheckStage stage, Battery battery, const std::string& name) {
  for (const Gate& gate : report.gates)
    if (gate.stage == stage && gate.battery == battery && gate.name == name) return gate;
  FAIL("no gate " << name);
  return report.gates.front();
}

}  // namespace gdnsim::test
