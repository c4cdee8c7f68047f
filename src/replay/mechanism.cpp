#include "gdnsim/mechanism.hpp"

namespace gdnsim {

std::string_view name_of(Proof proof) {
  constexpr std::string_view words[] = {"rerun", "fact", "pattern"};
  return words[static_cast<std::size_t>(proof)];
}

}  // namespace gdnsim
