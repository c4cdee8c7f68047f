#include "trace/rank_heads.hpp"

#include <cstring>

#include "gdnsim/error.hpp"

namespace gdnsim::ranks {
namespace {

std::size_t line_bytes(const Parts& parts) {
  std::size_t bytes = 0;
  for (const Part& part : parts) bytes += part.size();
  return bytes;
}

}  // namespace

Parts channels(const Model& rank, std::size_t bytes) {
  const std::size_t K = static_cast<std::size_t>(rank.K) * bytes, V = static_cast<std::size_t>(rank.V) * bytes;
  return {{rank.H, K}, {rank.H, K}, {rank.HV, V}};
}

Parts value_heads(const Model& rank, std::size_t bytes) { return {{rank.HV, bytes}}; }

Parts of_tap(const Model& rank, Tap tap) {
  const TapShape shape = shape_of(tap, rank);
  if (tap == Tap::conv_acc || tap == Tap::conv_out) return channels(rank, size_of(shape.type));
  return {{shape.heads, static_cast<std::size_t>(shape.per_head) * size_of(shape.type)}};
}

Bytes join(const Parts& parts, std::span<const Bytes> ranks) {
  const std::size_t line = line_bytes(parts), lines = ranks.front().size() / line;
  Bytes whole(ranks.front().size() * ranks.size());
  std::byte* to = whole.data();
  for (std::size_t i = 0; i < lines; ++i)
    for (std::size_t at = i * line; const Part& part : parts) {
      for (const Bytes& rank : ranks) {
        GDNSIM_CHECK(rank.size() == lines * line);
        std::memcpy(to, rank.data() + at, part.size());
        to += part.size();
      }
      at += part.size();
    }
  return whole;
}

Bytes cut(const Parts& parts, const Bytes& whole, std::size_t rank, std::size_t ranks) {
  const std::size_t line = line_bytes(parts), lines = whole.size() / (line * ranks);
  GDNSIM_CHECK(whole.size() == lines * line * ranks);
  Bytes share(lines * line);
  std::byte* to = share.data();
  for (std::size_t i = 0; i < lines; ++i)
    for (std::size_t at = i * line * ranks; const Part& part : parts) {
      std::memcpy(to, whole.data() + at + rank * part.size(), part.size());
      to += part.size();
      at += part.size() * ranks;
    }
  return share;
}

}  // namespace gdnsim::ranks
