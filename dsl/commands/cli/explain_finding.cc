// `moonshard explain-finding`.
#include <unistd.h>

#include <iostream>

#include "dsl/commands/cli/findings_output.h"
#include "dsl/commands/cli/verbs.h"
#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"
#include "engine/core/findings/page.h"

namespace moonshard {
namespace {

std::string NoSuchFinding(const std::string& wanted, const std::vector<FindingPage>& pages) {
  std::vector<std::string> names;
  for (const FindingPage& page : pages) {
    names.push_back(page.id);
    names.push_back(page.name);
  }
  const std::string near = NearestName(wanted, names);
  return "moonshard: there is no finding '" + Visible(wanted) + "'" +
         (near.empty() ? "" : ": did you mean '" + near + "'?") +
         "\nRun explain-finding without a name for a list, or with --help for more information.\n";
}

}  // namespace

int RunExplainFinding(const ExplainFindingVerb& verb) {
  const std::vector<FindingPage> pages = AllPages();
  const bool color = UsesColor(verb.findings_output.color, STDOUT_FILENO);
  if (verb.finding.empty()) {
    if (verb.markdown) {
      std::cout << AllPagesMarkdown(pages);
    } else if (verb.json) {
      JsonValue::Array list;
      for (const FindingPage& page : pages) list.push_back(ToJson(page));
      std::cout << WriteJson(
                       JsonValue::Object{{"format_version", kFindingsFormatVersion}, {"findings", std::move(list)}}, 2)
                << "\n";
    } else {
      std::cout << ListText(pages, color);
    }
    return kExitSuccess;
  }
  const FindingPage* page = FindPage(pages, verb.finding);
  if (page == nullptr) {
    std::cerr << NoSuchFinding(verb.finding, pages);
    return kExitUsage;
  }
  if (verb.markdown) {
    std::cout << page->markdown;
  } else if (verb.json) {
    JsonValue json = ToJson(*page);
    json.AsObject()["format_version"] = kFindingsFormatVersion;
    std::cout << WriteJson(json, 2) << "\n";
  } else {
    std::cout << PageText(*page, color);
  }
  return kExitSuccess;
}

}  // namespace moonshard
