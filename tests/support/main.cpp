// The doctest program behind every C++ test. It keeps three honest exits: 0 every case that ran passed, 77 (skipped, to Meson)
// when every case that ran asked to be skipped, 1 for a failure and also when nothing ran at all.
#define DOCTEST_CONFIG_IMPLEMENT
#include "support/skip.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <set>
#include <string>

namespace {

constexpr int kSkippedExit = 77;
std::set<std::string> skipped_cases;
unsigned ran_cases = 0;

/// Remembers how many cases ran; the summary line itself is doctest's.
struct Counter : doctest::IReporter {
  explicit Counter(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override { ran_cases = stats.numTestCasesPassingFilters; }
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("counter", 1, Counter);

bool strict() {
  const char* ci = std::getenv("GDNSIM_CI");
  return ci != nullptr && std::strcmp(ci, "1") == 0;
}

}  // namespace

namespace gdnsim::test {

void skip(const std::string& reason) {
  if (strict() && reason != kNoGpu && reason != kOneGpu) FAIL("skipped where no skip is allowed (GDNSIM_CI=1): ", reason);
  const std::string name = doctest::getContextOptions()->currentTest->m_name;
  if (skipped_cases.insert(name).second) std::cout << "[skip] " << name << ": " << reason << std::endl;
}

}  // namespace gdnsim::test

// HDF5 itself loses memory when it refuses a damaged file; what we lose is still reported.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const int failed = context.run();
  if (failed != 0 || context.shouldExit()) return failed;
  if (ran_cases == 0) {
    std::cout << "no test case ran\n";
    return 1;
  }
  return skipped_cases.size() == ran_cases ? kSkippedExit : 0;
}
