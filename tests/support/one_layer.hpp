// A one-layer stream in memory with random contents, ordinary or hostile, for tests that drive backends directly.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gdnsim/backend.hpp"
#include "gdnsim/contract.hpp"
#include "gdnsim/stream.hpp"
#include "support/second_step.hpp"

namespace gdnsim::second {

/// Small counter-based generator: the same numbers everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits();
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>((bits() >> 32) * n >> 32); }
  float uniform(float low, float high);
  /// Roughly normal, of that deviation.
  float normal(float deviation);
  /// One of the values that break things: NaNs with payloads, Inf, both zeros, denormals, the largest and smallest
  /// numbers.
  float hostile();

 private:
  std::uint64_t state_;
};

/// `count` values of `type`, normal with that deviation around `mean`; one in `hostile_in` is hostile (0: none). 16-bit
/// types also get raw random words then, so that every payload can occur.
Bytes random_values(Random& random, std::int64_t count, DType type, float mean, float deviation,
                    std::uint32_t hostile_in);

/// A contract whose every field is drawn. A fused exchange needs lanes of 1 and a group that halves.
Contract drawn_contract(Random& random);

struct Recipe {
  std::string name;
  Model model;
  bool bias = false, norm = true;
  float A_log = 0;               // mean; lower forgets more slowly
  std::uint32_t hostile_in = 0;  // one hostile value in so many inputs and state elements; 0: none
};

/// One layer's parameters, plans and inputs, made up as it goes. Not a stream of events: pools start as the test fills
/// them.
class OneLayer final : public Stream {
 public:
  OneLayer(const Recipe& recipe, std::uint64_t seed, int rows);
  const Model& model() const override { return recipe_.model; }
  const LayerParams& params(int) const override { return params_; }
  std::int64_t steps() const override { return 1 << 20; }
  int rows() const override { return rows_; }
  /// Rows in shuffled blocks, about one in five inactive, the last ones sometimes not present. Depends on the seed and
  /// `step`.
  StepPlan plan(std::int64_t step) const override;
  std::span<const Event> events() const override { return {}; }
  bool has_z(int) const override { return recipe_.norm; }
  void inputs(std::int64_t step, int layer, StepInputs& out) override;
  void load_row(std::int32_t, Bytes&, Bytes&) override {}
  std::string source() override { return recipe_.name; }

  /// A random block. Its recurrent part is hostile only where the inputs are.
  Block random_block(std::uint64_t seed) const;

 private:
  Recipe recipe_;
  std::uint64_t seed_;
  int rows_;
  LayerParams params_;
};

/// Empty when equal; else where the first difference is, in words of `width` bytes, how many there are, and both words
/// in hex.
std::string first_difference(const Bytes& got, const Bytes& want, std::size_t width);

}  // namespace gdnsim::second
