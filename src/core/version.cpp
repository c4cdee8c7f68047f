#include "gdnsim/version.hpp"

namespace gdnsim {

const char* version() { return GDNSIM_VERSION; }

}  // namespace gdnsim
