// The first divergence that a replay reports, against one found by code that shares nothing with it: the second
// implementation runs the same trace under `golden`'s rules and looks for the first word that differs from the recording.
#include <doctest/doctest.h>

#include <gdnsim/replay.hpp>
#include <gdnsim/trace.hpp>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "support/second_step.hpp"
#include "support/skip.hpp"

using namespace gdnsim;

namespace {

struct Found {
  std::int64_t step;
  int layer;
  Tap tap;
  std::int64_t row, block, head, element;
  std::uint32_t got, want;
};

std::uint32_t word(const Bytes& bytes, std::size_t i, std::size_t width) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data() + i * width, width);
  return value;
}

/// Distance between two finite words, counted by walking the sign-magnitude line.
std::uint64_t ulps(std::uint32_t a, std::uint32_t b, std::size_t width) {
  const std::uint32_t sign = width == 4 ? 0x80000000u : 0x8000u;
  const auto line = [&](std::uint32_t w) {
    return (w & sign) ? -static_cast<std::int64_t>(w & ~sign) - 1 : static_cast<std::int64_t>(w);
  };
  return static_cast<std::uint64_t>(std::llabs(line(a) - line(b)));
}

std::optional<std::size_t> first_word(const Bytes& a, const Bytes& b, std::size_t width) {
  for (std::size_t i = 0; i < a.size() / width; ++i)
    if (word(a, i, width) != word(b, i, width)) return i;
  return std::nullopt;
}

void apply_events(Trace& trace, std::int64_t step, int layer, std::vector<second::Block>& blocks) {
  for (const Event& event : trace.events()) {
    if (event.step != step || (event.layer >= 0 && event.layer != layer)) continue;
    second::Block& block = blocks.at(static_cast<std::size_t>(event.block));
    if (event.kind == EventKind::load)
      trace.load_row(event.source, block.recurrent, block.conv);
    else
      REQUIRE(event.kind == EventKind::free);  // the samples hold nothing else
  }
}

std::optional<Found> in_tap(Trace& trace, std::int64_t step, int layer, Tap tap, const Bytes& got) {
  const Model& model = trace.model();
  Bytes want;
  trace.read_tap(tap, step, layer, want);
  const std::size_t width = size_of(model.act_dtype);
  const auto at = first_word(got, want, width);
  if (!at) return std::nullopt;
  const std::int64_t per_row = tap == Tap::conv_out ? model.dim() : model.HV * model.V,
                     i = static_cast<std::int64_t>(*at);
  const std::int64_t row = i / per_row, inside = i % per_row, V = model.V;
  const bool conv = tap == Tap::conv_out;
  return Found{step,
               layer,
               tap,
               row,
               trace.plan(step).block[static_cast<std::size_t>(row)],
               conv ? -1 : inside / V,
               conv ? inside : inside % V,
               word(got, *at, width),
               word(want, *at, width)};
}

/// First difference among the snapshots of a step: conv states of all, then recurrent states of all, by row.
std::optional<Found> in_snapshots(Trace& trace, std::int64_t step, int layer, const std::vector<second::Block>& blocks,
                                  bool recurrent) {
  const Model& model = trace.model();
  const std::size_t width = size_of(recurrent ? model.state_dtype : model.conv_state_dtype);
  std::optional<Found> best;
  for (const Snapshot& s : trace.snapshots()) {
    if (s.step != step || s.layer != layer) continue;
    second::Block want;
    trace.read_snapshot(s, want.recurrent, want.conv);
    const second::Block& got = blocks.at(static_cast<std::size_t>(s.block));
    const Bytes &x = recurrent ? got.recurrent : got.conv, &y = recurrent ? want.recurrent : want.conv;
    const auto at = first_word(x, y, width);
    if (!at) continue;
    const auto& plan = trace.plan(step);
    std::int64_t row = -1;
    for (std::size_t r = 0; r < plan.block.size(); ++r)
      if (plan.block[r] == s.block) row = static_cast<std::int64_t>(r);
    const std::int64_t head_size = 1LL * model.V * model.K, i = static_cast<std::int64_t>(*at);
    const Found found{step,
                      layer,
                      recurrent ? Tap::state : Tap::conv_state,
                      row,
                      s.block,
                      recurrent ? i / head_size : -1,
                      recurrent ? i % head_size : i,
                      word(x, *at, width),
                      word(y, *at, width)};
    if (!best || (found.row >= 0 && (best->row < 0 || found.row < best->row))) best = found;  // blocks of no row last
  }
  return best;
}

/// The first difference in execution order: steps, then layers, then conv_out, conv_state, state, core_out, norm_out.
std::optional<Found> search(Trace& trace) {
  std::vector<std::vector<second::Block>> pools(static_cast<std::size_t>(trace.model().layers()));
  for (auto& pool : pools)
    pool.assign(static_cast<std::size_t>(trace.model().num_blocks),
                {Bytes(trace.model().state_bytes()), Bytes(trace.model().conv_bytes())});
  StepInputs inputs;
  for (std::int64_t t = 0; t < trace.steps(); ++t)
    for (int layer = 0; layer < trace.model().layers(); ++layer) {
      auto& blocks = pools[static_cast<std::size_t>(layer)];
      apply_events(trace, t, layer, blocks);
      trace.inputs(t, layer, inputs);
      const second::Taps got =
          second::step(trace.model(), trace.params(layer), second::Rules::golden, trace.plan(t), inputs, blocks);
      if (auto found = in_tap(trace, t, layer, Tap::conv_out, got[Tap::conv_out])) return found;
      if (auto found = in_snapshots(trace, t, layer, blocks, false)) return found;
      if (auto found = in_snapshots(trace, t, layer, blocks, true)) return found;
      if (auto found = in_tap(trace, t, layer, Tap::core_out, got[Tap::core_out])) return found;
      if (auto found = in_tap(trace, t, layer, Tap::norm_out, got[Tap::norm_out])) return found;
    }
  return std::nullopt;
}

void check_sample(const std::string& path) {
  CAPTURE(path);
  const auto trace = open_trace(path);
  const std::optional<Found> expected = search(*trace);
  REQUIRE(expected.has_value());
  const auto backend = make_golden({});
  ReplayOptions options;
  options.contracts = contract_set("golden");
  const ReplayResult result = replay(*trace, *trace, *backend, options);
  CHECK(result.verdict == Verdict::diverged);
  REQUIRE(result.first().has_value());
  const Divergence& first = *result.first();
  CHECK(first.step == expected->step);
  CHECK(first.layer == expected->layer);
  CHECK(name_of(first.tap) == name_of(expected->tap));
  CHECK(first.row == expected->row);
  CHECK(first.block == expected->block);
  CHECK(first.head == expected->head);
  CHECK(first.element == expected->element);
  if (first.row >= 0) CHECK(first.sequence == trace->plan(first.step).sequence[static_cast<std::size_t>(first.row)]);
  CHECK(first.got == expected->got);
  CHECK(first.want == expected->want);
  CHECK(first.ulp == ulps(expected->got, expected->want, size_of(first.type)));
}

int check_folder(const std::filesystem::path& folder) {
  int checked = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".h5" || !open_trace(entry.path().string())->has_recording()) continue;
    check_sample(entry.path().string());
    ++checked;
  }
  return checked;
}

}  // namespace

TEST_CASE("first divergence: every sample under golden, the place and the bits found independently") {
  const char* folder = std::getenv("GDNSIM_TRACES");
  REQUIRE(folder != nullptr);
  CHECK(check_folder(folder) >= 5);
}

TEST_CASE("first divergence: the same for the traces in GDNSIM_EXTRA_DATA") {
  const char* folder = std::getenv("GDNSIM_EXTRA_DATA");
  if (folder == nullptr) GDNSIM_SKIP("GDNSIM_EXTRA_DATA is not set");
  CHECK(check_folder(std::filesystem::path(folder) / "traces") >= 1);
}
