#include "dsl/planning/hugging_face/plan_file.h"

#include <re2/re2.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "engine/core/base/text.h"
#include "engine/plan/match/pattern.h"

namespace moonshard {

// Every prefix of a module path is a candidate, and its score is the number of keys of the base table that then match a
// module or parameter. The best score wins; equal best scores are an error that names both prefixes, because a wrong
// choice would shard another part of the model (a vision tower has layers of the same names).
Result<std::string> FindBasePath(const HuggingFaceChoice& choice, const ModuleTree& tree) {
  const HuggingFaceTable* table = choice.config_table();
  if (table == nullptr || !table->of_base) return std::string();
  std::vector<std::string> paths;
  for (const uint32_t representative : tree.class_representatives()) {
    const Module& module = tree.modules()[representative];
    paths.push_back(module.path);
    for (const Parameter& parameter : tree.parameters(module)) {
      paths.push_back((module.path.empty() ? "" : module.path + ".") + parameter.name);
    }
  }
  std::map<std::string, size_t> fits;
  for (const HuggingFaceRule& rule : table->rules) {
    // The prefix is empty or ends in a dot, so a key matches at a component only: "layers.*" does not match in
    // "my_layers.0".
    const RE2 expression("((?:.*\\.)?)" + TranslateNumbered(rule.key).regex);
    std::set<std::string> found;
    for (const std::string& path : paths) {
      std::string prefix;
      if (RE2::FullMatch(path, expression, &prefix)) found.insert(std::move(prefix));
    }
    for (const std::string& prefix : found) ++fits[prefix];
  }
  if (fits.empty()) return std::string();
  const size_t most = std::ranges::max_element(fits, {}, [](const auto& fit) { return fit.second; })->second;
  std::vector<std::string> best;
  for (const auto& [prefix, count] : fits) {
    if (count == most) best.push_back(prefix);
  }
  if (best.size() == 1) return best.front();
  std::vector<std::string> quoted;
  for (const std::string& prefix : best) quoted.push_back("base=" + prefix);
  SourceSpan where = table->rules.front().where;
  Diagnostic d = MakeDiagnostic(Finding::kRuleConflict,
                                "the keys of '" + choice.name + "' fit several parts of the model equally well", where);
  d.declared = table->name + ", whose keys are relative to the base model";
  d.required = "the path of the base model: --option " + Join(quoted, ", or ");
  return d;
}

}  // namespace moonshard
