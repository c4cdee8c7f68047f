// A page of ours with its data: JSON put into a template that the build turned into a string (tools/embed_page.py).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace gdnsim {

/// The JSON goes where the template says REPORT_JSON. It cannot end the <script> it stands in, whatever its texts hold.
std::string filled_page(std::string_view page, const nlohmann::ordered_json& json);

}  // namespace gdnsim
