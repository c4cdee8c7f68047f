// The GPU's approximate functions, a second time: the rules of docs/arithmetic.md (section 4) over the table files.
// Written to be checked against the text, not to be fast. The tables come from the folder in GDNSIM_TABLES.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdnsim::second {

/// The hardware's results for one function: correctly rounded bits plus the file's difference in units of the last
/// place.
enum class Table { ex2, rcp, sqrt, rsqrt };
std::size_t entries(Table table);
float entry(Table table, std::size_t i);
/// CRC-32 (zlib's) of all entries as little-endian f32.
std::uint32_t crc_of(Table table);

float rcp_ftz(float x);
float sqrt_ftz(float x);
float rsqrt_ftz(float x);
float ex2_ftz(float x);
float ex2(float x);
float div_full(float a, float b);
float log_ftz(float x);

}  // namespace gdnsim::second
