// The report as a page: src/report/page.html, which the build turned into report_page.inc.
#include <nlohmann/json.hpp>

#include "gdnsim/report.hpp"
#include "report/page.hpp"

namespace gdnsim {
namespace {

constexpr std::string_view kPage =
#include "report_page.inc"
    ;

}  // namespace

std::string to_html(const Report& report) { return filled_page(kPage, to_json(report)); }

}  // namespace gdnsim
