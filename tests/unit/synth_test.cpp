// Synthetic values: the generator against its published vectors, the distribution against erfc, every transform against its
// definition, addresses against another batch, and a few words of every tensor frozen.
#include <gdnsim/arith.hpp>
#include <gdnsim/recipe.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include <doctest/doctest.h>

#include "synth/normal_table.hpp"
#include "synth/plan.hpp"
#include "synth/values.hpp"

using namespace gdnsim;

namespace {

constexpr std::size_t kMany = 1 << 20;

std::vector<float> floats(const Draw& draw, const Address& address, std::size_t count = kMany) {
  std::vector<float> out(count);
  fill(draw, address, out);
  return out;
}

template <class Word>
std::vector<Word> words_of(std::span<const std::byte> bytes) {
  std::vector<Word> out(bytes.size() / sizeof(Word));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

std::vector<std::uint16_t> halves(const Draw& draw, const Address& address, DType type, std::size_t count) {
  Bytes bytes(count * 2);
  fill(draw, address, type, bytes);
  return words_of<std::uint16_t>(bytes);
}

double mean_of(const std::vector<float>& x, int power) {
  double sum = 0;
  for (float v : x) sum += std::pow(static_cast<double>(v), power);
  return sum / static_cast<double>(x.size());
}

/// Sample correlation of unit normals; its deviation is 1 / sqrt(n) when they are independent.
double correlation(const std::vector<float>& x, const std::vector<float>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(x[i]) * y[i];
  return sum / static_cast<double>(x.size());
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

/// Largest distance between the sample's distribution and `cdf`.
template <class Cdf>
double kolmogorov(std::vector<float> x, Cdf&& cdf) {
  std::sort(x.begin(), x.end());
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double p = cdf(x[i]), n = static_cast<double>(x.size()), at = static_cast<double>(i);
    worst = std::max({worst, p - at / n, (at + 1) / n - p});
  }
  return worst;
}

Recipe small_recipe() {
  Recipe r;
  r.seed = 77;
  r.steps = 24;
  r.rows = 4;
  r.model.H = 2, r.model.HV = 4, r.model.K = 24, r.model.V = 20, r.model.W = 4, r.model.scale = 0.5f;
  r.model.num_blocks = 9;
  r.model.layer_ids = {4, 1, 9};
  r.schedule.length = Range{3, 12};
  return r;
}

/// (sequence, position, layer id) -> what that token fed.
using Token = std::tuple<std::int64_t, int, int>;
std::map<Token, StepInputs> tokens_of(const Recipe& recipe) {
  std::map<Token, StepInputs> tokens;
  const auto stream = make_recipe_stream(recipe);
  std::map<std::int64_t, int> position;
  StepInputs in;
  for (std::int64_t step = 0; step < stream->steps(); ++step) {
    const StepPlan plan = stream->plan(step);
    for (int layer = 0; layer < stream->model().layers(); ++layer) {
      stream->inputs(step, layer, in);
      for (int row = 0; row < recipe.rows; ++row) {
        if (plan.block[static_cast<std::size_t>(row)] < 0) continue;
        const std::int64_t sequence = plan.sequence[static_cast<std::size_t>(row)];
        const auto line = [&](const Bytes& all) {
          const std::size_t bytes = all.size() / static_cast<std::size_t>(recipe.rows),
                            at = bytes * static_cast<std::size_t>(row);
          return Bytes(all.begin() + static_cast<std::ptrdiff_t>(at),
                       all.begin() + static_cast<std::ptrdiff_t>(at + bytes));
        };
        tokens[{sequence, position[sequence], recipe.model.layer_ids[static_cast<std::size_t>(layer)]}] = {
            line(in.mixed_qkv), line(in.a), line(in.b), line(in.z)};
      }
    }
    for (std::size_t row = 0; row < plan.block.size(); ++row)
      if (plan.block[row] >= 0) ++position[plan.sequence[row]];
  }
  return tokens;
}

/// How many tokens both runs have; REQUIREs that they are the same.
int common_tokens(const std::map<Token, StepInputs>& a, const std::map<Token, StepInputs>& b) {
  int common = 0;
  for (const auto& [token, in] : a) {
    const auto other = b.find(token);
    if (other == b.end()) continue;
    REQUIRE(in.mixed_qkv == other->second.mixed_qkv);
    REQUIRE(in.a == other->second.a);
    REQUIRE(in.b == other->second.b);
    REQUIRE(in.z == other->second.z);
    ++common;
  }
  return common;
}

}  // namespace

TEST_CASE("Philox4x32-10 gives its authors' known answers") {
  struct {
    PhiloxCounter counter;
    PhiloxKey key;
    PhiloxCounter answer;
  } const cases[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const auto& [counter, key, answer] : cases) CHECK(philox(counter, key) == answer);
}

TEST_CASE("an element's word is where the address says") {
  const Address address{0x0123456789abcdef, Tensor::z, 0xabcdef, 0x80000003, 17};
  std::uint32_t words[kChunk];
  chunk_words(address, 5, words);
  for (std::size_t i = 0; i < kChunk; ++i) {
    const std::size_t element = 5 * kChunk + i;
    const PhiloxCounter counter{static_cast<std::uint32_t>(element / 64 * 16 + element % 16), 17, 0x80000003,
                                0xabcdef13};
    REQUIRE(words[i] == philox(counter, {0x89abcdef, 0x01234567})[element / 16 % 4]);
  }
}

TEST_CASE("the normal table inverts the normal distribution") {
  const NormalTable& normal = NormalTable::get();
  double worst = 0;
  std::uint32_t word = 1;
  for (int octave = 31; octave >= 0; --octave)
    for (int i = 0; i < 500; ++i) {
      word = word * 1664525u + 1013904223u;
      const std::uint32_t odd = ((word | 0x80000000u) >> (31 - octave)) | 1;
      const double x = normal(odd ^ 1) * 0x1p-25, p = odd * 0x1p-32;
      const double density = std::sqrt(2 / std::acos(-1.0)) * std::exp(-x * x / 2);
      REQUIRE(normal(odd) == -normal(odd ^ 1));
      REQUIRE(x >= 0);
      // The error of x: that of p over the slope.
      worst = std::max(worst, std::abs(std::erfc(x / std::sqrt(2.0)) - p) / density);
    }
  CHECK(worst < 2e-5);
  CHECK(worst > 1e-8);            // linear steps cannot be better: a test that measures nothing would be
  CHECK(normal(0) == 212666545);  // the extremes, 6.338 deviations: erfc gives 212666572
  CHECK(normal(1) == -212666545);
  CHECK(std::abs(normal(0xFFFFFFFFu)) <= 1);
  CHECK(std::abs(normal(0xFFFFFFFEu)) <= 1);
}

TEST_CASE("normals are normal") {
  struct {
    std::uint64_t seed;
    Tensor tensor;
    std::uint32_t sequence, position;
  } const cases[] = {{0, Tensor::x, 0, 0},
                     {1, Tensor::recurrent, 3, 0},
                     {~0ull, Tensor::z, 0x80000001, 4095},
                     {0, Tensor::key_base, 5, 2}};
  const double n = kMany;
  for (const auto& [seed, tensor, sequence, position] : cases) {
    const std::vector<float> x = floats(Draw{}, {seed, tensor, 1, sequence, position});
    // Five standard deviations of each estimate for a true unit normal.
    CHECK(std::abs(mean_of(x, 1)) < 5 * std::sqrt(1 / n));
    CHECK(std::abs(mean_of(x, 2) - 1) < 5 * std::sqrt(2 / n));
    CHECK(std::abs(mean_of(x, 3)) < 5 * std::sqrt(15 / n));
    CHECK(std::abs(mean_of(x, 4) - 3) < 5 * std::sqrt(96 / n));
    CHECK(kolmogorov(x, normal_cdf) < 2.2 / std::sqrt(n));  // exceeded once in 8,000
    for (double limit : {3.0, 4.0}) {
      const double p = std::erfc(limit / std::sqrt(2.0));
      const auto beyond = std::count_if(x.begin(), x.end(), [&](float v) { return std::abs(v) > limit; });
      CHECK(std::abs(static_cast<double>(beyond) - n * p) < 5 * std::sqrt(n * p));
    }
  }
}

TEST_CASE("different addresses are independent") {
  const Address here{42, Tensor::x, 3, 7, 9};
  const std::vector<float> x = floats(Draw{}, here);
  Address other[6] = {here, here, here, here, here, here};
  other[0].seed = 43;
  other[1].seed = 42 | std::uint64_t{1} << 32;
  other[2].tensor = Tensor::a;
  other[3].layer_id = 4;
  other[4].sequence = 8;
  other[5].position = 10;
  for (const Address& address : other)
    CHECK(std::abs(correlation(x, floats(Draw{}, address))) < 5 / std::sqrt(double{kMany}));
  for (std::size_t lag : {1, 2, 4, 16, 64, 128}) {
    const std::vector<float> later(x.begin() + static_cast<std::ptrdiff_t>(lag), x.end());
    CHECK(std::abs(correlation(later, x)) < 5 / std::sqrt(double{kMany}));
  }
}

TEST_CASE("each draw is what it says") {
  const Address at{3, Tensor::A_log};
  const std::vector<float> moved = floats({Draw::Kind::normal, 2.5f, 0.7f}, at);
  std::uint32_t words[kChunk];
  for (std::size_t i = 0; i < kMany; ++i) {
    if (i % kChunk == 0) chunk_words(at, i / kChunk, words);
    const double unit = NormalTable::get()(words[i % kChunk]) * 0x1p-25;
    REQUIRE(moved[i] == static_cast<float>(std::fma(unit, double{0.7f}, 2.5)));
  }

  const std::vector<float> uniform = floats({Draw::Kind::uniform, 0.1f, 16.0f}, at);
  CHECK(kolmogorov(uniform, [](double x) { return std::clamp((x - 0.1f) / (16.0 - 0.1f), 0.0, 1.0); }) <
        2.2 / std::sqrt(double{kMany}));
  CHECK(*std::min_element(uniform.begin(), uniform.end()) >= 0.1f);
  CHECK(*std::max_element(uniform.begin(), uniform.end()) <= 16.0f);

  const std::vector<float> logs = floats({Draw::Kind::log_of_uniform, 0.1f, 16.0f}, at);
  for (std::size_t i = 0; i < kMany; ++i) REQUIRE(logs[i] == log_cr(uniform[i]));
  CHECK(std::abs(logs[5] - std::log(static_cast<double>(uniform[5]))) < 1e-6);

  for (float x : floats({Draw::Kind::constant, -0.3f, 0}, at, 100)) REQUIRE(x == -0.3f);
  for (float x : floats({Draw::Kind::uniform, 0.3f, 0.3f}, at, 100)) REQUIRE(x == 0.3f);
}

TEST_CASE("stored halves are the floats, rounded to nearest even") {
  const Address at{4, Tensor::x};
  const Draw draw{Draw::Kind::normal, 0.01f, 0.4f};
  const std::vector<float> x = floats(draw, at, 10001);
  const auto bf16 = halves(draw, at, DType::bf16, 10001), f16 = halves(draw, at, DType::f16, 10001);
  for (std::size_t i = 0; i < x.size(); ++i) {
    REQUIRE(bf16[i] == bf16_from_f32(x[i]));
    REQUIRE(f16[i] == f16_from_f32(x[i]));
  }
}

TEST_CASE("a shorter tensor is the start of a longer one") {
  const Address at{5, Tensor::b};
  const std::vector<float> x = floats(Draw{}, at, 1000);
  for (std::size_t count : {1u, 2u, 63u, 64u, 65u, 127u}) {
    const std::vector<float> y = floats(Draw{}, at, count);
    CHECK(std::equal(y.begin(), y.end(), x.begin()));
  }
}

TEST_CASE("a sequence meets the same tokens in any batch") {
  Recipe r = small_recipe();
  r.inputs.keys = {128, 4};
  r.inputs.specials = {0.02, {SpecialRecipe::Kind::inf, SpecialRecipe::Kind::payload}};
  const auto reference = tokens_of(r);
  CHECK(reference.size() > 200);

  SUBCASE("wider, shuffled, preempted, another pool") {
    r.rows = 7, r.model.num_blocks = 30, r.schedule.shuffle = 0.7, r.schedule.preempt = 0.2, r.schedule.skip = 0.2;
    CHECK(common_tokens(reference, tokens_of(r)) > 150);
  }
  SUBCASE("alone") {
    r.rows = 1, r.schedule.first_sequence = 3;
    const auto alone = tokens_of(r);
    CHECK(std::get<0>(alone.begin()->first) == 3);
    CHECK(common_tokens(reference, alone) > 20);
  }
  SUBCASE("one layer of three") {
    r.model.layer_ids = {9};
    CHECK(common_tokens(reference, tokens_of(r)) == static_cast<int>(reference.size()) / 3);
  }
  SUBCASE("another seed has none of them") {
    ++r.seed;
    const auto other = tokens_of(r);
    int same = 0, common = 0;
    for (const auto& [token, in] : reference) {
      if (!other.contains(token)) continue;
      ++common;
      same += other.at(token).mixed_qkv == in.mixed_qkv;
    }
    CHECK(common > 50);
    CHECK(same == 0);
  }
}

TEST_CASE("no two tokens, layers or padding rows are alike") {
  Recipe r = small_recipe();
  r.schedule.arrival = 0.3;
  std::set<std::vector<std::uint16_t>> seen;
  std::size_t rows = 0;
  const auto stream = make_recipe_stream(r);
  StepInputs in;
  for (std::int64_t step = 0; step < r.steps; ++step)
    for (int layer = 0; layer < 3; ++layer) {
      stream->inputs(step, layer, in);
      const std::size_t bytes = in.mixed_qkv.size() / 4;
      for (std::size_t row = 0; row < 4; ++row, ++rows)
        seen.insert(words_of<std::uint16_t>(std::span(in.mixed_qkv).subspan(row * bytes, bytes)));
    }
  CHECK(seen.size() == rows);
}

TEST_CASE("keys resemble each other as much as asked, and nothing else does") {
  constexpr std::size_t kRow = 3000, kBegin = 1000, kEnd = 2000;
  const auto row = [](const KeyRecipe& keys, std::uint32_t sequence, std::uint32_t position) {
    Bytes bytes(kRow * 4);
    fill_x(Draw{}, {keys, kBegin, kEnd}, {8, Tensor::x, 0, sequence, position}, DType::f32, bytes);
    return words_of<float>(bytes);
  };
  const auto part = [](const std::vector<float>& x, std::size_t begin, std::size_t end) {
    return std::vector<float>(x.begin() + static_cast<std::ptrdiff_t>(begin),
                              x.begin() + static_cast<std::ptrdiff_t>(end));
  };
  const auto keys = [&](const std::vector<float>& x) { return part(x, kBegin, kEnd); };
  const double slack = 5 / std::sqrt(1000.0);

  for (int weight : {0, 128, 200, 256}) {
    CAPTURE(weight);
    const auto x = row({weight, 0}, 1, 10), later = row({weight, 0}, 1, 11), plain = row({0, 0}, 1, 10);
    CHECK(part(x, 0, kBegin) == part(plain, 0, kBegin));
    CHECK(part(x, kEnd, kRow) == part(plain, kEnd, kRow));
    CHECK((keys(x) == keys(plain)) == (weight == 0));
    CHECK((keys(x) == keys(later)) == (weight == 256));
    CHECK(std::abs(mean_of(keys(x), 2) - 1) < 5 * std::sqrt(2 / 1000.0));
    CHECK(std::abs(correlation(keys(x), keys(later)) - weight * weight / 65536.0) < slack * 1.5);
    CHECK(std::abs(correlation(keys(x), keys(row({weight, 0}, 2, 10)))) < slack);
  }
  // Drifting: the variance stays, neighbours stay close, a whole period apart they are strangers.
  const KeyRecipe drifting{256, 100};
  const auto start = row(drifting, 1, 200);
  for (std::uint32_t position : {200u, 201u, 230u, 250u, 299u, 300u}) {
    CAPTURE(position);
    const auto x = row(drifting, 1, position);
    const double t = (position - 200) / 100.0, expected = (1 - t) / std::sqrt(t * t + (1 - t) * (1 - t));
    CHECK(std::abs(mean_of(keys(x), 2) - 1) < 5 * std::sqrt(2 / 1000.0));
    CHECK(std::abs(correlation(keys(start), keys(x)) - expected) < slack * 1.5);
  }
  CHECK(keys(row(drifting, 1, 300)) != keys(start));
  CHECK(correlation(keys(row(drifting, 1, 299)), keys(row(drifting, 1, 300))) > 0.9);
}

TEST_CASE("special values come at their rate, of the kinds and in the tensors asked for") {
  SpecialRecipe specials;
  specials.rate = 0.01;
  using Kind = SpecialRecipe::Kind;
  struct {
    Kind kind;
    std::set<std::uint16_t> bf16;
    std::uint16_t mask, f16;
  } const cases[] = {
      {Kind::nan, {0x7FC0}, 0xFFFF, 0x7E00},
      {Kind::inf, {0x7F80}, 0xFFFF, 0x7C00},
      {Kind::minus_inf, {0xFF80}, 0xFFFF, 0xFC00},
      {Kind::zero, {0}, 0xFFFF, 0},
      {Kind::minus_zero, {0x8000}, 0xFFFF, 0x8000},
      {Kind::largest, {0x7F7F, 0xFF7F}, 0xFFFF, 0x7BFF},
      {Kind::payload, {0x7F80, 0xFF80}, 0xFF80, 0x7C00},
      {Kind::denormal, {0, 0x8000}, 0xFF80, 0},
  };
  const Address at{6, Tensor::z, 2, 3, 4};
  for (const auto& expect : cases) {
    const auto& [kind, expected, mask, f16] = expect;
    CAPTURE(static_cast<int>(expect.kind));
    specials.kinds = {kind};
    Bytes row(200000, std::byte{0x3F}), half = row;
    sprinkle(specials, at, DType::bf16, row);
    sprinkle(specials, at, DType::f16, half);
    const auto words = words_of<std::uint16_t>(row), f16_words = words_of<std::uint16_t>(half);
    std::set<std::uint16_t> seen;
    int count = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
      REQUIRE((words[i] == 0x3F3F) == (f16_words[i] == 0x3F3F));
      if (words[i] == 0x3F3F) continue;
      ++count;
      seen.insert(words[i] & mask);
      if (mask != 0xFFFF) REQUIRE((words[i] & ~mask & 0xFFFF) != 0);
      REQUIRE((f16_words[i] & (mask == 0xFFFF ? 0x7FFF : 0x7C00)) == (f16 & 0x7FFF));
    }
    CHECK(seen == expected);
    CHECK(std::abs(count - 1000) < 5 * 32);
  }

  Recipe r = small_recipe();
  const auto plain = make_recipe_stream(r);
  r.inputs.specials = {0.5, {Kind::nan, Kind::zero}, true, false, true, false};
  const auto strewn = make_recipe_stream(r);
  StepInputs a, b;
  plain->inputs(2, 1, a);
  strewn->inputs(2, 1, b);
  CHECK(a.mixed_qkv != b.mixed_qkv);
  CHECK(a.b != b.b);
  CHECK(a.a == b.a);
  CHECK(a.z == b.z);
  std::map<std::uint16_t, int> counts;
  for (std::uint16_t word : words_of<std::uint16_t>(b.mixed_qkv)) ++counts[word];
  const double all = static_cast<double>(b.mixed_qkv.size()) / 2;
  CHECK(std::abs(counts[0x7FC0] - all / 4) < 5 * std::sqrt(all * 3 / 16));
  CHECK(std::abs(counts[0] - all / 4) < 5 * std::sqrt(all * 3 / 16));
}

TEST_CASE("a load row belongs to its sequence, layer and resumption") {
  Recipe r = small_recipe();
  r.model.state_dtype = DType::bf16;
  r.model.conv_state_dtype = DType::f32;
  const auto a = make_recipe_stream(r);
  r.rows = 2;
  r.schedule.first_sequence = 2;
  const auto b = make_recipe_stream(r);
  Bytes state_a, conv_a, state_b, conv_b;
  std::set<std::vector<std::uint16_t>> states;
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    a->load_row(2 * 3 + layer, state_a, conv_a);  // the third load is sequence 2's
    b->load_row(layer, state_b, conv_b);
    CHECK(state_a.size() == r.model.state_bytes());
    CHECK(conv_a.size() == r.model.conv_bytes());
    CHECK(state_a == state_b);
    CHECK(conv_a == conv_b);
    states.insert(words_of<std::uint16_t>(state_a));
    a->load_row(layer, state_a, conv_a);
    states.insert(words_of<std::uint16_t>(state_a));
  }
  CHECK(states.size() == 6);
  r.model.layer_ids = {9};  // the third layer of the others, alone
  make_recipe_stream(r)->load_row(0, state_b, conv_b);
  a->load_row(2 * 3 + 2, state_a, conv_a);
  CHECK(state_a == state_b);
  CHECK(conv_a == conv_b);
}

TEST_CASE("a sequence that was dropped comes back with another state") {
  Recipe r = small_recipe();
  r.schedule.preempt = 0.2;
  r.schedule.preempt_by = ScheduleRecipe::Preempt::load;
  const auto stream = make_recipe_stream(r);
  std::set<std::vector<std::uint16_t>> states;
  const auto loads = make_schedule(r).loads;
  Bytes state, conv;
  for (std::size_t load = 0; load < loads.size(); ++load) {
    stream->load_row(static_cast<std::int32_t>(load * 3), state, conv);
    states.insert(words_of<std::uint16_t>(state));
  }
  CHECK(std::count_if(loads.begin(), loads.end(), [](const Load& load) { return load.resumed > 0; }) > 2);
  CHECK(states.size() == loads.size());
}

TEST_CASE("parameters: shapes, options and the same layer wherever it stands") {
  Recipe r = small_recipe();
  r.params.conv_bias = Draw{Draw::Kind::normal, 0, 0.1f};
  const auto three = make_recipe_stream(r);
  const LayerParams& p = three->params(1);
  CHECK(p.A_log.size() == 4);
  CHECK(p.dt_bias.size() == 4);
  CHECK(p.conv_weight.size() == static_cast<std::size_t>(r.model.dim()) * 4 * 2);
  CHECK(p.conv_bias.size() == static_cast<std::size_t>(r.model.dim()) * 2);
  CHECK(p.norm_weight.size() == 20 * 2);
  for (float x : p.A_log) {
    CHECK(x >= log_cr(0.1f));
    CHECK(x <= log_cr(16.0f));
  }
  r.model.layer_ids = {1};
  CHECK(make_recipe_stream(r)->params(0) == p);
  CHECK_FALSE(three->params(0) == p);
  r.params.conv_bias.reset();
  r.params.norm_weight.reset();
  CHECK(make_recipe_stream(r)->params(0).conv_bias.empty());
  CHECK(make_recipe_stream(r)->params(0).norm_weight.empty());
}

TEST_CASE("inputs: shapes, storage reused, z optional") {
  Recipe r = small_recipe();
  r.model.act_dtype = DType::f32;
  const auto stream = make_recipe_stream(r);
  StepInputs in;
  in.z.resize(1);
  stream->inputs(0, 0, in);
  CHECK(stream->has_z(0));
  CHECK(in.mixed_qkv.size() == static_cast<std::size_t>(4 * r.model.dim() * 4));
  CHECK(in.a.size() == 4 * 4 * 4);
  CHECK(in.b.size() == 4 * 4 * 4);
  CHECK(in.z.size() == 4 * 4 * 20 * 4);
  r.inputs.z.reset();
  const auto without = make_recipe_stream(r);
  without->inputs(0, 0, in);
  CHECK_FALSE(without->has_z(0));
  CHECK(in.z.empty());
}

TEST_CASE("words of every tensor are frozen") {
  const auto f32 = [](Tensor tensor, const Draw& draw) {
    const Address at{0x1122334455667788, tensor, 5, 6, 7};
    std::string text;
    for (float x : floats(draw, at, 70)) {
      char word[16];
      std::snprintf(word, sizeof word, "%08x ", bits_of(x));
      text += word;
    }
    return text.substr(0, 27) + text.substr(67 * 9, 26);
  };
  CHECK(f32(Tensor::A_log, ParamRecipe{}.A_log) == "3febc96e 3fb11e33 400bd8a5 3f38da6a 400a682d 403062c8");
  CHECK(f32(Tensor::dt_bias, ParamRecipe{}.dt_bias) == "bf01b66c bf4e5aa1 bd0fca76 bec42a7a bfa0da52 bfad51ca");
  CHECK(f32(Tensor::conv_weight, ParamRecipe{}.conv_weight) == "be9087d1 3ecbcb1e 3f5421f1 3e650763 3e8d0898 bdf75dc5");
  CHECK(f32(Tensor::conv_bias, Draw{}) == "3ebb1687 3ccb81f0 3fdcfa08 3eb891d5 3e15d32e bf4d6636");
  CHECK(f32(Tensor::norm_weight, *ParamRecipe{}.norm_weight) ==
        "3f6effda 3f6433e4 3f6b5f58 3f801354 3f8f69ce 3f98fcc3");
  CHECK(f32(Tensor::x, Draw{}) == "401907ea bf0e12dc 400a1b3a 3f0f9f57 3f9f10d2 3efb3884");
  CHECK(f32(Tensor::a, Draw{}) == "bf84a243 be3a58d4 bff92ed0 bf7fab92 3f401f3b 3f849e5a");
  CHECK(f32(Tensor::b, Draw{}) == "3ee7ac4b 3fdddb8e 3f9ada30 bf8617dd bfc17770 bfafbffc");
  CHECK(f32(Tensor::z, Draw{}) == "3e6d48d4 3f49d34c 3eb9487e 4026b8c2 3ff8a212 c0198700");
  CHECK(f32(Tensor::key_base, Draw{}) == "3efbd1f4 bee77a1b be4b30a0 3f67976a 403cbc4f 3f04899c");
  CHECK(f32(Tensor::recurrent, StateRecipe{}.recurrent) == "3d864db0 3d80e74d bd5a1147 3c1af737 be0249cb bdcc32ac");
  CHECK(f32(Tensor::conv, Draw{Draw::Kind::uniform, -1, 1}) == "3cae724c 3eefade0 bf7d1015 3f09fdcf bec6c711 bf66dbec");
}

TEST_CASE("a whole step is frozen") {
  const auto first = [](const Bytes& bytes) {
    std::string text;
    for (std::uint16_t word : words_of<std::uint16_t>(std::span(bytes).first(8))) {
      char hex[8];
      std::snprintf(hex, sizeof hex, "%04x ", word);
      text += hex;
    }
    return text;
  };
  const auto list = [](const auto& numbers) {
    std::string text;
    for (auto number : numbers) text += std::to_string(number) + " ";
    return text;
  };
  Recipe r = small_recipe();
  r.inputs.keys = {100, 7};
  r.schedule.shuffle = 0.5;
  const auto stream = make_recipe_stream(r);
  StepInputs in;
  stream->inputs(9, 2, in);
  Bytes state, conv, keys(in.mixed_qkv.begin() + 2 * 48, in.mixed_qkv.end());
  stream->load_row(4, state, conv);
  CHECK(first(in.mixed_qkv) == "c007 be9f 3e63 bf50 ");
  CHECK(first(keys) == "bf2b bf1e bf53 bfb8 ");
  CHECK(first(in.a) == "bebb c013 400a beef ");
  CHECK(first(in.b) == "c029 be1a 3f20 c01a ");
  CHECK(first(in.z) == "3fde 3eae bf22 bf99 ");
  CHECK(first(state) == "0425 3d6b c049 3e1c ");
  CHECK(first(conv) == "3e2b 3ecf bf2b 3f88 ");
  CHECK(first(stream->params(1).conv_weight) == "beae bf85 be1f 3ead ");
  const StepPlan plan = stream->plan(9);
  CHECK(list(plan.index) == "4 8 7 2 ");
  CHECK(list(plan.sequence) == "3 4 5 0 ");
}
