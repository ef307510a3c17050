// Page: what is to be known about one finding, written once. pages/MS0202.md is the page of MS0202; all of them are
// part of the library. From the same text come `explain-finding`, the help of SARIF's rules, the page of all findings,
// and a test that runs the page's example and compares what is said about it with what the page says.
//
// A page is Markdown of this shape (tests/cases/findings reads the blocks):
//
//   # MS0202 unmatched-rule: a rule that matches nothing     the identifier, its name, the table's title (finding.cc)
//   What it means.
//   ## Why                                                   why it matters
//   ## Example                                               a wrong plan and its message, each a block
//   ## Cure                                                  what to do, mostly with the plan mended
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
  std::string heading;  // "" for what stands before the first one
  std::string text;     // Markdown
};

struct FindingPage {
  std::string id;    // "MS0202"
  std::string name;  // "unmatched-rule"
  std::string title;
  std::vector<PageSection> sections;
  std::string markdown;  // the whole page

  // The section's Markdown; "" where there is none.
  std::string Section(std::string_view heading) const;
  std::vector<PageBlock> Blocks() const;
};

// Reads a page. Never fails: what a page must have is the test's business.
FindingPage ReadPage(std::string_view markdown);

struct EmbeddedPage {
  std::string_view path;  // "engine/core/findings/pages/MS0202.md"
  std::string_view text;
};
// As they stand in the repository, sorted by path.
std::span<const EmbeddedPage> EmbeddedPages();

// All pages, in the order of their identifiers.
std::vector<FindingPage> AllPages();
// The page of "MS0202", "ms0202" or "unmatched-rule"; nullptr where there is none.
const FindingPage* FindPage(const std::vector<FindingPage>& pages, std::string_view wanted);

// The page for a terminal: headings without their marks, blocks indented.
std::string PageText(const FindingPage& page, bool color);
// One finding a line: identifier, severity, name, title.
std::string ListText(const std::vector<FindingPage>& pages, bool color);
// {"id", "name", "severity", "title", "meaning", "why", "example", "suggested fix"}; the last four are Markdown.
JsonValue ToJson(const FindingPage& page);

// One Markdown page of all findings, with a table of them in front.
std::string AllPagesMarkdown(const std::vector<FindingPage>& pages);

}  // namespace moonshard
