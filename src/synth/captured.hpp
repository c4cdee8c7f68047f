// What is kept of a recording to make streams of: the tokens of some sequences, and what their blocks were loaded with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gdnsim/captured_stream.hpp"
#include "synth/values.hpp"

namespace gdnsim {

/// A token is a line of bytes: mixed_qkv | a | b | z of one row. One of them: where it lies there.
struct LinePiece {
  Bytes StepInputs::*bytes;
  Tensor tensor;
  std::size_t begin, size;
};

/// What a sequence's block was loaded with; both empty: zeros.
struct CapturedStart {
  Bytes recurrent, conv;
};

/// Of each element of a line, over all tokens.
struct LineStatistics {
  std::vector<float> mean, deviation;
};

struct CapturedLayer {
  std::vector<Bytes> tokens;          // [B] lines, one after another
  std::vector<CapturedStart> starts;  // [B]
  LineStatistics statistics;
};

class Captured {
 public:
  Model model;
  std::string source;
  std::vector<LayerParams> params;    // [L]
  std::vector<bool> has_z;            // [L]
  std::vector<std::int64_t> lengths;  // [B] tokens
  std::vector<int> layers;            // captured, ascending
  std::vector<CapturedLayer> kept;    // one for each of them

  int rows() const { return static_cast<int>(lengths.size()); }
  const CapturedLayer& of(int layer) const;
  std::array<LinePiece, 4> pieces(int layer) const;
  std::size_t line_bytes(int layer) const { return pieces(layer)[3].begin + pieces(layer)[3].size; }
};

}  // namespace gdnsim
