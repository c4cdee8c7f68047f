// The report as a page: the JSON put into a template, src/report_page.html, that the build turned into report_page.inc.
#include <nlohmann/json.hpp>
#include <string_view>

#include "gdnsim/error.hpp"
#include "gdnsim/report.hpp"

namespace gdnsim {
namespace {

constexpr std::string_view kPage =
#include "report_page.inc"
    ;
constexpr std::string_view kPlace = "REPORT_JSON";  // stands once in the template, where the data goes

/// JSON that cannot end the <script> it stands in, whatever its texts hold.
std::string harmless(const std::string& json) {
  std::string text;
  for (const char c : json) text += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return text;
}

}  // namespace

std::string to_html(const Report& report) {
  const std::size_t at = kPage.find(kPlace);
  GDNSIM_CHECK(at != std::string_view::npos);
  return std::string(kPage.substr(0, at)) + harmless(json_text(to_json(report))) +
         std::string(kPage.substr(at + kPlace.size()));
}

}  // namespace gdnsim
