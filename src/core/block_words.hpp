// One block's two states, taken out of a pool and put back. Private to recordings with faults and to explain.
#pragma once

#include "gdnsim/pool.hpp"

namespace gdnsim {

struct BlockWords {
  Bytes recurrent, conv;
};

inline BlockWords read_words(const Pool& pool, int layer, std::int32_t block) {
  BlockWords words{Bytes(pool.model().state_bytes()), Bytes(pool.model().conv_bytes())};
  pool.read(layer, block, words.recurrent, words.conv);
  return words;
}

inline void write_words(Pool& pool, int layer, std::int32_t block, const BlockWords& words) {
  pool.write(layer, block, words.recurrent, words.conv);
}

}  // namespace gdnsim
