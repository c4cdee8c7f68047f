// Mutation test of replay, inputs: random words of what is fed in are changed as they are read. The first divergence must be where
// the second implementation, run on the same, first parts from the recording; or there is none for both.
#include <doctest/doctest.h>

#include <gdnsim/replay.hpp>

#include <algorithm>
#include <cmath>

#include "support/mutation_sample.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

bool has_nan(const Bytes& words, DType type) {
  for (std::size_t i = 0; i < words.size() / size_of(type); ++i)
    if (std::isnan(value_of(type, word_of(words, i, type)))) return true;
  return false;
}

/// A reader refuses parameters with NaN, so they are no input.
bool readable(const MutatedStream& stream) {
  const DType type = stream.model().act_dtype;
  const auto bad = [](float value) { return std::isnan(value); };
  return std::none_of(stream.params_.begin(), stream.params_.end(), [&](const auto& layer) {
    const LayerParams& p = layer.second;
    return std::any_of(p.A_log.begin(), p.A_log.end(), bad) || std::any_of(p.dt_bias.begin(), p.dt_bias.end(), bad) ||
           has_nan(p.conv_weight, type) || has_nan(p.norm_weight, type);
  });
}

struct InputTally {
  int mutations = 0, reported = 0, no_effect = 0;
  std::map<std::string, int> kinds;
};

void mutate_input_and_replay(Random& random, Sample& sample, Backend& backend, InputTally& tally,
                             std::vector<std::string>& failures) {
  std::optional<MutatedStream> mutated;
  InputMutation mutation;
  do {
    mutated.emplace(*sample.stream);
    mutation = mutate_stream(random, *mutated);
  } while (!readable(*mutated));
  const auto expected = sample.second->first_difference(*mutated, mutation.layer, mutation.step);
  ReplayOptions options;
  options.contracts = sample.contracts;
  options.slice.layers = {mutation.layer};
  const ReplayResult result = replay(*mutated, *sample.recording, backend, options);
  std::string text;
  if (expected)
    text = wrong_place("first", result.first(), *expected, *mutated);
  else if (result.verdict != Verdict::match || result.first())
    text = "an effect is reported where there is none";
  ++tally.mutations;
  ++(expected ? tally.reported : tally.no_effect);
  ++tally.kinds[mutation.what];
  if (!text.empty()) failures.push_back(sample.name + ", " + mutation.what + ": " + text);
}

void mutate_inputs(std::vector<Sample>& from, std::uint64_t seed, int count) {
  Random random(seed);
  const auto backend = make_golden({.threads = 1});
  InputTally tally;
  std::vector<std::string> failures;
  for (int i = 0; i < count; ++i) mutate_input_and_replay(random, pick(random, from), *backend, tally, failures);
  MESSAGE(tally.mutations << " inputs changed: " << tally.reported << " reported, " << tally.no_effect
                          << " without recorded effect");
  CHECK_MESSAGE(failures.empty(), joined(failures));
  CHECK(tally.reported > count / 2);
  CHECK(tally.no_effect > 0);
}

}  // namespace

TEST_CASE("mutation: in inputs, the first effect is where the second implementation finds it, or there is none") {
  mutate_inputs(samples(), 7, 200);
}

TEST_CASE("mutation: the same in launches of several candidates") { mutate_inputs(samples_of_version_2(), 8, 200); }
