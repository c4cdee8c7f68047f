#include "support/mutation_sample.hpp"

#include <doctest/doctest.h>

#include <gdnsim/trace.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace gdnsim::test {

Sample::Sample(const std::string& file) : name(std::filesystem::path(file).stem().string()) {
  const auto trace = open_trace(file);
  stream = std::make_unique<MemoryStream>(*trace);
  recording = std::make_unique<MemoryRecording>(*trace);
  using second::Rules;
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  const auto are = [&](const char* words, Rules decode, Rules mixed) {
    contracts = load_contracts(words);
    second = std::make_unique<SecondRun>(*stream, *recording, decode, mixed);
  };
  if (has("vllm"))  // of each step it says which kernel it took
    are("triton-sm90+triton-sm90-mixed-gating", Rules::triton_sm90, Rules::triton_sm90_mixed_gating);
  else if (has("golden"))
    are("golden", Rules::golden, Rules::golden);
  else if (has("mixed"))
    are("triton-sm90-mixed", Rules::triton_sm90_mixed, Rules::triton_sm90_mixed);
  else
    are("triton-sm90", Rules::triton_sm90, Rules::triton_sm90);
}

std::vector<Sample> load_samples(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".h5" && open_trace(entry.path().string())->has_recording())
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Sample> samples;
  for (const auto& file : files) samples.emplace_back(file.string());
  return samples;
}

std::vector<Sample>& samples() {
  static std::vector<Sample> all = [] {
    const char* folder = std::getenv("GDNSIM_TRACES");
    REQUIRE(folder != nullptr);
    return load_samples(folder);
  }();
  return all;
}

std::vector<Sample>& samples_of_version_2() {
  static std::vector<Sample> all = [] {
    const char* folder = std::getenv("GDNSIM_TRACES");
    REQUIRE(folder != nullptr);
    return load_samples((std::filesystem::path(folder) / "version2").string());
  }();
  return all;
}

Sample& pick(Random& random, std::vector<Sample>& from) {
  Sample* smallest = &from[random.below(from.size())];
  for (int i = 0; i < 2; ++i)
    if (Sample& other = from[random.below(from.size())];
        other.stream->model().state_bytes() < smallest->stream->model().state_bytes())
      smallest = &other;
  return *smallest;
}

namespace {

std::uint64_t ulps(DType type, std::uint32_t a, std::uint32_t b) {
  const std::uint32_t sign = type == DType::f32 ? 0x80000000u : 0x8000u;
  const auto line = [&](std::uint32_t w) {
    return (w & sign) != 0 ? -static_cast<std::int64_t>(w & ~sign) - 1 : static_cast<std::int64_t>(w);
  };
  return static_cast<std::uint64_t>(std::llabs(line(a) - line(b)));
}

bool is_foreign(DType type, std::uint32_t word) {
  const std::uint32_t infinity = type == DType::f32 ? 0x7F800000u : type == DType::bf16 ? 0x7F80u : 0x7C00u;
  const std::uint32_t sign = type == DType::f32 ? 0x80000000u : 0x8000u;
  return (word & ~sign) > infinity && word != (type == DType::f32 ? 0x7FFFFFFFu : 0x7FFFu);
}

/// The classes that two words can be of: one, but for finite numbers that are far apart, where the values around decide.
std::string classes_of(Tap tap, DType type, std::uint32_t a, std::uint32_t b) {
  const std::uint32_t sign = type == DType::f32 ? 0x80000000u : 0x8000u;
  const std::uint32_t infinity = type == DType::f32 ? 0x7F800000u : type == DType::bf16 ? 0x7F80u : 0x7C00u;
  const std::uint64_t near = type == DType::f32 ? 4096 : type == DType::f16 ? 32 : 16;
  const std::uint32_t x = a & ~sign, y = b & ~sign;
  if (tap != Tap::conv_state && (is_foreign(type, a) || is_foreign(type, b))) return "poison";
  if (x > infinity && y > infinity) return "nan-payload";
  if (x > infinity || y > infinity) return "nan";
  if (x == infinity || y == infinity) return "inf";
  if (x == 0 && y == 0) return "signed-zero";
  return (a & sign) == (b & sign) && ulps(type, a, b) <= near ? "rounding" : "rounding or value";
}

}  // namespace

std::string wrong_place(const std::string& what, const std::optional<Divergence>& found, const Change& expected,
                        const Stream& stream) {
  if (!found) return what + ": nothing found";
  std::ostringstream wrong;
  const auto check = [&](const char* field, auto is, auto should_be) {
    if (is != should_be) wrong << what << ": " << field << " is " << is << ", not " << should_be << "; ";
  };
  const DType type = layout_of(expected.tap, stream.model()).type;
  const StepPlan plan = stream.plan(expected.step);
  check("step", found->step, expected.step);
  check("layer", found->layer, expected.layer);
  check("layer id", found->layer_id, stream.model().layer_ids[static_cast<std::size_t>(expected.layer)]);
  check("tap", name_of(found->tap), name_of(expected.tap));
  check("row", found->row, expected.row);
  check("block", found->block, expected.block);
  check("sequence", found->sequence, expected.row < 0 ? -1 : plan.sequence[static_cast<std::size_t>(expected.row)]);
  check("head", found->head, expected.head);
  check("element", found->element, expected.element);
  check("got", found->got, expected.ours);
  check("want", found->want, expected.recorded);
  const std::string classes = classes_of(expected.tap, type, expected.ours, expected.recorded);
  check("class", classes.find(name_of(found->kind)) != std::string::npos ? classes : std::string(name_of(found->kind)),
        classes);
  if (classes != "nan" && classes != "nan-payload" && classes != "poison")
    check("ulp", found->ulp.value_or(0), ulps(type, expected.ours, expected.recorded));
  return wrong.str();
}

std::string wrong(const ReplayResult& result, const std::vector<Change>& changes, const Stream& stream) {
  if (result.verdict != Verdict::diverged) return "verdict " + std::string(name_of(result.verdict));
  std::string text = wrong_place("first", result.first(), changes.front(), stream) +
                     wrong_place("carried", result.carried.first, changes.front(), stream) +
                     wrong_place("local", result.local.first, changes.front(), stream);
  for (std::size_t t = 0; t < kTaps; ++t) {
    const Tap tap = static_cast<Tap>(t);
    const auto of_tap = [&](const Change& change) { return change.tap == tap; };
    const auto first = std::find_if(changes.begin(), changes.end(), of_tap);
    const auto count = static_cast<std::uint64_t>(std::count_if(changes.begin(), changes.end(), of_tap));
    if (result.carried.counts[t].differing != count)  // our own state goes on untouched
      text += std::string(name_of(tap)) + ": " + std::to_string(result.carried.counts[t].differing) + " differ, not " +
              std::to_string(count) + "; ";
    if (result.local.counts[t].differing < count) text += std::string(name_of(tap)) + ": fewer in local; ";
    if (first != changes.end()) text += wrong_place("first of its tap", result.carried.firsts[t], *first, stream);
  }
  return text;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(lines.size(), 10); ++i) text += lines[i] + "\n";
  return text;
}

}  // namespace gdnsim::test
