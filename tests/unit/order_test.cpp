// Summation orders, against sums written out by hand. The values are chosen so that every other order gives another sum.
#include <doctest/doctest.h>

#include <gdnsim/order.hpp>

#include <cmath>
#include <vector>

using namespace gdnsim;

namespace {

/// Values over many magnitudes, so that rounding shows the order.
std::vector<float> row(int n, unsigned seed) {
  std::vector<float> x;
  std::uint64_t state = seed;
  for (int i = 0; i < n; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const float unit = static_cast<float>(state >> 40) * 0x1p-24f - 0.5f;
    x.push_back(std::ldexp(unit, static_cast<int>(state >> 20 & 15)));
  }
  return x;
}

float sum_by(const Dot& dot_, const std::vector<float>& x, const std::vector<float>& y,
             const DotContext& context = {}) {
  return dot(resolve(dot_, static_cast<int>(x.size()), context), x.data(), y.data());
}

}  // namespace

TEST_CASE("order: golden's chunks of 32, the last padded, chunk sums left to right") {
  const auto x = row(70, 1), y = row(70, 2);
  float total = 0;
  for (int chunk = 0; chunk < 3; ++chunk) {
    float p[32];
    for (int i = 0; i < 32; ++i) p[i] = chunk * 32 + i < 70 ? x[chunk * 32 + i] * y[chunk * 32 + i] : 0.0f;
    for (int w = 16; w >= 1; w /= 2) {
      float next[32];
      for (int j = 0; j < 32; ++j) next[j] = p[j] + p[j ^ w];
      std::copy(next, next + 32, p);
    }
    total = chunk == 0 ? p[0] : total + p[0];
  }
  CHECK(sum_by(Dot{}, x, y) == total);
}

TEST_CASE("order: lanes of four, second element first, fused, then a butterfly over the lanes") {
  const auto x = row(16, 3), y = row(16, 4);
  float lane[4];
  for (int l = 0; l < 4; ++l) {
    const float* a = &x[l * 4];
    const float* b = &y[l * 4];
    lane[l] = std::fma(a[3], b[3], std::fma(a[2], b[2], std::fma(a[0], b[0], a[1] * b[1])));
  }
  const Dot triton{.lane = Lane::four, .order = LaneOrder::swapped, .product = Product::fma, .group = 0};
  CHECK(sum_by(triton, x, y) == (lane[0] + lane[2]) + (lane[1] + lane[3]));
}

TEST_CASE("order: a fused first exchange, groups combined widest first") {
  const auto x = row(128, 5);
  float warp[4];
  for (int w = 0; w < 4; ++w) {
    float f[16];
    for (int t = 0; t < 16; ++t) f[t] = std::fma(x[w * 32 + t], x[w * 32 + t], x[w * 32 + t + 16] * x[w * 32 + t + 16]);
    for (int d = 8; d >= 1; d /= 2)
      for (int t = 0; t < d; ++t) f[t] += f[t + d];
    warp[w] = f[0];
  }
  const Dot mixed{.lane = Lane::one, .exchange = Exchange::fused, .group = 32, .groups = Tree::widest};
  CHECK(sum_by(mixed, x, x) == (warp[0] + warp[2]) + (warp[1] + warp[3]));
}

TEST_CASE("order: left to right, rounded or fused") {
  const auto x = row(40, 6), y = row(40, 7);
  float rounded = x[0] * y[0], fused = x[0] * y[0];
  for (int i = 1; i < 40; ++i) rounded += x[i] * y[i], fused = std::fma(x[i], y[i], fused);
  CHECK(sum_by({.lane = Lane::whole, .group = 0}, x, y) == rounded);
  CHECK(sum_by({.lane = Lane::whole, .product = Product::fma, .group = 0}, x, y) == fused);
}

TEST_CASE("order: neighbours first, and lanes left to right") {
  const auto x = row(4, 8), y = row(4, 9);
  const float p0 = x[0] * y[0], p1 = x[1] * y[1], p2 = x[2] * y[2], p3 = x[3] * y[3];
  CHECK(sum_by({.tree = Tree::narrowest, .group = 0}, x, y) == (p0 + p1) + (p2 + p3));
  CHECK(sum_by({.tree = Tree::widest, .group = 0}, x, y) == (p0 + p2) + (p1 + p3));
  CHECK(sum_by({.tree = Tree::sequential, .group = 0}, x, y) == ((p0 + p1) + p2) + p3);
}

TEST_CASE("order: padding is +0, so a lone -0 becomes +0 and a whole group keeps it") {
  const std::vector<float> one(1, 1.0f), minus(1, -0.0f);
  CHECK_FALSE(std::signbit(sum_by(Dot{}, minus, one)));
  CHECK(std::signbit(sum_by({.lane = Lane::whole, .group = 0}, minus, one)));
}

TEST_CASE("order: lane widths that depend on the row, the state's type and the launch") {
  const auto lane = [](Lane kind, int n, const DotContext& context) {
    return resolve({.lane = kind, .group = 0}, n, context).lane;
  };
  CHECK(lane(Lane::row_32nd, 128, {}) == 4);
  CHECK(lane(Lane::row_32nd, 64, {}) == 2);
  CHECK(lane(Lane::bytes16, 128, {DType::f32}) == 4);
  CHECK(lane(Lane::bytes16, 128, {DType::bf16}) == 8);
  CHECK(lane(Lane::by_rows, 128, {DType::f32, 264, 132}) == 4);
  CHECK(lane(Lane::by_rows, 128, {DType::f32, 265, 132}) == 8);
}

TEST_CASE("order: the V rows whose S.k is sequential") {
  const auto from = [](SequentialK rows, int K, DType state) {
    return resolve({.lane = Lane::bytes16, .order = LaneOrder::swapped, .group = 0, .sequential_k = rows}, K, {state})
        .sequential_from;
  };
  CHECK(from(SequentialK::none, 128, DType::f32) == 32);
  CHECK(from(SequentialK::all, 128, DType::f32) == 0);
  CHECK(from(SequentialK::last_pass, 128, DType::f32) == 28);   // 8 passes of 4 rows
  CHECK(from(SequentialK::last_pass, 64, DType::f32) == 24);    // 4 of 8
  CHECK(from(SequentialK::last_pass, 128, DType::bf16) == 24);  // 4 of 8
  CHECK(from(SequentialK::last_pass, 256, DType::bf16) == 28);  // 8 of 4
  CHECK(from(SequentialK::last_pass, 64, DType::bf16) == 0);    // 2 of 16: both
  CHECK(from(SequentialK::last_pass, 32, DType::f32) == 0);     // 2 of 16
  CHECK(from(SequentialK::last_pass, 32, DType::bf16) == 0);    // 1 of 32
  const DotOrder order = resolve({.lane = Lane::four,
                                  .order = LaneOrder::swapped,
                                  .product = Product::fma,
                                  .sequential_k = SequentialK::last_pass},
                                 64, {});
  CHECK_FALSE(is_sequential_k(order, 23));
  CHECK(is_sequential_k(order, 24));
  CHECK_FALSE(is_sequential_k(order, 32));
  CHECK(is_sequential_k(order, 63));
  const Dot plain{.lane = Lane::four, .order = LaneOrder::sequential, .product = Product::fma};
  int different = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    const auto x = row(64, 2 * seed), y = row(64, 2 * seed + 1);
    CHECK(dot(sequential_k(order), x.data(), y.data()) == sum_by(plain, x, y));
    different += dot(sequential_k(order), x.data(), y.data()) != dot(order, x.data(), y.data());
  }
  CHECK(different > 0);
}

TEST_CASE("order: rows a block of the tiled norm takes, at every step of the rule") {
  CHECK(rows_per_block(1, 132) == 1);
  CHECK(rows_per_block(264, 132) == 1);
  CHECK(rows_per_block(265, 132) == 2);
  CHECK(rows_per_block(528, 132) == 2);
  CHECK(rows_per_block(529, 132) == 4);
  CHECK(rows_per_block(1 << 20, 132) == 4);
}
