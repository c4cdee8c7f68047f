#include "explain/edits.hpp"

#include <algorithm>
#include <cstring>

#include "gdnsim/arith.hpp"

namespace gdnsim::explaining {

void shift_window(const Model& model, Bytes& conv, int by, Fill fill) {
  const int columns = model.W - 1;
  const std::size_t bytes = conv.size() / static_cast<std::size_t>(columns);
  const Bytes before = conv;
  for (int j = 0; j < columns; ++j) {
    int from = j + by;
    const bool inside = from >= 0 && from < columns;
    if (fill == Fill::edge) from = std::clamp(from, 0, columns - 1);
    if (fill == Fill::rotate) from = ((from % columns) + columns) % columns;
    std::byte* to = conv.data() + static_cast<std::size_t>(j) * bytes;
    if (!inside && fill == Fill::zero)
      std::memset(to, 0, bytes);
    else
      std::memcpy(to, before.data() + static_cast<std::size_t>(from) * bytes, bytes);
  }
}

std::string columns(int by) {
  const int n = by < 0 ? -by : by;
  return std::to_string(n) + (n == 1 ? " column" : " columns") + (by < 0 ? " too early" : " too late");
}

void transpose_heads(const Model& model, Words& words) {
  const std::size_t width = size_of(model.state_dtype), n = static_cast<std::size_t>(model.K);
  Bytes out(words.recurrent.size());
  for (std::size_t head = 0; head < static_cast<std::size_t>(model.HV); ++head)
    for (std::size_t v = 0; v < n; ++v)
      for (std::size_t k = 0; k < n; ++k)
        std::memcpy(out.data() + ((head * n + k) * n + v) * width,
                    words.recurrent.data() + ((head * n + v) * n + k) * width, width);
  words.recurrent = std::move(out);
}

void round_state(const Model& model, Words& words) {
  if (model.state_dtype != DType::f32) return;
  for (std::size_t at = 0; at < words.recurrent.size(); at += 4) {
    std::uint32_t word;
    std::memcpy(&word, words.recurrent.data() + at, 4);
    word = static_cast<std::uint32_t>(bf16_from_f32(float_of(word))) << 16;
    std::memcpy(words.recurrent.data() + at, &word, 4);
  }
}

}  // namespace gdnsim::explaining
