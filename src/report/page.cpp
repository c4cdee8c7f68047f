#include "report/page.hpp"

#include <nlohmann/json.hpp>

#include "gdnsim/error.hpp"
#include "gdnsim/report.hpp"

namespace gdnsim {
namespace {

constexpr std::string_view kPlace = "REPORT_JSON";  // stands once in a template, where the data goes

std::string harmless(const std::string& json) {
  std::string text;
  for (const char c : json) text += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return text;
}

}  // namespace

std::string filled_page(std::string_view page, const nlohmann::ordered_json& json) {
  const std::size_t at = page.find(kPlace);
  GDNSIM_CHECK(at != std::string_view::npos);
  return std::string(page.substr(0, at)) + harmless(json_text(json)) + std::string(page.substr(at + kPlace.size()));
}

}  // namespace gdnsim
