// Page: the documentation of one finding. pages/MS0202.md is the page of MS0202; the pages are embedded in the library.
// `explain-finding`, the help of SARIF's rules and the page of all findings are generated from the pages. A test
// evaluates the example of each page and compares the findings with the message on the page.
//
// A page is Markdown of this form (tests/cases/findings reads the blocks):
//
//   # MS0202 unmatched-rule: a rule that matches nothing     identifier, name, title (as in base/finding.cc)
//   What it means.
//   ## Why                                                   why it matters
//   ## Example                                               a wrong plan and its message, each in a block
//   ## Suggested fix                                         what to do, usually with a correct plan
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/finding.h"
#include "engine/core/base/json.h"

namespace moonshard {

// A fenced block of a page. "```lua wrong mesh=tp=4" has language "lua" and words "wrong", "mesh=tp=4".
struct PageBlock {
  std::string language;
  std::vector<std::string> words;
  std::string text;  // each line with its end
};

struct PageSection {
  std::string heading;  // "" for the text before the first heading
  std::string text;     // Markdown
};

struct FindingPage {
  std::string id;    // "MS0202"
  std::string name;  // "unmatched-rule"
  std::string title;
  std::vector<PageSection> sections;
  std::string markdown;  // the complete page

  // Returns the Markdown of a section; "" if the page does not have the section.
  std::string Section(std::string_view heading) const;
  std::vector<PageBlock> Blocks() const;
};

// Parses a page. Never fails: a test checks that a page has the required sections.
FindingPage ReadPage(std::string_view markdown);

struct EmbeddedPage {
  std::string_view path;  // "engine/core/findings/pages/MS0202.md"
  std::string_view text;
};
// Returns the page files of the repository, sorted by path.
std::span<const EmbeddedPage> EmbeddedPages();

// Returns all pages in the order of their identifiers.
std::vector<FindingPage> AllPages();
// Returns the page with an identifier ("MS0202", "ms0202") or a name ("unmatched-rule", also the name before a rename);
// nullptr if no page has this identifier or name.
const FindingPage* FindPage(const std::vector<FindingPage>& pages, std::string_view wanted);

// Returns the page for a terminal: headings without their marks, blocks indented.
std::string PageText(const FindingPage& page, bool color);
// Returns one finding per line: identifier, severity, name, title.
std::string ListText(const std::vector<FindingPage>& pages, bool color);
// {"id", "name", "severity", "title", "meaning", "why", "example", "suggested_fix", "cure"}; the last five are
// Markdown. "cure" is the name of "suggested_fix" before 0.1 and has the same text.
JsonValue ToJson(const FindingPage& page);

// Returns one Markdown page of all findings, with a table of the findings at the beginning.
std::string AllPagesMarkdown(const std::vector<FindingPage>& pages);

}  // namespace moonshard
