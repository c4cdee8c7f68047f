// Which rows of a layer can be run by which process: those that hand no state to one another. Private to replay.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gdnsim/slice.hpp"
#include "gdnsim/stream.hpp"

namespace gdnsim {

/// At most `most` portions of the stream's blocks before `last_step`, about equally many row steps each. Whatever goes from a
/// block to another - a copy, a row that moves - stays within one portion; with nothing to part there is one.
std::vector<std::shared_ptr<const Portion>> portions_of(const Stream& stream, std::int64_t last_step, int most);

}  // namespace gdnsim
