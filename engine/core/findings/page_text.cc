#include <algorithm>

#include "engine/core/base/text.h"
#include "engine/core/findings/page.h"

namespace moonshard {
namespace {

constexpr const char* kBlockIndent = "    ";

std::string Bold(const std::string& text, bool color) { return color ? "\033[1m" + text + "\033[0m" : text; }

const char* SeverityOf(const FindingPage& page) {
  const auto all = AllFindings();
  const auto found = std::ranges::find_if(all, [&](const FindingInfo& info) { return page.id == info.id; });
  return found == all.end() ? "" : ToString(found->severity);
}

std::string Padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

// Markdown without the marks of headings and fences; the contents of a block are indented.
std::string Plain(const std::string& markdown) {
  std::string out;
  bool open = false;
  for (const std::string& line : Split(markdown, '\n')) {
    if (line.starts_with("```")) {
      open = !open;
      continue;
    }
    out += (open && !line.empty() ? kBlockIndent + line : line) + "\n";
  }
  return out;
}

}  // namespace

std::string PageText(const FindingPage& page, bool color) {
  std::string out = Bold(page.id + " " + page.name, color) + " (" + SeverityOf(page) + "): " + page.title + "\n";
  for (const PageSection& section : page.sections) {
    out += "\n";
    if (!section.heading.empty()) out += Bold(section.heading, color) + "\n\n";
    out += Plain(section.text);
  }
  return out;
}

std::string ListText(const std::vector<FindingPage>& pages, bool color) {
  size_t width = 0;
  for (const FindingPage& page : pages) width = std::max(width, page.name.size());
  std::string out;
  for (const FindingPage& page : pages) {
    out += page.id + "  " + Padded(SeverityOf(page), 7) + "  " + Bold(Padded(page.name, width), color) + "  " +
           page.title + "\n";
  }
  return out;
}

JsonValue ToJson(const FindingPage& page) {
  return JsonValue::Object{{"id", page.id},
                           {"name", page.name},
                           {"severity", SeverityOf(page)},
                           {"title", page.title},
                           {"meaning", page.Section("")},
                           {"why", page.Section("Why")},
                           {"example", page.Section("Example")},
                           {"suggested_fix", page.Section("Suggested fix")},
                           {"cure", page.Section("Suggested fix")}};  // the name before 0.1, for programs that read it
}

std::string AllPagesMarkdown(const std::vector<FindingPage>& pages) {
  std::string out =
      "# Findings\n\nThe findings that moonshard reports about a plan, a model directory or a group of ranks. The\n"
      "identifier of a finding never changes and is never reused.\n\n| id | severity | name | |\n|---|---|---|---|\n";
  for (const FindingPage& page : pages) {
    out += "| [" + page.id + "](#" + page.name + ") | " + SeverityOf(page) + " | `" + page.name + "` | " + page.title +
           " |\n";
  }
  for (const FindingPage& page : pages) {
    out += "\n<a id=\"" + page.name + "\"></a>\n\n";
    bool open = false;
    // Every heading one level deeper, because the page of all findings has its own.
    for (const std::string& line : Split(page.markdown.substr(0, page.markdown.find_last_not_of('\n') + 1), '\n')) {
      if (line.starts_with("```")) open = !open;
      out += (!open && line.starts_with('#') ? "#" + line : line) + "\n";
    }
  }
  return out;
}

}  // namespace moonshard
