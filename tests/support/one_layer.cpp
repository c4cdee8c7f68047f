// Random one-layer streams for driving backends directly.
#include "support/one_layer.hpp"

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <limits>
#include <sstream>

#include "support/rounding.hpp"

namespace gdnsim::second {
namespace {

std::uint64_t scramble(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

std::uint32_t word_of(const Bytes& bytes, std::size_t i, std::size_t width) {
  std::uint32_t word = 0;
  std::memcpy(&word, bytes.data() + i * width, width);
  return word;
}

}  // namespace

std::uint64_t Random::bits() { return scramble(state_ += 0x9E3779B97F4A7C15u); }

float Random::uniform(float low, float high) {
  return low + (high - low) * (static_cast<float>(bits() >> 40) * 0x1p-24f);
}

float Random::normal(float deviation) {
  float sum = 0;
  for (int i = 0; i < 12; ++i) sum += uniform(-0.5f, 0.5f);
  return sum * deviation;
}

float Random::hostile() {
  constexpr std::uint32_t kValues[] = {0x7FC00000, 0xFFC00000, 0x7F810000, 0xFF8A0000, 0x7FC01234, 0x7F800000,
                                       0xFF800000, 0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF,
                                       0x00010000, 0x80010000, 0x00400000, 0x00800000, 0x80800000, 0x7F7FFFFF,
                                       0xFF7FFFFF, 0x7F7F0000, 0x3F800000, 0xBF800000, 0x42B20000, 0xC2B20000,
                                       0x41A00000, 0x41A10000, 0x5F000000, 0xDF000000, 0x20000000, 0xA0000000};
  return float_of(kValues[below(std::size(kValues))]);
}

Bytes random_values(Random& random, std::int64_t count, DType type, float mean, float deviation,
                    std::uint32_t hostile_in) {
  const auto n = static_cast<std::size_t>(count);
  Bytes bytes(n * size_of(type));
  for (std::size_t i = 0; i < n; ++i) {
    const bool hostile = hostile_in != 0 && random.below(hostile_in) == 0;
    store(bytes.data(), type, i, Num{hostile ? random.hostile() : mean + random.normal(deviation)});
    if (!hostile || random.below(3) != 0) continue;
    const std::uint64_t raw = random.bits();
    std::memcpy(bytes.data() + i * size_of(type), &raw, size_of(type));
  }
  return bytes;
}

OneLayer::OneLayer(const Recipe& recipe, std::uint64_t seed, int rows)
    : recipe_(recipe), seed_(scramble(seed)), rows_(rows) {
  Random random(seed_);
  Model& m = recipe_.model;
  m.layer_ids = {7};
  for (int i = 0; i < m.HV; ++i) {
    params_.A_log.push_back(recipe.A_log + random.normal(1.5f));
    params_.dt_bias.push_back(random.uniform(-6, 3));
  }
  const std::uint32_t rarely = recipe.hostile_in * 8;
  params_.conv_weight = random_values(random, m.dim() * m.W, m.act_dtype, 0, 0.5f, 0);
  if (recipe.bias) params_.conv_bias = random_values(random, m.dim(), m.act_dtype, 0, 0.3f, rarely);
  if (recipe.norm) params_.norm_weight = random_values(random, m.V, m.act_dtype, 1, 0.2f, rarely);
}

StepPlan OneLayer::plan(std::int64_t step) const {
  Random random(scramble(seed_ + 1) ^ static_cast<std::uint64_t>(step));
  const Model& m = recipe_.model;
  const bool zero_is_live = m.sentinel == Sentinel::minus_one;
  std::vector<std::int32_t> blocks;
  for (std::int32_t b = zero_is_live ? 0 : 1; b < m.num_blocks; ++b) blocks.push_back(b);
  for (std::size_t i = blocks.size(); i > 1; --i)
    std::swap(blocks[i - 1], blocks[random.below(static_cast<std::uint32_t>(i))]);
  std::vector<std::int32_t> index;
  std::vector<std::int64_t> sequence;
  for (int row = 0; row < rows_; ++row) {
    const bool active = random.below(5) != 0;
    const std::int32_t mark = zero_is_live || (m.sentinel == Sentinel::nonpositive && random.below(2) == 0) ? -1 : 0;
    index.push_back(active ? blocks.at(static_cast<std::size_t>(row)) : mark);
    sequence.push_back(active ? 100 + row : -1);
  }
  const int present = step % 3 == 2 ? rows_ - 1 : rows_;
  return make_plan(m, step, Path::decode, index, sequence, present, recipe_.name);
}

void OneLayer::inputs(std::int64_t step, int, StepInputs& out) {
  Random random(scramble(seed_ + 2) ^ static_cast<std::uint64_t>(step));
  const Model& m = recipe_.model;
  out.mixed_qkv = random_values(random, rows_ * m.dim(), m.act_dtype, 0, 1, recipe_.hostile_in);
  out.a =
      random_values(random, 1LL * rows_ * m.HV, m.act_dtype, 0, step % 2 == 0 ? 2.0f : 15.0f, recipe_.hostile_in / 8);
  out.b = random_values(random, 1LL * rows_ * m.HV, m.act_dtype, 0, 3, recipe_.hostile_in / 8);
  out.z.clear();
  if (recipe_.norm) out.z = random_values(random, 1LL * rows_ * m.HV * m.V, m.act_dtype, 0, 2, recipe_.hostile_in / 8);
}

Block OneLayer::random_block(std::uint64_t seed) const {
  Random random(scramble(seed_ + 3) ^ seed);
  const Model& m = recipe_.model;
  const std::uint32_t rarely = recipe_.hostile_in * 16;
  return {random_values(random, m.state_elements(), m.state_dtype, 0, 0.5f, rarely),
          random_values(random, m.conv_elements(), m.conv_state_dtype, 0, 1, recipe_.hostile_in)};
}

std::string first_difference(const Bytes& got, const Bytes& want, std::size_t width) {
  std::ostringstream text;
  if (got.size() != want.size()) text << "size " << got.size() << ", want " << want.size();
  if (got == want || got.size() != want.size()) return text.str();
  std::size_t first = want.size(), differing = 0;
  for (std::size_t i = 0; i < want.size() / width; ++i) {
    if (word_of(got, i, width) == word_of(want, i, width)) continue;
    first = std::min(first, i);
    ++differing;
  }
  text << std::hex << std::uppercase << std::setfill('0') << "element " << std::dec << first << " got " << std::hex
       << std::setw(static_cast<int>(2 * width)) << word_of(got, first, width) << " want "
       << std::setw(static_cast<int>(2 * width)) << word_of(want, first, width) << std::dec << ", " << differing
       << " of " << want.size() / width << " differ";
  return text.str();
}

Contract drawn_contract(Random& random) {
  Contract contract;
  for (const auto& [field, value] : contract_fields(contract)) {
    if (field == "shapes" || field == "multiprocessors") continue;
    std::vector<std::string> words = contract_field_values(field);
    if (words.empty()) words = {"0", "1", "2", "3", "8", "32", "33", "100"};
    set_contract_field(contract, field, words[random.below(static_cast<std::uint32_t>(words.size()))]);
  }
  for (Dot* dot : {&contract.qk_dot, &contract.state_dot, &contract.norm_dot})
    if (dot->exchange == Exchange::fused) dot->lane = Lane::one, dot->group = 2 << random.below(7);
  contract.multiprocessors = 1 + static_cast<int>(random.below(4));
  return contract;
}

}  // namespace gdnsim::second
