// The GPU's approximate functions from their tables and rules; no code in common with golden/sfu.
#include "support/approximate.hpp"

#include <zlib.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/rounding.hpp"

namespace gdnsim::second {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kSmallestNormal = 0x1p-126f;
const float kTheNaN = float_of(0x7FFFFFFFu);

std::vector<std::int8_t> read_table(const std::string& name, std::size_t count) {
  const char* folder = std::getenv("GDNSIM_TABLES");
  if (folder == nullptr) throw std::runtime_error("GDNSIM_TABLES is not set: it names the folder tests/tables");
  const std::string path = std::string(folder) + "/" + name;
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) throw std::runtime_error(path + ": cannot be opened");
  std::vector<unsigned char> packed(1 << 20);
  packed.resize(std::fread(packed.data(), 1, packed.size(), file));
  std::fclose(file);
  std::vector<std::int8_t> table(count);
  uLongf length = count;
  const int status = uncompress(reinterpret_cast<Bytef*>(table.data()), &length, packed.data(), packed.size());
  if (status != Z_OK || length != count) throw std::runtime_error(path + ": not a table of the expected length");
  return table;
}

const std::vector<std::int8_t>& differences(Table table) {
  static const std::array<std::vector<std::int8_t>, 4> all{
      read_table("ex2frac.d8.z", 1u << 23), read_table("rcp.d8.z", 1u << 23), read_table("sqrt.d8.z", 1u << 24),
      read_table("rsqrt.d8.z", 1u << 24)};
  return all[static_cast<std::size_t>(table)];
}

/// The function at table position `i`, in double; a table's CRC shows that its rounding to f32 is the right one.
double function_at(Table table, std::size_t i) {
  const double fraction = std::ldexp(static_cast<double>(i), -23);
  if (table == Table::ex2) return std::exp2(fraction);
  if (table == Table::rcp) return 1 / (1 + fraction);
  const double x = float_of(0x3F800000u + static_cast<std::uint32_t>(i));
  return table == Table::sqrt ? std::sqrt(x) : 1 / std::sqrt(x);
}

/// value * 2^exponent in f32, to zero with the sign kept when it is below the normal range.
float scaled_ftz(float value, int exponent) {
  const double exact = std::ldexp(static_cast<double>(value), exponent);
  return std::fabs(exact) < kSmallestNormal ? std::copysign(0.0f, value) : static_cast<float>(exact);
}

/// A positive normal float as fraction bits and unbiased exponent.
struct Parts {
  std::size_t mantissa;
  int exponent;
};
Parts parts_of(float x) {
  const std::uint32_t bits = bits_of(x) & 0x7FFFFFFFu;
  return {bits & 0x7FFFFFu, static_cast<int>(bits >> 23) - 127};
}

int floor_half(int exponent) { return static_cast<int>(std::floor(exponent / 2.0)); }

/// Position in the sqrt and rsqrt tables: the exponent's lowest bit above the fraction.
std::size_t parity_position(Parts parts) {
  const int odd = parts.exponent - 2 * floor_half(parts.exponent);
  return (static_cast<std::size_t>(odd) << 23) + parts.mantissa;
}

float flushed(float x) { return std::fabs(x) < kSmallestNormal ? std::copysign(0.0f, x) : x; }

/// fma that takes denormals as zeros and gives none.
float fma_ftz(float x, float y, float z) { return canonical(flushed(std::fma(flushed(x), flushed(y), flushed(z)))); }

}  // namespace

std::size_t entries(Table table) { return differences(table).size(); }

float entry(Table table, std::size_t i) {
  const std::uint32_t nearest = bits_of(static_cast<float>(function_at(table, i)));
  return float_of(nearest + static_cast<std::uint32_t>(static_cast<int>(differences(table)[i])));
}

std::uint32_t crc_of(Table table) {
  uLong crc = crc32(0, nullptr, 0);
  for (std::size_t i = 0; i < entries(table); ++i) {
    const std::uint32_t bits = bits_of(entry(table, i));
    const Bytef word[4] = {static_cast<Bytef>(bits), static_cast<Bytef>(bits >> 8), static_cast<Bytef>(bits >> 16),
                           static_cast<Bytef>(bits >> 24)};
    crc = crc32(crc, word, 4);
  }
  return static_cast<std::uint32_t>(crc);
}

float rcp_ftz(float x) {
  if (x != x) return kTheNaN;
  if (std::isinf(x)) return std::copysign(0.0f, x);
  if (std::fabs(x) < kSmallestNormal) return std::copysign(kInf, x);
  const Parts parts = parts_of(x);
  return std::copysign(scaled_ftz(entry(Table::rcp, parts.mantissa), -parts.exponent), x);
}

float sqrt_ftz(float x) {
  if (std::fabs(x) < kSmallestNormal) return std::copysign(0.0f, x);
  if (!(x > 0)) return kTheNaN;
  if (std::isinf(x)) return x;
  const Parts parts = parts_of(x);
  return scaled_ftz(entry(Table::sqrt, parity_position(parts)), floor_half(parts.exponent));
}

float rsqrt_ftz(float x) {
  if (std::fabs(x) < kSmallestNormal) return std::copysign(kInf, x);
  if (!(x > 0)) return kTheNaN;
  if (std::isinf(x)) return 0;
  const Parts parts = parts_of(x);
  return scaled_ftz(entry(Table::rsqrt, parity_position(parts)), -floor_half(parts.exponent));
}

float ex2_ftz(float x) {
  if (x != x) return kTheNaN;
  if (x >= 128) return kInf;
  if (x < -200) return 0;  // far below 2^-126
  const auto t = static_cast<std::int64_t>(std::floor(std::ldexp(std::fabs(static_cast<double>(x)), 23)));
  constexpr std::int64_t kOne = 1 << 23;
  const std::int64_t n = !std::signbit(x) ? t : t % kOne == 0 ? -t : -t - 1;
  const std::int64_t whole = static_cast<std::int64_t>(std::floor(static_cast<double>(n) / kOne));
  return scaled_ftz(entry(Table::ex2, static_cast<std::size_t>(n - whole * kOne)), static_cast<int>(whole));
}

float ex2(float x) {
  if (!(x < -126)) return ex2_ftz(x);
  const float root = ex2_ftz(x / 2);
  return root * root;
}

float div_full(float a, float b) {
  const float size = std::fabs(b);
  const float scale = size > 0x1p126f ? 0.25f : size < 0x1p-126f ? 0x1p24f : 1.0f;
  return (Num{a} * Num{scale} * Num{rcp_ftz((Num{b} * Num{scale}).value)}).value;
}

float log_ftz(float x) {
  if (x == 0) return -kInf;
  if (x < 0) return kTheNaN;
  if (x == kInf || x != x) return fma_ftz(x, kInf, kInf);
  const bool denormal = x < kSmallestNormal;
  if (denormal) x *= 0x1p23f;
  const auto bits = static_cast<std::int32_t>(bits_of(x));
  const auto e = static_cast<std::int32_t>(static_cast<std::uint32_t>(bits - 1059760811) & 0xFF800000u);
  const float m = float_of(static_cast<std::uint32_t>(bits - e));
  const float exponent = fma_ftz(static_cast<float>(e), 0x1p-23f, denormal ? -23.0f : 0.0f);
  const float f = m - 1;
  float r = float_of(0xBE055027u);
  for (std::uint32_t c :
       {0x3E1039F6u, 0xBDF8CDCCu, 0x3E0F2955u, 0xBE2AD8B9u, 0x3E4CED0Bu, 0xBE7FFF22u, 0x3EAAAA78u, 0xBF000000u})
    r = fma_ftz(r, f, float_of(c));
  r = flushed(f * r);
  r = fma_ftz(r, f, f);
  return fma_ftz(exponent, float_of(0x3F317218u), r);
}

}  // namespace gdnsim::second
