#include "engine/plan/report/report.h"

#include <string_view>

#include "engine/core/base/check.h"
#include "engine/core/base/visible.h"
#include "engine/plan/report/report_data.h"

namespace moonshard {
namespace {

void Replace(std::string& text, std::string_view mark, std::string_view by) {
  const size_t at = text.find(mark);
  Check(at != std::string::npos, "page.html has no " + std::string(mark));
  text.replace(at, mark.size(), by);
}

// JSON for a script element: without a "<" that could end it, and without what a terminal would obey where the page
// goes to stdout.
std::string Embedded(const JsonValue& value) {
  std::string out;
  for (const char c : VisibleJson(WriteJson(value, 0))) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

std::string PageOf(const JsonValue& data) {
  std::string page(PageHtml());
  Replace(page, "/*STYLE*/", PageStyle());
  Replace(page, "/*SCRIPT*/", PageScript());
  Replace(page, "/*DATA*/", Embedded(data));
  return page;
}

}  // namespace

std::string ReportHtml(const CompiledPlan& plan, const ReportOptions& options) {
  return PageOf(ReportData(plan, options));
}

std::string ReportHtml(const FailedPlan& plan, const ReportOptions& options) {
  return PageOf(ReportData(plan, options));
}

}  // namespace moonshard
