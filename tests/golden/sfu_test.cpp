// The approximate functions against the rules and tables of docs/arithmetic.md, section 4. The long suite (sfu_long)
// takes every input; here a stride of them, every exponent's ends, the special values as measured, and the tables'
// checksums.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "support/sfu_pairs.hpp"

using namespace gdnsim;
using namespace gdnsim::second;

namespace {

struct Special {
  std::uint32_t x, rcp, sqrt, rsqrt, ex2_ftz, ex2, log;
};
constexpr std::uint32_t kNan = 0x7FFFFFFF, kPlusInf = 0x7F800000, kMinusInf = 0xFF800000, kMinusZero = 0x80000000,
                        k1 = 0x3F800000;

// Measured on an H200. The arguments of ex2 below -126 stand in a case of their own.
constexpr Special kSpecials[] = {
    {0x00000000, kPlusInf, 0, kPlusInf, k1, k1, kMinusInf},
    {0x00000001, kPlusInf, 0, kPlusInf, k1, k1, 0xC2CE8ED0},
    {0x80000000, kMinusInf, kMinusZero, kMinusInf, k1, k1, kMinusInf},
    {0x80000001, kMinusInf, kMinusZero, kMinusInf, k1, k1, kNan},
    {0x807FFFFF, kMinusInf, kMinusZero, kMinusInf, k1, k1, kNan},
    {0x7F7FFFFF, 0, 0x5F7FFFFF, 0x1F800000, kPlusInf, kPlusInf, 0x42B17218},
    {0xFF7FFFFF, kMinusZero, kNan, kNan, 0, 0, kNan},
    {kPlusInf, 0, kPlusInf, 0, kPlusInf, kPlusInf, kPlusInf},
    {kMinusInf, kMinusZero, kNan, kNan, 0, 0, kNan},
    {0x7FC00000, kNan, kNan, kNan, kNan, kNan, kNan},
    {0x7F800001, kNan, kNan, kNan, kNan, kNan, kNan},
    {0xFFC12345, kNan, kNan, kNan, kNan, kNan, kNan},
};

std::uint32_t bits(float value) { return bits_of(value); }

}  // namespace

TEST_CASE("sfu: the rebuilt tables have the measured checksums") {
  CHECK(crc_of(Table::ex2) == 0x3FE67D9Bu);
  CHECK(crc_of(Table::rcp) == 0xA9F2ECFCu);
  CHECK(crc_of(Table::sqrt) == 0x98891B5Du);
  CHECK(crc_of(Table::rsqrt) == 0x9D0587E4u);
}

TEST_CASE("sfu: the library's mantissas are those tables, every entry") {
  std::uint64_t wrong = 0;
  const auto compare = [&wrong](Table table, std::uint32_t (*got)(std::uint32_t)) {
    for (std::size_t i = 0; i < entries(table); ++i)
      wrong += got(static_cast<std::uint32_t>(i)) != bits_of(entry(table, i)) ? 1u : 0u;
  };
  compare(Table::ex2, golden::ex2_mantissa);
  compare(Table::rcp, golden::rcp_mantissa);
  compare(Table::sqrt, golden::sqrt_mantissa);
  compare(Table::rsqrt, golden::rsqrt_mantissa);
  CHECK(wrong == 0);
}

TEST_CASE("sfu: special values as measured") {
  for (const Special& s : kSpecials) {
    CAPTURE(s.x);
    const float x = float_of(s.x);
    CHECK(bits(golden::rcp_approx_ftz(x)) == s.rcp);
    CHECK(bits(golden::sqrt_approx_ftz(x)) == s.sqrt);
    CHECK(bits(golden::rsqrt_approx_ftz(x)) == s.rsqrt);
    CHECK(bits(golden::ex2_approx_ftz(x)) == s.ex2_ftz);
    CHECK(bits(golden::ex2_approx(x)) == s.ex2);
    CHECK(bits(golden::log_libdevice(x)) == s.log);
  }
  CHECK(bits(golden::ex2_approx(-126.5f)) == 0x005A8279u);
  CHECK(bits(golden::ex2_approx(-127.0f)) == 0x003FFFFFu);
  CHECK(bits(golden::ex2_approx(-149.0f)) == 0x00000001u);
  CHECK(bits(golden::ex2_approx_ftz(-126.5f)) == 0u);
  CHECK(bits(golden::ex2_approx_ftz(128.0f)) == kPlusInf);
}

TEST_CASE("sfu: every exponent's ends") {
  for (const Pair& pair : sfu_pairs()) {
    CAPTURE(pair.name);
    CHECK(sweep(pair, boundary_inputs()).wrong == 0);
  }
}

TEST_CASE("sfu: a stride of all inputs") {
  for (const Pair& pair : sfu_pairs()) {
    CAPTURE(pair.name);
    const Swept swept = sweep(pair, 0, std::uint64_t{1} << 32, 2003);
    CHECK(swept.compared == 2144268);
    CHECK(swept.wrong == 0);
  }
}

TEST_CASE("sfu: div_full, ends of the ranges against each other and a stride") {
  std::vector<std::uint32_t> ends;
  for (float x :
       {0.0f, 0x1p-149f, 0x1p-127f, 0x1p-126f, 0x1p-125f, 0x1p-102f, 1.0f, 3.0f, 0x1p101f, 0x1p125f, 0x1p126f, 0x1p127f,
        std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity(), float_of(0x7FC00001u)})
    for (std::uint32_t i : {0xFFFFFFFFu, 0u, 1u})
      for (std::uint32_t sign : {0u, 0x80000000u}) ends.push_back((bits_of(x) + i) ^ sign);
  std::uint64_t wrong = 0;
  for (std::uint32_t a : ends)
    for (std::uint32_t b : ends)
      wrong += bits(golden::div_full(float_of(a), float_of(b))) != bits(div_full(float_of(a), float_of(b))) ? 1u : 0u;
  CHECK(wrong == 0);
  for (const Pair& pair : div_pairs()) {
    CAPTURE(pair.name);
    CHECK(sweep(pair, 0, std::uint64_t{1} << 32, 4003).wrong == 0);
  }
}

TEST_CASE("sfu: planted mistakes are caught") {
  const auto rounded_exp2 = [](float x) { return bits(static_cast<float>(std::exp2(static_cast<double>(x)))); };
  const auto plain_division = [](float x) { return bits(canonical(1.0f / x)); };
  const Pair correctly_rounded{"2^x correctly rounded", rounded_exp2, [](float x) { return bits(ex2_ftz(x)); }};
  const Pair divided{"1/x correctly rounded", plain_division, [](float x) { return bits(rcp_ftz(x)); }};
  const Pair kept{"ex2 that keeps denormals", [](float x) { return bits(golden::ex2_approx(x)); },
                  [](float x) { return bits(ex2_ftz(x)); }};
  CHECK(quiet_sweep(correctly_rounded, 0x3F000000, 100000).wrong > 100);
  CHECK(quiet_sweep(divided, 0x3F800000, 100000).wrong > 100);
  CHECK(quiet_sweep(kept, bits(-126.5f), 1000).wrong == 1000);
}
