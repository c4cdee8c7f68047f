// A user's own test, bisected.
#include "gdnsim/bisect.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

/// The steps strictly between `good` and `bad`, the middle first and then outwards.
std::int64_t from_middle(std::int64_t good, std::int64_t bad, std::int64_t i) {
  const std::int64_t middle = good + (bad - good) / 2, away = (i + 1) / 2;
  return i % 2 == 0 ? middle + away : middle - away;
}

}  // namespace

CheckResult bisect_check(std::int64_t first, std::int64_t last, const std::function<CheckOutcome(std::int64_t)>& test) {
  GDNSIM_CHECK(first < last);
  CheckResult result;
  const auto ask = [&](std::int64_t step) {
    ++result.tested;
    return test(step);
  };
  std::int64_t good = first - 1, bad = last;  // before the first step all is well
  // The last step that can be tested must be bad, or there is nothing to find.
  for (std::int64_t step = last - 1; step >= first && bad == last; --step) {
    const CheckOutcome outcome = ask(step);
    if (outcome == CheckOutcome::good) {
      result.last_good = step;
      return result;
    }
    if (outcome == CheckOutcome::bad) bad = step;
  }
  if (bad == last) return result;  // everything was skipped
  while (bad - good > 1) {
    bool told = false;
    for (std::int64_t i = 0; i < 2 * (bad - good) && !told; ++i) {
      const std::int64_t step = from_middle(good, bad, i);
      if (step <= good || step >= bad) continue;
      const CheckOutcome outcome = ask(step);
      told = outcome != CheckOutcome::skip;
      if (outcome == CheckOutcome::good) good = step;
      if (outcome == CheckOutcome::bad) bad = step;
    }
    if (!told) break;  // all between were skipped
  }
  result.first_bad = bad;
  result.last_good = good < first ? -1 : good;
  return result;
}

}  // namespace gdnsim
