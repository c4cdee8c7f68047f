// Gates outside their domain: what a recording says of g and decay against what they can be.
#include "gdnsim/gates.hpp"

#include <cstring>
#include <sstream>

#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;

/// What is wrong with one tap.
class Domain {
 public:
  explicit Domain(Tap tap) : tap_(tap) {}
  Tap tap() const { return tap_; }

  /// One layer of one step: f32 [B, HV].
  void look(const StepPlan& plan, int layer, const Bytes& values, std::int64_t HV) {
    for (std::size_t row = 0; row < plan.block.size(); ++row) {
      if (plan.block[row] < 0) continue;
      for (std::int64_t head = 0; head < HV; ++head) {
        float value;
        std::memcpy(&value, values.data() + 4 * (row * static_cast<std::size_t>(HV) + static_cast<std::size_t>(head)),
                    4);
        if (!outside(value)) continue;
        if (count_++ == 0) first_ = place(plan, layer, row, head, value);
      }
    }
  }

  void report(std::vector<std::string>& lines) const {
    if (count_ > 0) lines.push_back(first_ + " (" + std::to_string(count_) + (count_ == 1 ? " value)" : " values)"));
  }

 private:
  bool outside(float value) const { return tap_ == Tap::g ? value > 0 : value < 0 || value > 1; }

  std::string place(const StepPlan& plan, int layer, std::size_t row, std::int64_t head, float value) const {
    std::ostringstream text;
    text.precision(9);
    text << "recorded " << name_of(tap_) << " of step " << plan.step << ", layer " << layer << ", row " << row
         << ", head " << head << ": expected " << (tap_ == Tap::g ? "a log gate, at most 0" : "a factor in 0..1")
         << ", found " << value;
    return text.str();
  }

  const Tap tap_;
  std::int64_t count_ = 0;
  std::string first_;
};

void look_at(Trace& trace, Domain& domain) {
  const std::int64_t HV = trace.model().HV, step_bytes = 4 * HV * trace.rows();
  std::int64_t left = kMostBytes;
  Bytes values;
  for (std::int64_t step = 0; step < trace.steps(); ++step) {
    const StepPlan plan = trace.plan(step);
    if (plan.path == Path::opaque) continue;
    for (int layer = 0; layer < trace.model().layers(); ++layer) {
      if (!trace.taps(layer).has(domain.tap())) continue;
      if ((left -= step_bytes) < 0) return;
      trace.read_tap(domain.tap(), step, layer, values);
      domain.look(plan, layer, values, HV);
    }
  }
}

}  // namespace

std::vector<std::string> gate_warnings(Trace& trace) {
  std::vector<std::string> lines;
  for (const Tap tap : {Tap::g, Tap::decay}) {
    Domain domain(tap);
    try {
      look_at(trace, domain);
    } catch (const Error&) {  // whoever compares these values meets it again, and says so
    }
    domain.report(lines);
  }
  return lines;
}

}  // namespace gdnsim
