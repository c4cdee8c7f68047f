// JSON as text: indented, but a list of plain values stays on one line, so that a report can be read and compared by lines.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "gdnsim/report.hpp"

namespace gdnsim {
namespace {

using Json = nlohmann::ordered_json;

std::string line_of(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

constexpr std::size_t kShortText = 24;  // longer texts get a line of their own

bool plain(const Json& j) {
  if (j.is_string()) return j.get_ref<const std::string&>().size() <= kShortText;
  return !j.is_structured();
}

/// Lists of values, and lists that begin with values and end with an object of values (a cell).
bool on_one_line(const Json& j) {
  if (j.empty()) return true;
  if (!j.is_array()) return plain(j);
  return plain(j.front()) && std::ranges::all_of(j, [](const Json& item) {
           return plain(item) || (item.is_object() && std::ranges::all_of(item, plain));
         });
}

void write(std::string& out, const Json& j, std::size_t indent) {
  if (!j.is_structured() || on_one_line(j)) {
    out += line_of(j);
    return;
  }
  const std::string space(indent + 2, ' ');
  out += j.is_object() ? "{\n" : "[\n";
  bool first = true;
  for (const auto& [key, value] : j.items()) {
    out += (first ? "" : ",\n") + space;
    if (j.is_object()) out += line_of(key) + ": ";
    write(out, value, indent + 2);
    first = false;
  }
  out += "\n" + std::string(indent, ' ') + (j.is_object() ? "}" : "]");
}

}  // namespace

std::string json_text(const Json& json) {
  std::string out;
  write(out, json, 0);
  return out;
}

}  // namespace gdnsim
