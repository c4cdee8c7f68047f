// Mutation test of replay itself: random words of recorded taps and states are changed as they are read, and every change must be
// reported at its exact place, each time.
#include <doctest/doctest.h>

#include <gdnsim/replay.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>

#include "support/mutation_sample.hpp"
#include "support/skip.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

enum class Extent { needed, whole, automatic };  // layer and steps needed; everything; also without a contract

ReplayOptions options_for(const Sample& sample, Extent extent, const std::vector<Change>& changes) {
  ReplayOptions options;
  if (extent != Extent::automatic) options.contracts = sample.contracts;
  if (extent != Extent::needed) return options;
  options.slice.layers = {changes.front().layer};
  options.slice.last_step = changes.back().step + 1;
  return options;
}

/// A swap can take the last words by which two presets differ. The choice then has to say that it is none.
bool left_open(const ContractChoice& choice, const ContractSet& right) {
  const auto is_right = [&](const ContractSet& tie) { return contract_name(tie) == contract_name(right); };
  return std::any_of(choice.ties.begin(), choice.ties.end(), is_right) &&
         choice.chosen_by.find("do not tell it from") != std::string::npos;
}

struct Tally {
  int mutations = 0, found = 0, whole = 0, automatic = 0, left_open = 0;
  std::map<std::string, int> kinds;
};

/// What the replay is given in place of the mutated recording: itself, or one with a blind spot.
using Lens = std::function<Recording&(MutatedRecording&)>;

/// One mutation, drawn again until a compared bit changes.
void mutate_and_replay(Random& random, Sample& sample, Extent extent, Backend& backend, Tally& tally,
                       std::vector<std::string>& failures, const Lens& lens) {
  std::vector<Change> changes;
  std::string kind;
  std::optional<MutatedRecording> mutated;
  while (changes.empty()) {
    mutated.emplace(*sample.recording);
    kind = mutate_recording(random, *mutated);
    changes = changes_of(*mutated);
  }
  Recording& seen = lens(*mutated);
  ReplayResult result = replay(*sample.stream, seen, backend, options_for(sample, extent, changes));
  if (extent == Extent::automatic && left_open(result.contract, sample.contracts)) {
    ++tally.left_open;
    result = replay(*sample.stream, seen, backend, options_for(sample, Extent::whole, changes));
  }
  std::string text = wrong(result, changes, *sample.stream);
  if (contract_name(result.contract.contracts) != contract_name(sample.contracts))
    text += "chose " + contract_name(result.contract.contracts) + ": " + result.contract.chosen_by;
  ++tally.mutations;
  tally.found += text.empty();
  tally.whole += extent != Extent::needed;
  tally.automatic += extent == Extent::automatic;
  ++tally.kinds[kind];
  if (!text.empty()) failures.push_back(sample.name + ", " + kind + ": " + text);
}

Tally mutate_recordings(std::vector<Sample>& from, std::uint64_t seed, int count, std::vector<std::string>& failures,
                        const Lens& lens) {
  Random random(seed);
  const auto backend = make_golden({.threads = 1});
  Tally tally;
  for (int i = 0; i < count; ++i) {
    const Extent extent = i % 10 == 0 ? Extent::automatic : i % 20 == 5 ? Extent::whole : Extent::needed;
    mutate_and_replay(random, pick(random, from), extent, *backend, tally, failures, lens);
  }
  return tally;
}

Recording& as_it_is(MutatedRecording& recording) { return recording; }

void report(const Tally& tally) {
  std::ostringstream text;
  text << tally.found << " of " << tally.mutations << " found; " << tally.whole << " on the whole file, of these "
       << tally.automatic << " without a contract (left open by the bits: " << tally.left_open << ")";
  for (const auto& [kind, count] : tally.kinds) text << "; " << kind << ": " << count;
  MESSAGE(text.str());
}

}  // namespace

TEST_CASE("mutation: the samples match before anything is changed, under both implementations") {
  const auto backend = make_golden({.threads = 1});
  CHECK(samples().size() >= 6);
  for (Sample& sample : samples()) {
    CAPTURE(sample.name);
    MutatedRecording recording(*sample.recording);
    MutatedStream stream(*sample.stream);
    CHECK(replay(stream, recording, *backend, {}).verdict == Verdict::match);
    CHECK(sample.second->differing() == 0);
    CHECK(changes_of(recording).empty());
  }
}

TEST_CASE("mutation: 1,000 of 1,000 in recorded taps and states are found at their exact place") {
  std::vector<std::string> failures;
  const Tally tally = mutate_recordings(samples(), 20240607, 1000, failures, as_it_is);
  report(tally);
  CHECK_MESSAGE(failures.empty(), joined(failures));
  CHECK(tally.found == 1000);
  CHECK(tally.automatic - tally.left_open >= 95);
  CHECK(tally.kinds.size() == 7);
}

TEST_CASE("mutation: 200 of 200 in a recording of launches of several candidates") {
  for (Sample& sample : samples_of_version_2()) CHECK(sample.second->differing() == 0);
  std::vector<std::string> failures;
  const Tally tally = mutate_recordings(samples_of_version_2(), 5, 200, failures, as_it_is);
  report(tally);
  CHECK_MESSAGE(failures.empty(), joined(failures));
  CHECK(tally.found == 200);
  CHECK(tally.kinds.size() == 7);
}

TEST_CASE("mutation: where a swap takes the last words by which presets differ, the choice is said to be open") {
  Sample* sample = nullptr;
  for (Sample& each : samples())
    if (each.name == "h200_tp4_mixed") sample = &each;  // its states after one step alone tell the mixed kernel
  REQUIRE(sample != nullptr);
  const auto backend = make_golden({.threads = 1});
  const std::int64_t count = static_cast<std::int64_t>(sample->recording->all_snapshots.size());
  int open = 0;
  for (std::int64_t a = 0; a < count; ++a)
    for (std::int64_t b = a + 1; b < count; ++b) {
      MutatedRecording mutated(*sample->recording);
      std::swap(mutated.block_words(a).first, mutated.block_words(b).first);
      const ReplayResult result = replay(*sample->stream, mutated, *backend, {});
      const bool is_open = left_open(result.contract, sample->contracts);
      open += is_open;
      if (!is_open) CHECK(wrong(result, changes_of(mutated), *sample->stream) == "");
      CHECK(result.verdict == Verdict::diverged);
    }
  CHECK(open > 0);
  CHECK(open < count * (count - 1) / 2);
}

namespace {

/// Hides a mutation: what a comparer that skips one row of core_out, or the conv states, would see.
class BlindSpot final : public Recording {
 public:
  enum class Where { a_row, conv_states, a_head };
  BlindSpot(MutatedRecording& recording, Where where) : seen_(recording), where_(where) {}
  std::string path() const override { return seen_.path(); }
  const Model& model() const override { return seen_.model(); }
  std::int64_t steps() const override { return seen_.steps(); }
  int rows() const override { return seen_.rows(); }
  StepPlan plan(std::int64_t step) const override { return seen_.plan(step); }
  TapSet taps(int layer) const override { return seen_.taps(layer); }
  std::span<const Snapshot> snapshots() const override { return seen_.snapshots(); }
  void read_tap(Tap tap, std::int64_t step, int layer, Bytes& out) override {
    seen_.read_tap(tap, step, layer, out);
    if (where_ == Where::conv_states || tap != Tap::core_out) return;
    const Layout layout = layout_of(tap, model());
    const std::int64_t count = where_ == Where::a_head ? layout.per_head : layout.per_row;
    restore(out, seen_.base_.at(tap, step, layer), 0, count, size_of(layout.type));
  }
  void read_snapshot(const Snapshot& snapshot, Bytes& recurrent, Bytes& conv) override {
    seen_.read_snapshot(snapshot, recurrent, conv);
    if (where_ == Where::conv_states) conv = seen_.base_.blocks[static_cast<std::size_t>(snapshot.at)].second;
  }
  /// Whether a change lies in the blind spot.
  bool hides(const Change& change) const {
    if (where_ == Where::conv_states) return change.tap == Tap::conv_state;
    return change.tap == Tap::core_out && change.row == 0 && (where_ == Where::a_row || change.head == 0);
  }

 private:
  static void restore(Bytes& to, const Bytes& from, std::int64_t first, std::int64_t count, std::size_t width) {
    std::copy_n(from.begin() + first * static_cast<std::ptrdiff_t>(width), count * static_cast<std::ptrdiff_t>(width),
                to.begin() + first * static_cast<std::ptrdiff_t>(width));
  }
  MutatedRecording& seen_;
  const Where where_;
};

}  // namespace

TEST_CASE("mutation: a comparison with a blind spot does not pass, and all that it misses is counted") {
  for (BlindSpot::Where where : {BlindSpot::Where::a_row, BlindSpot::Where::conv_states, BlindSpot::Where::a_head}) {
    CAPTURE(static_cast<int>(where));
    std::optional<BlindSpot> blind;
    std::size_t hidden = 0;
    const auto with_blind_spot = [&](MutatedRecording& recording) -> Recording& {
      blind.emplace(recording, where);
      const std::vector<Change> changes = changes_of(recording);
      hidden += std::any_of(changes.begin(), changes.end(), [&](const Change& c) { return blind->hides(c); });
      return *blind;
    };
    std::vector<std::string> failures;
    const Tally tally = mutate_recordings(samples(), 99, 60, failures, with_blind_spot);
    CHECK(hidden > 0);
    CHECK(failures.size() == hidden);
    CHECK(tally.found == 60 - static_cast<int>(hidden));
  }
}

TEST_CASE("mutation: a wrong report is seen, whichever field is wrong") {
  Sample& sample = samples()[0];
  MutatedRecording mutated(*sample.recording);
  const std::int64_t last = sample.stream->steps() - 1;
  mutated.tap_words(Tap::core_out, last, 0)[1] ^= std::byte{1};
  const std::vector<Change> changes = changes_of(mutated);
  REQUIRE(changes.size() == 1);
  const auto backend = make_golden({.threads = 1});
  const ReplayResult right = replay(*sample.stream, mutated, *backend, options_for(sample, Extent::needed, changes));
  REQUIRE(wrong(right, changes, *sample.stream) == "");
  const std::vector<std::function<void(Divergence&)>> mistakes = {[](Divergence& d) { --d.step; },
                                                                  [](Divergence& d) { ++d.layer; },
                                                                  [](Divergence& d) { ++d.layer_id; },
                                                                  [](Divergence& d) { d.tap = Tap::norm_out; },
                                                                  [](Divergence& d) { ++d.row; },
                                                                  [](Divergence& d) { ++d.block; },
                                                                  [](Divergence& d) { ++d.sequence; },
                                                                  [](Divergence& d) { ++d.head; },
                                                                  [](Divergence& d) { ++d.element; },
                                                                  [](Divergence& d) { ++d.got; },
                                                                  [](Divergence& d) { ++d.want; },
                                                                  [](Divergence& d) { ++*d.ulp; },
                                                                  [](Divergence& d) { d.kind = DiffClass::inf; }};
  for (std::size_t i = 0; i < mistakes.size(); ++i)
    for (std::optional<Divergence> Comparison::*first : {&Comparison::first})
      for (Comparison ReplayResult::*side : {&ReplayResult::carried, &ReplayResult::local}) {
        CAPTURE(i);
        ReplayResult result = right;
        mistakes[i](*((result.*side).*first));
        CHECK(wrong(result, changes, *sample.stream) != "");
      }
  ReplayResult result = right;
  ++result.carried.counts[static_cast<std::size_t>(Tap::state)].differing;
  CHECK(wrong(result, changes, *sample.stream) != "");
  result = right;
  result.verdict = Verdict::match;
  CHECK(wrong(result, changes, *sample.stream) != "");
}

TEST_CASE("mutation: the same on the traces in GDNSIM_EXTRA_DATA") {
  const char* folder = std::getenv("GDNSIM_EXTRA_DATA");
  if (folder == nullptr) GDNSIM_SKIP("GDNSIM_EXTRA_DATA is not set");
  std::vector<Sample> extra = load_samples((std::filesystem::path(folder) / "traces").string());
  CHECK(extra.size() >= 1);
  std::vector<std::string> failures;
  const Tally tally = mutate_recordings(extra, 3, 100, failures, as_it_is);
  report(tally);
  CHECK_MESSAGE(failures.empty(), joined(failures));
  CHECK(tally.found == 100);
}
