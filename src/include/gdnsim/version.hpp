// The library's version, as meson.build has it.
#pragma once

namespace gdnsim {

const char* version();

}  // namespace gdnsim
