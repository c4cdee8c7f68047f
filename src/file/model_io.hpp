// The groups that traces and logs have in common: format and version, /model, /provenance.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "file/hdf5_io.hpp"
#include "gdnsim/types.hpp"

namespace gdnsim {

/// Returns @version. Throws Error unless @format is `format` and it is 1 .. `newest`; a newer one is refused by saying so.
std::int64_t require_format(const h5::Group& root, std::string_view format, int newest);

/// Reads and validates /model of a file of that version. Throws Error naming the attribute.
Model read_model(const h5::Group& root, std::int64_t version);
/// Creates /model and fills it.
void write_model(h5::Group& root, const Model& model);

/// Text attributes of /provenance; empty when there is no such group.
std::vector<std::pair<std::string, std::string>> read_provenance(const h5::Group& root);
/// Creates /provenance unless there is nothing to say.
void write_provenance(h5::Group& root, const std::vector<std::pair<std::string, std::string>>& provenance);

}  // namespace gdnsim
