// A mechanism: why two runs part ways, where it holds, and what proves it. Ids and their meaning: docs/mechanisms.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gdnsim {

/// Where a mechanism holds. -1: everywhere, or it does not apply. Steps are inclusive: from_step = to_step is one step.
struct Scope {
  std::int64_t from_step = -1, to_step = -1;
  int layer = -1;  // position
  int row = -1;
  std::int32_t block = -1;
  std::int64_t head = -1;
  bool operator==(const Scope&) const = default;
};

/// How a mechanism was established.
enum class Proof : std::uint8_t {
  rerun,    // a re-run under the hypothesis gives the recorded bits
  fact,     // a property of the recorded bits themselves, without a tolerance ("two repeats of a step differ")
  pattern,  // how the differences are spread; no re-run gives the bits (algorithm-order, unexplained)
};
std::string_view name_of(Proof proof);

struct Mechanism {
  std::string id;  // "wrong-block"
  Scope scope;
  std::string says;      // one sentence with the place: "step 5, layer 1, row 0 read the state of block 2"
  std::string evidence;  // what was re-run and what agrees, with figures
  Proof proof = Proof::rerun;
};

}  // namespace gdnsim
