// exp_cr, log_cr, log1p_cr and the conversions of <gdnsim/arith.hpp>. The long suite (arith_long) takes every input.
//
// Here: MPFR directly over a coarse prime stride and over boundary grids and hard cases; the enclosures of
// support/exact.hpp over a fine prime stride, after they were themselves compared with MPFR.
#include <doctest/doctest.h>

#include <cmath>

#include "support/arith_pairs.hpp"

using namespace gdnsim::second;
using gdnsim::bf16_from_f32;
using gdnsim::exp_cr;
using gdnsim::f16_from_f32;
using gdnsim::f32_from_bf16;
using gdnsim::f32_from_f16;
using gdnsim::log1p_cr;
using gdnsim::log_cr;

namespace {

constexpr std::uint64_t kAll = std::uint64_t{1} << 32;

/// Where exp leaves the finite numbers, the normal ones and the representable ones; where log and log1p pass zero, and
/// more.
std::vector<std::uint32_t> turning_points() {
  std::vector<std::uint32_t> inputs = boundary_inputs();
  for (float x : {88.72284f, -87.33655f, -103.97208f, -103.2789f, 20.0f,    1.0f,     -1.0f,     0.0f,
                  -0.0f,     0.75f,      1.5f,        0x1p-7f,    -0x1p-7f, 0x1p-12f, -0x1p-12f, 0x1p-24f,
                  -0x1p-24f, 0x1p-25f,   -0x1p-25f,   0x1p24f,    0x1p25f,  0x1p52f})
    add_around(inputs, x, 1000);
  return inputs;
}

// The inputs whose exact value lies closest to the middle between two floats (within 2^-50 of the value or so), found
// by a search over all inputs with MPFR; the exact cases that are ties by construction come with the turning points.
const std::vector<std::uint32_t> kHardExp{0xC16912CD, 0xBBF0EDF1, 0x377EFF81, 0xBAE0E25C, 0xB3000000, 0x39C6BE5B,
                                          0x38E69CC1, 0x383A3EF1, 0x3D1A274E, 0x40315B33, 0x4001B249, 0x39E5BB1D,
                                          0x36FDFFC1, 0x4288942B, 0x367BFFE1, 0x35F7FFF1, 0x356FFFF9, 0x34DFFFFD,
                                          0x343FFFFF, 0x33800000, 0x337FFFFF, 0xBC2A461A, 0x3FE67199, 0xC0781533};
const std::vector<std::uint32_t> kHardLog{0x65D890D3, 0x4C5D65A5, 0x4D604EBE, 0x41178FEB, 0x1F116AB8, 0x66A8C860,
                                          0x3C413D3A, 0x6F31A8EC, 0x38DCBE38, 0x4665A9A6, 0x5EE8984E, 0x3BF86EF0,
                                          0x79E7EC37, 0x0DC8BBA4, 0x2C4C24B7, 0x111C87F8, 0x1A8446CB, 0x464D5B2B,
                                          0x66ABBD63, 0x2E492984, 0x4E85F412, 0x29FD22F8, 0x28E3FA26, 0x29E6126B};
const std::vector<std::uint32_t> kHardLog1p{0x35400003, 0xB53FFFFD, 0x65D890D3, 0x3EFD81AD, 0x3710001B, 0xB70FFFE5,
                                            0x55185F82, 0x41078FEB, 0x66A8C860, 0xBB0EC8C4, 0x6F31A8EC, 0x3770004B,
                                            0xB76FFFB5, 0x4665A5A6, 0x5EE8984E, 0x79E7EC37, 0x3EBE9143, 0x3DDBFEC3,
                                            0x464D572B, 0x36DEDACE, 0x66ABBD63, 0x5D800341, 0x62B467BA, 0x5F64C24A};

}  // namespace

TEST_CASE("arith: MPFR over a stride of all inputs") {
  for (const Pair& pair : exact_pairs()) {
    CAPTURE(pair.name);
    const Swept swept = sweep(pair, 0, kAll, 2003);
    CHECK(swept.compared == 2144268);
    CHECK(swept.wrong == 0);
  }
}

TEST_CASE("arith: MPFR at every exponent's ends and around the turning points") {
  for (const Pair& pair : exact_pairs()) {
    CAPTURE(pair.name);
    CHECK(sweep(pair, turning_points()).wrong == 0);
  }
}

TEST_CASE("arith: MPFR at the hardest cases to round") {
  const std::vector<Pair> pairs = exact_pairs();
  CHECK(sweep(pairs[0], kHardExp).wrong == 0);
  CHECK(sweep(pairs[1], kHardLog).wrong == 0);
  CHECK(sweep(pairs[2], kHardLog1p).wrong == 0);
}

TEST_CASE("arith: the enclosures agree with MPFR") {
  const auto bits = [](auto function) { return [function](float x) { return bits_of(function(x)); }; };
  const std::vector<Pair> pairs{
      {"quick_exp", bits([](float x) { return quick_exp(x, undecided); }), bits(exact_exp)},
      {"quick_log", bits([](float x) { return quick_log(x, undecided); }), bits(exact_log)},
      {"quick_log1p", bits([](float x) { return quick_log1p(x, undecided); }), bits(exact_log1p)},
  };
  for (const Pair& pair : pairs) {
    CAPTURE(pair.name);
    CHECK(sweep(pair, 0, kAll, 20011).wrong == 0);
    CHECK(sweep(pair, turning_points()).wrong == 0);
  }
}

TEST_CASE("arith: the enclosures over a fine stride") {
  for (const Pair& pair : quick_pairs()) {
    CAPTURE(pair.name);
    const Swept swept = sweep(pair, 0, kAll, 1009);
    CHECK(swept.compared == 4256658);
    CHECK(swept.wrong == 0);
  }
}

TEST_CASE("arith: special values") {
  const float inf = float_of(0x7F800000u);
  CHECK(bits_of(exp_cr(inf)) == 0x7F800000u);
  CHECK(bits_of(exp_cr(-inf)) == 0u);
  CHECK(bits_of(exp_cr(-0.0f)) == 0x3F800000u);
  CHECK(bits_of(log_cr(-0.0f)) == 0xFF800000u);
  CHECK(bits_of(log_cr(1.0f)) == 0u);
  CHECK(bits_of(log_cr(-1.0f)) == 0x7FFFFFFFu);
  CHECK(bits_of(log1p_cr(-0.0f)) == 0x80000000u);
  CHECK(bits_of(log1p_cr(-1.0f)) == 0xFF800000u);
  CHECK(bits_of(log1p_cr(-1.5f)) == 0x7FFFFFFFu);
  for (std::uint32_t nan : {0x7F800001u, 0x7FC00000u, 0xFF800001u, 0xFFFFFFFFu, 0x7FFFFFFFu}) {
    CAPTURE(nan);
    CHECK(bits_of(exp_cr(float_of(nan))) == 0x7FFFFFFFu);
    CHECK(bits_of(log_cr(float_of(nan))) == 0x7FFFFFFFu);
    CHECK(bits_of(log1p_cr(float_of(nan))) == 0x7FFFFFFFu);
    CHECK(bf16_from_f32(float_of(nan)) == 0x7FFF);
    CHECK(f16_from_f32(float_of(nan)) == 0x7FFF);
  }
}

TEST_CASE("arith: conversions to 16 bits over a stride and at every exponent's ends") {
  for (const Pair& pair : conversion_pairs()) {
    CAPTURE(pair.name);
    CHECK(sweep(pair, 0, kAll, 1009).wrong == 0);
    CHECK(sweep(pair, boundary_inputs(64)).wrong == 0);
  }
}

TEST_CASE("arith: conversions at every 16-bit value, every tie between two of them, and their neighbours") {
  const auto around_words = [](float (*widen)(std::uint16_t)) {
    std::vector<std::uint32_t> inputs;
    for (std::uint32_t word = 0; word < 0x10000; ++word) {
      const float low = widen(static_cast<std::uint16_t>(word)), high = widen(static_cast<std::uint16_t>(word + 1));
      add_around(inputs, low, 1);
      add_around(inputs, static_cast<float>((static_cast<double>(low) + static_cast<double>(high)) / 2), 1);
    }
    return inputs;
  };
  CHECK(sweep(conversion_pairs()[0], around_words(from_bf16)).wrong == 0);
  CHECK(sweep(conversion_pairs()[1], around_words(from_f16)).wrong == 0);
}

TEST_CASE("arith: widening, all 65,536 words") {
  std::uint32_t wrong = 0;
  for (std::uint32_t word = 0; word < 0x10000; ++word) {
    const auto w = static_cast<std::uint16_t>(word);
    wrong += bits_of(f32_from_bf16(w)) != bits_of(from_bf16(w)) ? 1u : 0u;
    wrong += bits_of(f32_from_f16(w)) != bits_of(from_f16(w)) ? 1u : 0u;
  }
  CHECK(wrong == 0);
}

TEST_CASE("arith: planted mistakes are caught") {
  const auto exact = [](float x) { return bits_of(exact_exp(x)); };
  CHECK(quiet_sweep({"expf of 2x by squaring", [](float x) { return bits_of(exp_cr(x / 2) * exp_cr(x / 2)); }, exact},
                    0x3F800001, 10000)
            .wrong > 1000);
  const auto truncated = [](float x) { return bits_of(x) >> 16; };
  const auto nearest = [](float x) { return std::uint32_t{to_bf16(x)}; };
  CHECK(quiet_sweep({"bf16 truncated", truncated, nearest}, 0x3F800000, 0x20000).wrong > 0xFF00);
}
