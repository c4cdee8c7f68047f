// Summation orders: how a row of products becomes one number (docs/arithmetic.md, rules D1-D7; Dot in contract.hpp).
#pragma once

#include <cstdint>

#include "gdnsim/contract.hpp"
#include "gdnsim/types.hpp"

namespace gdnsim {

/// V rows of a state come in tiles of so many (rule D7).
inline constexpr int kTileRows = 32;

/// A Dot with its lane width and group size worked out for one row length.
struct DotOrder {
  int n = 0;      // elements of a row
  int lane = 1;   // consecutive elements a lane sums
  int lanes = 0;  // ceil(n / lane)
  int group = 1;  // lanes combined by `tree`, rounded up to a power of two for a butterfly
  LaneOrder order = LaneOrder::sequential;
  Product product = Product::rounded;
  Exchange exchange = Exchange::plain;
  Tree tree = Tree::widest;
  Tree groups = Tree::sequential;
  int sequential_from = kTileRows;  // S.k is sequential in rows v with v % kTileRows >= this
  bool operator==(const DotOrder&) const = default;
};

/// What a lane width can depend on besides the row.
struct DotContext {
  DType state_dtype = DType::f32;  // Lane::bytes16
  std::int64_t launch_rows = 1;    // Lane::by_rows: rows of the norm's launch, B x HV
  int multiprocessors = 132;       // Lane::by_rows
};

/// Rows that one block of the tiled norm takes: min(4, next power of two of ceil(rows / (2 x multiprocessors))) (rule N4).
int rows_per_block(std::int64_t launch_rows, int multiprocessors);

/// Is S.k of V row v sequential, whatever `order.order` says?
inline bool is_sequential_k(const DotOrder& order, std::int64_t v) { return v % kTileRows >= order.sequential_from; }
/// The order of S.k in those rows.
inline DotOrder sequential_k(DotOrder order) {
  order.order = LaneOrder::sequential;
  return order;
}

/// The contract in a launch of so many rows: lanes `by-rows` become the width that they have there.
Contract for_launch(Contract contract, std::int64_t launch_rows);

DotOrder resolve(const Dot& dot, int n, const DotContext& context);

/// The longest row a dot can have; `resolve` checks it.
inline constexpr int kMaxRow = 16384;

/// sum of x[i] * y[i] in that order. A NaN may come out with any payload: canonicalise where it is stored.
float dot(const DotOrder& order, const float* x, const float* y);

}  // namespace gdnsim
