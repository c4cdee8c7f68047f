// The recorded samples in memory, and what a replay of a mutated one has to report.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gdnsim/contract.hpp>
#include <gdnsim/replay.hpp>

#include "support/mutation.hpp"
#include "support/second_run.hpp"

namespace gdnsim::test {

/// A recorded trace in memory. Those of the kernel that serves mixed steps have "mixed" in their names, golden's own "golden".
struct Sample {
  explicit Sample(const std::string& file);
  std::string name;
  std::unique_ptr<MemoryStream> stream;
  std::unique_ptr<MemoryRecording> recording;
  ContractSet contracts;
  std::unique_ptr<SecondRun> second;
};

/// Every recorded trace in a folder, by name.
std::vector<Sample> load_samples(const std::string& folder);
/// Those of GDNSIM_TRACES, loaded once.
std::vector<Sample>& samples();
/// Those of its folder version2: launches of several candidates.
std::vector<Sample>& samples_of_version_2();
/// Any sample, the small ones more often than the large.
Sample& pick(Random& random, std::vector<Sample>& from);

/// Does the divergence have this place and these words? Else what is wrong, in one line.
std::string wrong_place(const std::string& what, const std::optional<Divergence>& found, const Change& expected,
                        const Stream& stream);
/// What is wrong with the result for a recording with these changes, sorted; empty when all is as it must be.
std::string wrong(const ReplayResult& result, const std::vector<Change>& changes, const Stream& stream);
/// Lines for a test's message, the first ten.
std::string joined(const std::vector<std::string>& lines);

}  // namespace gdnsim::test
