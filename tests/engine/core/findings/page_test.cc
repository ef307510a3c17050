// How a page is read and shown. That the pages of engine/core/findings are right is tests/cases/findings.
#include <catch2/catch.hpp>

#include "engine/core/findings/page.h"

namespace moonshard {
namespace {

constexpr const char* kPage = R"(# MS0202 unmatched-rule: a rule that matches nothing

What it is.

## Why

Because.

## Example

```lua wrong mesh=tp=4
## no heading
return plan {}
```

```text message
said
```

## Suggested fix

Do it.
)";

TEST_CASE("a page is its title, sections and blocks") {
  const FindingPage page = ReadPage(kPage);
  CHECK(page.id == "MS0202");
  CHECK(page.name == "unmatched-rule");
  CHECK(page.title == "a rule that matches nothing");
  CHECK(page.Section("") == "What it is.");
  CHECK(page.Section("Why") == "Because.");
  CHECK(page.Section("Suggested fix") == "Do it.");
  CHECK(page.Section("Elsewhere").empty());
  REQUIRE(page.sections.size() == 4);
  const std::vector<PageBlock> blocks = page.Blocks();
  REQUIRE(blocks.size() == 2);
  CHECK(blocks[0].language == "lua");
  CHECK(blocks[0].words == std::vector<std::string>{"wrong", "mesh=tp=4"});
  CHECK(blocks[0].text == "## no heading\nreturn plan {}\n");
  CHECK(blocks[1].text == "said\n");
}

TEST_CASE("a page is found by identifier and name, in any case") {
  const std::vector<FindingPage> pages = {ReadPage(kPage)};
  for (const char* wanted : {"MS0202", "ms0202", "unmatched-rule", "Unmatched-Rule"}) {
    CHECK(FindPage(pages, wanted) == &pages[0]);
  }
  CHECK(FindPage(pages, "MS02") == nullptr);
  CHECK(FindPage(pages, "") == nullptr);
}

TEST_CASE("a page for a terminal") {
  const FindingPage page = ReadPage(kPage);
  const std::string text = PageText(page, false);
  CHECK(text ==
        "MS0202 unmatched-rule (error): a rule that matches nothing\n\nWhat it is.\n\nWhy\n\nBecause.\n\nExample\n\n"
        "    ## no heading\n    return plan {}\n\n    said\n\nSuggested fix\n\nDo it.\n");
  CHECK(PageText(page, true).find("\033[1mSuggested fix\033[0m") != std::string::npos);
  CHECK(ListText({page}, false) == "MS0202  error    unmatched-rule  a rule that matches nothing\n");
}

TEST_CASE("the page of all findings keeps what stands in blocks") {
  const std::string all = AllPagesMarkdown({ReadPage(kPage)});
  CHECK(all.find("| [MS0202](#unmatched-rule) | error | `unmatched-rule` | a rule that matches nothing |") !=
        std::string::npos);
  CHECK(all.find("\n## MS0202 unmatched-rule") != std::string::npos);
  CHECK(all.find("\n### Why\n") != std::string::npos);
  CHECK(all.find("\n## no heading\n") != std::string::npos);
}

}  // namespace
}  // namespace moonshard
