// Fitting one path from one or more sources. Private to fit.
#pragma once

#include "fit/search.hpp"
#include "gdnsim/fit.hpp"

namespace gdnsim::fitting {

/// The first source is searched, the others must agree. `hint` is where the search starts besides the presets.
FitPath fit_path(const std::vector<Source>& sources, Backend& backend, const Deadline& deadline, const Contract* hint,
                 const std::function<void(const std::string&)>& progress);

}  // namespace gdnsim::fitting
